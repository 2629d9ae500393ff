"""Speed perturbation: copies of utterances, played faster or slower."""

from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.audio.speed import Resampler, perturbed, resampled
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.fbank import fbank
from support.corpora import RATE, speechlike
from support.features import CONFIG, compute, some_utterances


@pytest.fixture
def some(tmp_path: Path) -> list[Utterance]:
    return some_utterances(tmp_path)


@pytest.mark.parametrize("speed", [0.9, 1.1, 1.5, 0.93])
def test_a_tone_gets_higher_and_shorter(speed: float) -> None:
    """cos(2 pi f t) read at s times the rate is cos(2 pi f s t), away from the ends."""
    rate, hertz = 8000, 700.0
    time = np.arange(4000) / rate
    faster = resampled(np.cos(2 * np.pi * hertz * time).astype(np.float32), rate, rate, speed)
    assert len(faster) == round(4000 / speed)
    inside = slice(200, -200)
    expected = np.cos(2 * np.pi * hertz * speed * np.arange(len(faster)) / rate)
    np.testing.assert_allclose(faster[inside], expected[inside], atol=2e-3)


def test_copies_are_utterances_of_their_own(tmp_path: Path, some: list[Utterance]) -> None:
    del some[3]  # a single frame, and none any more when it is played faster
    everything = perturbed(some, (0.9, 1.0, 1.1))
    assert [u.id for u in everything[::4]] == ["s2-a", "sp0.9-s2-a", "sp1.1-s2-a"]
    assert everything[4].speaker == "sp0.9-s2"
    assert everything[4].text == some[0].text
    assert perturbed(everything, (0.9,))[12:] == everything[4:8]  # no copies of copies
    store = compute(everything, tmp_path)
    assert store.frames("sp0.9-s2-a") == CONFIG.num_frames(round(some[0].num_samples / 0.9), RATE)
    slow = resampled(read_audio(some[0], tmp_path), RATE, RATE, 0.9)
    np.testing.assert_array_equal(store.get("sp0.9-s2-a"), fbank(torch.from_numpy(slow), RATE, CONFIG).numpy())
    with pytest.raises(UserError, match=r"speed 3: give speeds from 0\.5 to 2"):
        perturbed(some, (3.0,))


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000), (48000, 8000), (16000, 16000)])
def test_resampling_block_by_block_is_resampling(rate: int, wanted: int) -> None:
    signal = speechlike(0.7, rate)
    for sizes in ([1, 7, 300, 20_000, 30], [len(signal)], [5] * 40):
        resampler, made, at = Resampler(rate, wanted), [], 0
        for size in [*sizes, len(signal)]:
            made.append(resampler.push(signal[at : at + size]))
            at += size
        made.append(resampler.finish())
        np.testing.assert_allclose(np.concatenate(made), resampled(signal, rate, wanted), atol=1e-6)
    nothing = Resampler(rate, wanted)
    assert len(nothing.push(signal[:0])) == len(nothing.finish()) == 0
