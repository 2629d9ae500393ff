"""Cepstra: an orthonormal transform, nothing left of the speaker's mean and variance, slopes that are slopes."""

from pathlib import Path

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.hmm.gmm import CEPSTRA, LIFTER, all_cepstra, cepstral_matrix, deltas


def test_transform_is_orthonormal_but_for_the_lifter() -> None:
    matrix = cepstral_matrix(40) / (1 + LIFTER / 2 * np.sin(np.pi * np.arange(CEPSTRA) / LIFTER))
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(CEPSTRA), atol=1e-6)


def test_slope_of_a_ramp_is_one() -> None:
    ramp = np.arange(10, dtype=np.float32)[:, None]
    np.testing.assert_allclose(deltas(ramp)[2:-2], 1.0)
    np.testing.assert_allclose(deltas(deltas(ramp))[4:-4], 0.0, atol=1e-7)
    np.testing.assert_allclose(deltas(ramp)[0, 0], (1 * (1 - 0) + 2 * (2 - 0)) / 10)  # the edge is repeated


def test_speakers_are_normalised_and_utterances_kept_apart() -> None:
    rng = stream(0, "fbank")
    lengths = [30, 0, 40, 50]
    array = rng.normal(size=(sum(lengths), 40)).astype(np.float32)
    array[30:70] += 5.0  # the second speaker is louder
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    zeros = np.zeros((2, 40), np.float32)
    stats = SpeakerStats(("a", "b"), zeros, zeros + 1, np.array([80, 40]))
    speakers = np.array([0, 0, 1, 0], np.int32)
    store = FeatureStore(Path(), array, ("u0", "u1", "u2", "u3"), offsets, speakers, stats, 16000, {})
    found = all_cepstra(store)
    assert found.shape == (120, 3 * CEPSTRA)
    for speaker in (0, 1):
        own = found[store.frame_speakers == speaker, :CEPSTRA].astype(np.float64)
        np.testing.assert_allclose(own.mean(0), 0.0, atol=1e-4)
        np.testing.assert_allclose(own.std(0), 1.0, atol=1e-3)
    np.testing.assert_allclose(found[30:70, CEPSTRA : 2 * CEPSTRA], deltas(found[30:70, :CEPSTRA]))
