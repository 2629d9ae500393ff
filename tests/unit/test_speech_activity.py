"""Recordings are cut in their pauses, and nowhere else as long as there are any."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.core.streams import stream
from roundelay_speech.audio.activity import FRAMES_PER_SECOND, Activity, Cutting, Energies, cut, smoothed, speech_spans
from support.corpora import speechlike

RATE = 8000
Samples = npt.NDArray[np.float32]


def word(seconds: float, number: int) -> Samples:
    """A word: syllables with closures of up to 100 ms between them, soft at both ends."""
    wave = speechlike(4, RATE, f"word {number}")
    power = np.convolve(wave**2, np.ones(800) / 800, "same")
    loud = wave[power > 1e-4][: round(seconds * RATE)]
    syllables = np.abs(np.sin(np.pi * np.arange(len(loud)) / RATE / 0.35)) > 0.35
    ends = np.minimum(1, np.minimum(np.arange(len(loud)), np.arange(len(loud))[::-1]) / (0.05 * RATE))
    result: Samples = (loud * syllables * ends).astype(np.float32)
    return result


def spoken(pauses: list[float], noise: float, seconds: float = 0.8) -> tuple[Samples, list[tuple[float, float]]]:
    """Words with these pauses before each (s), over noise; and where the words are."""
    parts, places, at = [], [], 0.0
    for number, pause in enumerate(pauses):
        said = word(seconds, number)
        parts += [np.zeros(round(pause * RATE), np.float32), said]
        places.append((at + pause, at + pause + len(said) / RATE))
        at = places[-1][1]
    signal = np.concatenate([*parts, np.zeros(RATE, np.float32)])
    return signal + (noise * stream(0, "noise").standard_normal(len(signal))).astype(np.float32), places


def levels(signal: Samples, block: int = 10_000) -> npt.NDArray[np.float32]:
    energies = Energies(RATE)
    return smoothed(np.concatenate([energies.push(signal[at : at + block]) for at in range(0, len(signal), block)]))


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.004])
def test_pauses_are_found(noise: float) -> None:
    signal, places = spoken([1.0, 0.7, 1.5, 0.6, 2.0, 0.8], noise)
    spans = [(a / FRAMES_PER_SECOND, b / FRAMES_PER_SECOND) for a, b in cut(levels(signal), Cutting())]
    assert len(spans) == len(places)
    for (first, last), (start, end) in zip(spans, places, strict=True):
        assert start - 0.5 < first <= start + 0.05
        assert end - 0.05 <= last < end + 0.5


def test_a_short_silence_cuts_nothing() -> None:
    signal, places = spoken([0.6, 0.3, 0.25, 1.0, 0.2], 0.001)
    spans = cut(levels(signal), Cutting(pause=0.5))
    assert len(spans) == 2
    assert spans[0][1] / FRAMES_PER_SECOND > places[2][1] - 0.05
    assert spans[1][0] / FRAMES_PER_SECOND < places[3][0] + 0.05


def test_noise_that_changes_is_followed() -> None:
    """A fan goes on after half a minute; before and after it, words and pauses are told apart."""
    signal, places = spoken([1.2] * 30, 0.0005)
    fan = np.where(np.arange(len(signal)) > 30 * RATE, 0.006, 0.0) * stream(0, "fan").standard_normal(len(signal))
    spans = speech_spans(levels((signal + fan).astype(np.float32)))
    found = [any(a / 100 < end and b / 100 > start for a, b in spans) for start, end in places]
    assert sum(found) >= 29
    settled = [(a, b) for a, b in spans if a > 4500 or b < 2000]
    assert all(any(a / 100 < end and b / 100 > start for start, end in places) for a, b in settled)


def test_nobody_speaks() -> None:
    noise = (0.01 * stream(0, "noise").standard_normal(30 * RATE)).astype(np.float32)
    assert cut(levels(noise), Cutting(longest=5)) == []
    assert cut(levels(np.zeros(30 * RATE, np.float32)), Cutting(longest=5)) == []
    assert cut(np.zeros(0, np.float32), Cutting()) == []


@pytest.mark.parametrize("seconds", [0.8, 1.4, 3.0, 9.0])
def test_speech_cut_out_closely_is_speech_and_steady_noise_is_none(seconds: float) -> None:
    """Noisy syllables that never fall silent vary by 3 dB, half of what a recording with pauses does."""
    count = round(seconds * RATE)
    noise = (0.05 * stream(0, "noise").standard_normal(count)).astype(np.float32)
    syllables = (1 + 0.2 * np.sin(2 * np.pi * 4 * np.arange(count) / RATE)).astype(np.float32)
    for signal, spoken_in in [(noise * syllables, True), (noise, False), (np.zeros_like(noise), False)]:
        activity = Activity(RATE)
        activity.push(signal)
        assert activity.anybody() is spoken_in


def test_pieces_are_bounded_and_cut_in_the_longest_silence() -> None:
    """Talk without a pause of half a second: a piece ends in the longest silence of its second half."""
    pauses = [0.3] * 12
    pauses[5], pauses[9] = 0.45, 0.45
    signal, places = spoken(pauses, 0.001)
    spans = cut(levels(signal), Cutting(longest=6.0))
    assert all(last - first <= 600 for first, last in spans)
    assert [b[0] - a[1] for a, b in pairwise(spans)] == [0] * (len(spans) - 1)  # nothing is lost
    for _, last in spans[:-1]:
        assert not any(start + 0.02 < last / 100 < end - 0.02 for start, end in places)
    silences = {round(places[n][0] - 0.225, 1) for n in (5, 9)}
    assert any(abs(last / 100 - at) < 0.12 for _, last in spans for at in silences)


def test_without_silence_the_quietest_place_is_cut() -> None:
    time = np.arange(20 * RATE) / RATE
    tone = 0.3 * np.sin(2 * np.pi * 440 * time) * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time))  # syllables, no pause
    signal = np.concatenate([np.zeros(RATE), tone, np.zeros(RATE)])
    signal[8 * RATE : 8 * RATE + 800] *= 0.1
    spans = cut(levels(signal.astype(np.float32)), Cutting(longest=10.0))
    assert len(spans) >= 2
    assert abs(spans[0][1] / 100 - 8.05) < 0.12


@pytest.mark.parametrize("block", [1, 333, 80_000])
def test_energies_do_not_depend_on_blocks(block: int) -> None:
    signal, _ = spoken([0.2, 0.3], 0.001)
    signal = signal[:16000]
    for rate in (8000, 11025):
        energies = Energies(rate)
        parts = [energies.push(signal[at : at + block]) for at in range(0, len(signal), block)]
        np.testing.assert_allclose(np.concatenate(parts), Energies(rate).push(signal), atol=1e-3)
        assert len(np.concatenate(parts)) == len(signal) * 100 // rate
