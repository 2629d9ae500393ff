"""Words that were said are told from those that a search finds in noise."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.audio.noises import NOISES, noise
from roundelay_speech.decode.evidence import (
    Evidence,
    FoundWord,
    Likeness,
    cepstra,
    log_odds,
    longest_phones,
    measured,
    mixture_of,
    too_long,
)
from roundelay_speech.features.fbank import FbankConfig, band_centres, mel_filters
from roundelay_speech.packed.calibrating import logistic
from roundelay_speech.scoring.formats.ctm import TimedWord

ONE = Likeness((1.0,), ((0.0, 0.0),), ((1.0, 1.0),))
EVIDENCE = Evidence({"A": 0.3}, ONE, (-1.0,) * 4, (1.0, 0.0, 1.0, 0.5), 8.0, 2.0, -20.0, (0.5, 0.25, -1.0))


def found(first: int, end: int, column: int) -> FoundWord:
    return FoundWord(np.arange(first, end), np.full(end - first, column))


def test_measures_are_means_of_a_word_and_of_those_around_it() -> None:
    """Words less than half a second apart are judged together, each frame counting the same."""
    posteriors = np.log(np.tile(np.array([0.5, 0.25, 0.125], np.float32), (200, 1)))
    likeness = np.where(np.arange(200) < 100, -10.0, -40.0)
    words = [found(0, 10, 0), found(20, 40, 1), found(120, 130, 2)]
    half = np.log(0.5)
    together = (10 * half + 20 * 2 * half) / 30
    np.testing.assert_allclose(
        measured(words, posteriors, likeness, 0.01)[:, :4],
        [[half, -10, together, -10], [2 * half, -10, together, -10], [3 * half, -40, 3 * half, -40]],
        rtol=1e-6,
    )
    apart = measured(words, posteriors, likeness, 0.1)  # as many frames are ten times as long
    np.testing.assert_allclose(apart[:, 2:4], apart[:, :2])


def test_every_phone_counts_the_same_beside_confidences() -> None:
    """Short ones too; a word whose phones are not known counts as one."""
    posteriors = np.zeros((20, 1), np.float32)
    posteriors[8:10], posteriors[10:] = -4.0, -1.0
    words = [replace(found(0, 10, 0), phones=(("A", 8), ("B", 2))), found(10, 20, 0)]
    measures = measured(words, posteriors, np.zeros(20), 0.01)
    np.testing.assert_allclose(measures[:, 4:], [[-2, 2, -5 / 3], [-1, 1, -5 / 3]])


def test_what_is_believed() -> None:
    """More than what is usual counts as usual; far from any speech, nothing else counts."""
    usual = np.full((1, 4), -1.0)
    assert EVIDENCE.sums(usual).tolist() == [5.5]
    assert EVIDENCE.sums(usual + 9).tolist() == [5.5]
    cases = np.array([[-1, -1, -1, -1], [-3, -1, -2, -1], [-4, -1, -2, -1], [-1, -21, -1, -1]], float)
    assert EVIDENCE.believed(cases).tolist() == [True, True, False, False]
    assert EVIDENCE.believed(cases - 1).tolist() == [True, False, False, False]


def sure(evidence: Evidence, confidences: Sequence[float | None], measures: list[list[float]]) -> list[float]:
    """Confidences of words, made true."""
    words = tuple(TimedWord("A", 0.0, 0.2, one) for one in confidences)
    return [word.confidence for word in evidence.made_true(words, np.array(measures))]  # type: ignore[misc]


@pytest.mark.parametrize("weights", [(0.5, 0.25, -1.0), (0.5, 0.25, 0.5, 0.1, 0.2, -1.0)], ids=["earlier", "today"])
def test_confidences_rise_with_the_search_s_and_with_evidence(weights: tuple[float, ...]) -> None:
    evidence, row = replace(EVIDENCE, confidence=weights), [-2.0, -1, -1, -1, -0.5, 3, -0.4]
    rising = sure(evidence, [0.0, 0.1, 0.5, 0.9, 0.999], [row] * 5)
    assert rising == sorted(set(rising), key=float)
    assert 0 < rising[0] < rising[-1] < 1
    counted = (0,) if len(weights) == 3 else (0, 4, 5, 6)
    more = [[value + (n == place) for n, value in enumerate(row)] for place in counted]
    assert all(one > rising[3] for one in sure(evidence, [0.9] * len(more), more))
    assert sure(evidence, [0.8, None], [row, row])[1] is None
    assert sure(evidence, [], []) == []


def test_confidences_by_hand() -> None:
    evidence = replace(EVIDENCE, confidence=(0.5, 0.25, 0.5, 0.1, 0.2, -1.0))
    row = [-1.0, -1, -1, -1, -0.5, 3, -0.4]
    total = 0.5 * log_odds(0.8) + 0.25 * (5.5 - 2.0) - 0.25 + 0.3 - 0.08 - 1
    assert sure(evidence, [0.8], [row]) == [pytest.approx(1 / (1 + np.exp(-total)))]
    floored = replace(evidence, floors=(-9.0, -9.0, -0.2, 1.0, -9.0))
    assert sure(floored, [0.8], [row]) == [pytest.approx(1 / (1 + np.exp(-total - 0.5 * 0.3)))]
    earlier = replace(EVIDENCE, confidence=(0.5, 0.25, -1.0))
    total = 0.5 * log_odds(0.8) + 0.25 * (5.5 - 2.0) - 1
    assert sure(earlier, [0.8], [row]) == [pytest.approx(1 / (1 + np.exp(-total)))]


def test_phones_that_last_impossibly_long() -> None:
    long = replace(found(0, 41, 0), phones=(("A", 31), ("B", 10)))
    assert too_long(long, {"A": 0.3}, 0.01)
    assert not too_long(replace(long, phones=(("A", 30), ("B", 11))), {"A": 0.3}, 0.01)
    assert too_long(replace(long, phones=(("C", 81),)), {}, 0.01)  # of an old model, which learnt nothing
    assert not too_long(found(0, 500, 0), {}, 0.01)  # nothing says when its phones begin


def test_how_long_phones_last_is_learnt_from_the_alignment() -> None:
    phones, states = [], []
    for phone, frames in ((1, 50), (2, 10), (2, 20), (3, 8), (1, 30)):
        phones += [phone] * frames
        states += sorted(n * 3 // frames for n in range(frames))
    alignment = SimpleNamespace(
        phones=np.array(phones, np.int16),
        states=np.array(states, np.int8),
        tying=SimpleNamespace(phones=("SIL", "A", "B", "C")),
    )
    longest = longest_phones(alignment, 0.01)  # type: ignore[arg-type]
    assert longest["SIL"] == pytest.approx(0.75, abs=0.01)
    assert longest["A"] == pytest.approx(0.3, abs=0.01)
    assert longest["B"] == longest["C"] == pytest.approx(0.3, abs=0.01)  # as rare ones: those of all phones


def test_a_mixture_knows_what_it_was_made_of() -> None:
    rng = stream(0, "mixture")
    frames = np.concatenate([rng.normal(-3, 1, (4000, 5)), rng.normal(3, 0.5, (4000, 5))]).astype(np.float32)
    mixture = mixture_of(frames, rng).mixtures
    inside, outside = mixture.loglikes(frames).mean(), mixture.loglikes(np.zeros((9, 5), np.float32)).mean()
    best = 0.5 * sum(-2.5 * np.log(2 * np.pi * np.e * std**2) for std in (1, 0.5)) - np.log(2)
    assert inside == pytest.approx(best, abs=0.1)
    assert outside < inside - 10


def test_frames_are_like_speech_where_they_are_not_like_noise() -> None:
    """Each frame says so much at most; without a mixture of noise, as earlier versions packed, it is the likelihood."""
    noise_there = replace(EVIDENCE, noise=Likeness((1.0,), ((8.0, 0.0),), ((1.0, 1.0),)))
    frames = np.array([[0, 0], [4, 0], [8, 0], [4, 90], [3.9, 0]], np.float32)
    np.testing.assert_allclose(noise_there.likenesses(frames), [20, 0, -20, 0, 0.8], atol=1e-4)
    np.testing.assert_allclose(EVIDENCE.likenesses(frames[:3]), -np.log(2 * np.pi) - np.array([0, 8, 32]), atol=1e-4)


def test_loudness_does_not_matter_to_cepstra() -> None:
    bands = stream(0, "bands").normal(size=(50, 26)).astype(np.float32)
    for room in (None, 20.0):
        np.testing.assert_allclose(cepstra(bands, room), cepstra(bands + 5, room), atol=1e-3)


def test_valleys_deeper_than_in_any_room_do_not_matter_to_cepstra() -> None:
    """Of a synthesised voice; those that a room leaves are as they are, however loud it is."""
    bands = stream(0, "bands").normal(size=(50, 26)).astype(np.float32)
    deep, deeper = (np.where(np.arange(26) % 5 == np.arange(50)[:, None] % 5, depth, bands) for depth in (-12, -60))
    np.testing.assert_allclose(
        cepstra(deep.astype(np.float32), 15.0), cepstra(deeper.astype(np.float32), 15.0), atol=0.1
    )
    assert np.abs(cepstra(deep.astype(np.float32), None) - cepstra(deeper.astype(np.float32), None)).max() > 10


@pytest.mark.parametrize(("rate", "bands"), [(16000, 28), (8000, 38)])
def test_bands_that_a_telephone_lets_through(rate: int, bands: int) -> None:
    centres = band_centres(FbankConfig(), rate)
    assert (centres <= 3400).sum() == bands
    filters = mel_filters(FbankConfig(), rate, 1024).numpy()
    np.testing.assert_allclose(centres, filters.argmax(0) * rate / 1024, atol=rate / 1024)


def test_logistic_regression() -> None:
    """Of cases drawn from a line it finds the line; where one kind is rare, its odds only move if they are to count."""
    rng = stream(0, "logistic")
    cases = rng.normal(size=(20_000, 2))
    answers = rng.random(20_000) < 1 / (1 + np.exp(-(2 * cases[:, 0] - cases[:, 1] + 3)))
    weights, offset = logistic(cases, answers)
    np.testing.assert_allclose([*weights, offset], [2, -1, 3], atol=0.25)
    assert logistic(cases, answers, balanced=True)[1] < offset - 1


def test_evidence_is_read_as_it_was_written() -> None:
    assert build(Evidence, plain(EVIDENCE), "evidence.json") == EVIDENCE
    against = replace(EVIDENCE, noise=ONE)
    assert build(Evidence, plain(against), "evidence.json") == against
    for broken in (
        {"weights": [1.0]},
        {"least": float("nan")},
        {"likeness": {"weights": [1.0], "means": [[0.0]], "variances": [[1.0, 1.0]]}},
        {"likeness": {"weights": [1.0], "means": [[0.0, 0.0]], "variances": [[1.0, 0.0]]}},
        {"noise": {"weights": [1.0], "means": [[0.0]], "variances": [[1.0]]}},
    ):
        with pytest.raises(UserError):
            build(Evidence, {**plain(EVIDENCE), **broken}, "evidence.json")


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("rate", [8000, 16000])
def test_noises_are_sound(kind: str, rate: int) -> None:
    for seconds in (0.0, 0.02, 1.0):
        wave = noise(kind, seconds, rate, 3)
        assert wave.dtype == np.float32
        assert wave.shape == (round(seconds * rate),)
        assert np.isfinite(wave).all()
        assert np.abs(wave).max(initial=0.0) <= 1
        np.testing.assert_array_equal(wave, noise(kind, seconds, rate, 3))
    assert np.abs(wave).max() > 0 or kind == "nothing"
