"""Distorted copies of utterances: which, under which names, and what is heard in them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.audio.distortion import distorted, with_distortions
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.audio.speed import perturbed
from roundelay_speech.corpus.folds import _original
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.manifest import DISTORTIONS, Utterance, read_manifest, write_manifest
from support.features import compute, some_utterances

HZ = 16_000


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    return some_utterances(tmp_path)


def heard(some: list[Utterance], kind: str, samples: Samples, name: str = "a") -> Samples:
    return distorted(samples, HZ, dataclasses.replace(some[0], id=f"{kind}-{name}", distortion=kind))


def decibels(samples: Samples) -> float:
    return 10 * float(np.log10(np.mean(np.square(samples, dtype=np.float64))))


def white(seconds: float = 1.0) -> Samples:
    noise = np.random.default_rng(0).standard_normal(int(HZ * seconds))
    return (0.1 * noise).astype(np.float32)


def test_each_original_has_one_copy_and_kinds_take_turns(tmp_path: Path, some: list[Utterance]) -> None:
    everything = with_distortions(perturbed(some, [0.9]), ["noise", "room"])
    copies = everything[2 * len(some) :]
    kinds = [("noise", "room")[number % 2] for number in range(len(some))]
    assert [u.id for u in copies] == [f"{kind}-{u.id}" for kind, u in zip(kinds, some, strict=True)]
    assert copies[0].copied == "a copy with noise"
    assert [_original(u) for u in copies] == [u.speaker for u in some]
    write_manifest(tmp_path / "some.jsonl", everything)
    assert read_manifest(tmp_path / "some.jsonl") == everything
    store = compute(everything, tmp_path)
    for original, copy in zip(some, copies, strict=True):
        assert store.get(copy.id).shape == store.get(original.id).shape
        assert not np.allclose(store.get(copy.id), store.get(original.id))
        np.testing.assert_array_equal(read_audio(copy, tmp_path), read_audio(copy, tmp_path))


@pytest.mark.parametrize("kind", DISTORTIONS)
def test_a_copy_is_as_long_within_bounds_and_each_is_another(some: list[Utterance], kind: str) -> None:
    loud = 9 * white(0.3)
    one, other = heard(some, kind, loud), heard(some, kind, loud, "b")
    assert one.dtype == np.float32
    assert one.shape == loud.shape
    assert np.abs(one).max() <= 1
    np.testing.assert_array_equal(one, heard(some, kind, loud))
    assert not np.array_equal(one, other)
    assert len(heard(some, kind, loud[:0])) == 0
    assert np.isfinite(heard(some, kind, np.zeros(4000, np.float32))).all()


def test_noise_is_below_the_speech(some: list[Utterance]) -> None:
    speech = white()
    ratios = [decibels(speech) - decibels(heard(some, "noise", speech, f"{n}") - speech) for n in range(20)]
    assert 4.9 < min(ratios) < 9
    assert 21 < max(ratios) < 25.1


def test_a_telephone_has_its_band(some: list[Utterance]) -> None:
    speech = white()
    power = np.abs(np.fft.rfft(heard(some, "telephone", speech))) ** 2
    before = np.abs(np.fft.rfft(speech)) ** 2
    frequency = np.fft.rfftfreq(HZ, 1 / HZ)

    def share(low: float, high: float) -> float:
        inside = (frequency >= low) & (frequency < high)
        return float(power[inside].sum() / before[inside].sum())

    assert 0.9 < share(500, 3200) < 1.1
    assert share(4100, 8000) < 1e-4


def test_a_room_decays(some: list[Utterance]) -> None:
    click = np.zeros(HZ, np.float32)
    click[0] = 0.5
    for name in "abc":
        echoes = heard(some, "room", click, name)
        early, late = decibels(echoes[1 : HZ // 20]), decibels(echoes[HZ // 7 : HZ // 7 + HZ // 20])
        assert early > late + 10
        assert decibels(echoes[HZ * 7 // 10 + 1 :] + 1e-9) < -150


def test_a_level_is_a_gain(some: list[Utterance]) -> None:
    speech = white()
    gains = [decibels(heard(some, "level", speech, f"{n}")) - decibels(speech) for n in range(20)]
    assert -30.1 < min(gains) < -20
    assert -8 < max(gains) < 0.1
    ratio = heard(some, "level", speech) / speech
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


@pytest.mark.parametrize("kinds", [["echo"], ["noise", "noise"]])
def test_kinds_that_are_none_are_named(some: list[Utterance], kinds: list[str]) -> None:
    with pytest.raises(UserError, match=f"distortion '{kinds[0]}': give some of noise, telephone, room, level"):
        with_distortions(some, kinds)


def test_a_manifest_with_an_unknown_kind_is_refused(tmp_path: Path, some: list[Utterance]) -> None:
    with pytest.raises(UserError, match="`distortion` is 'echo': it must be one of"):
        write_manifest(tmp_path / "some.jsonl", [dataclasses.replace(some[0], distortion="echo")])
