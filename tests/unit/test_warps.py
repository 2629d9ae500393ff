"""Copies of utterances with warped frequencies: whose, under which names, and what is computed of them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.audio.speed import perturbed
from roundelay_speech.data.manifest import Utterance, read_manifest, write_manifest
from roundelay_speech.features.fbank import fbank
from roundelay_speech.features.warps import Warps, group_of, warped
from support.corpora import RATE
from support.features import CONFIG, compute, some_utterances


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    """Of s1, a man, and of s2, a woman, who says less."""
    found = some_utterances(tmp_path)
    gender = {"s1": "m", "s2": "f"}
    return [dataclasses.replace(u, gender=gender[u.speaker]) for u in found]


def ids(utterances: list[Utterance]) -> list[str]:
    return [u.id for u in utterances]


def test_copies_have_the_frames_and_the_warp(tmp_path: Path, some: list[Utterance]) -> None:
    everything = warped(some, Warps((0.9, 1.0, 1.1)))
    assert everything[: len(some)] == some
    copies = everything[len(some) :]
    assert ids(copies) == [f"vtln{warp}-{u.id}" for warp in ("0.9", "1.1") for u in some]
    assert {u.speaker for u in copies[: len(some)]} == {"vtln0.9-s1", "vtln0.9-s2"}
    assert (copies[0].text, copies[0].copied) == (some[0].text, "a copy at warp 0.9")
    store = compute(everything, tmp_path)
    for original, copy in zip(some, copies, strict=False):
        wave = torch.from_numpy(read_audio(original, tmp_path))
        np.testing.assert_array_equal(store.get(copy.id), fbank(wave, RATE, CONFIG, 0.9).numpy())
        assert store.get(copy.id).shape == store.get(original.id).shape
        assert not np.allclose(store.get(copy.id), store.get(original.id))


def test_a_warp_of_one_is_none(tmp_path: Path, some: list[Utterance]) -> None:
    """Bit for bit; and features that were computed before there were warps are still the ones wanted."""
    wave = torch.from_numpy(read_audio(some[0], tmp_path))
    assert torch.equal(fbank(wave, RATE, CONFIG, 1.0), fbank(wave, RATE, CONFIG))
    assert warped(some, Warps((1.0,))) == some
    write_manifest(tmp_path / "some.jsonl", some)
    assert "warp" not in (tmp_path / "some.jsonl").read_text()


def test_the_manifest_keeps_warps(tmp_path: Path, some: list[Utterance]) -> None:
    everything = warped(some, Warps((1.1,)))
    write_manifest(tmp_path / "some.jsonl", everything)
    assert read_manifest(tmp_path / "some.jsonl") == everything


def test_no_copies_of_copies(some: list[Utterance]) -> None:
    both = warped(perturbed(some, (0.9,)), Warps((1.1,)))
    assert len(both) == 3 * len(some)
    assert perturbed(both, (1.2,))[len(both) :] == perturbed(some, (1.2,))[len(some) :]
    assert warped(both, Warps((1.2,)))[len(both) :] == warped(some, Warps((1.2,)))[len(some) :]


def test_of_a_group(tmp_path: Path, some: list[Utterance]) -> None:
    women, men = ([f"vtln1.1-{u.id}" for u in some if u.gender == gender] for gender in "fm")

    def copies(of: str | frozenset[str]) -> list[str]:
        return ids(warped(some, Warps((1.1,), of)))[len(some) :]

    assert women
    assert men
    assert (copies("women"), copies("men")) == (women, men)
    seconds = {gender: sum(u.duration for u in some if u.gender == gender) for gender in "fm"}
    assert copies("few") == (women if seconds["f"] < seconds["m"] else men)
    (tmp_path / "speakers").write_text("s2 f\n\n")
    assert group_of("few") == "few"
    assert copies(group_of(str(tmp_path / "speakers"))) == women


def test_what_cannot_be_warped(tmp_path: Path, some: list[Utterance]) -> None:
    unknown = [dataclasses.replace(u, gender=None) for u in some]
    men = [dataclasses.replace(u, gender="m") for u in some]
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match=r"warp 2: give factors from 0\.8 to 1\.25"):
        warped(some, Warps((2.0,)))
    with pytest.raises(UserError, match=r"warp 1\.1: give factors"):
        warped(some, Warps((1.1, 1.1)))
    with pytest.raises(UserError, match="spk2gender"):
        warped(unknown, Warps((1.1,), "few"))
    with pytest.raises(UserError, match="there is none in the training speech"):
        warped(men, Warps((1.1,), "women"))
    with pytest.raises(UserError, match=r"say nothing in train:\n *nobody"):
        warped(some, Warps((1.1,), frozenset({"nobody", "s1"})))
    with pytest.raises(UserError, match="empty: lists no speakers"):
        group_of(str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"nowhere: no file of speakers\. Give one of all, women"):
        group_of("nowhere")
