"""Affine maps of speakers: the equations against a dense reference, and what EM must do."""

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.core.streams import stream
from roundelay_speech.adapt.fmllr import Estimate, Transform, accumulate, estimate, expected, updated
from roundelay_speech.hmm.gmm import Mixtures

Float64 = npt.NDArray[np.float64]
D, S, K, T = 5, 6, 2, 6000


def speech(
    seed: int = 0, spread: float = 0.25
) -> tuple[Mixtures, npt.NDArray[np.float32], npt.NDArray[np.int64], Float64]:
    """Mixtures, frames of a speaker who differs from them by an affine map, their pdfs, and the map [A b]."""
    rng = stream(seed, "speaker")
    means, variances = 2 * rng.standard_normal((S * K, D)), rng.uniform(0.3, 1.0, (S * K, D))
    weights = np.tile([0.3, 0.7], S)
    mixtures = Mixtures(weights, means, variances, np.arange(0, S * K + 1, K), np.full(D, 0.01))
    pdfs = rng.integers(0, S, T)
    component = K * pdfs + (rng.random(T) > 0.3)
    expected = means[component] + np.sqrt(variances[component]) * rng.standard_normal((T, D))
    matrix = np.eye(D, D + 1) + spread * rng.standard_normal((D, D + 1))
    heard = (expected - matrix[:, -1]) @ np.linalg.inv(matrix[:, :-1]).T
    return mixtures, heard.astype(np.float32), pdfs, matrix


def dense_log_likelihood(
    mixtures: Mixtures, frames: npt.NDArray[np.float32], pdfs: npt.NDArray[np.int64], matrix: Float64
) -> float:
    """Log-likelihood of untouched frames under Gaussians with full covariances, which are the mixtures mapped back."""
    back = np.linalg.inv(matrix[:, :-1])
    total = 0.0
    for x, pdf in zip(frames.astype(np.float64), pdfs, strict=True):
        terms = []
        for g in range(mixtures.first[pdf], mixtures.first[pdf + 1]):
            mean = back @ (mixtures.means[g] - matrix[:, -1])
            covariance = back @ np.diag(mixtures.variances[g]) @ back.T
            apart = x - mean
            exponent = apart @ np.linalg.solve(covariance, apart)
            terms.append(
                np.log(mixtures.weights[g])
                - 0.5 * (exponent + np.linalg.slogdet(covariance)[1] + D * np.log(2 * np.pi))
            )
        total += float(np.logaddexp.reduce(terms))
    return total


def test_likelihood_with_a_transform_is_that_of_the_transformed_model() -> None:
    mixtures, frames, pdfs, matrix = speech()
    few, some = frames[:200], pdfs[:200]
    _, found = accumulate(mixtures, few, some, np.ones(200), Transform(matrix))
    assert found == pytest.approx(dense_log_likelihood(mixtures, few, some, matrix), rel=1e-6)


def test_every_round_of_em_raises_the_likelihood() -> None:
    mixtures, frames, pdfs, _ = speech(spread=0.3)
    found = estimate(mixtures, frames, pdfs, np.ones(T), rounds=8)
    gains = np.diff(found.objective)
    assert len(gains) == 8
    assert gains.min() > -1e-6  # of rounding, where it has converged
    assert (gains[:3] > 1e-5).all()


def test_every_row_raises_the_auxiliary_function() -> None:
    mixtures, frames, pdfs, _ = speech(seed=3)
    sums, _ = accumulate(mixtures, frames, pdfs, np.ones(T), Transform.identity(D))
    values, transform = [], Transform.identity(D)
    for _ in range(6):
        values.append(sums.objective(transform.matrix))
        transform = updated(sums, transform, sweeps=1)
    assert np.diff(values).min() > -1e-6 * abs(values[0])
    nearby = stream(0, "nearby").standard_normal((20, D, D + 1))
    best = sums.objective(updated(sums, transform, sweeps=50).matrix)
    assert all(sums.objective(transform.matrix + 0.01 * step) < best for step in nearby)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_known_map_is_recovered(seed: int) -> None:
    mixtures, frames, pdfs, matrix = speech(seed)
    found = estimate(mixtures, frames, pdfs, np.ones(T), rounds=12)
    assert np.abs(found.transform.matrix - matrix).max() < 0.05
    assert np.abs(found.transform.matrix - np.eye(D, D + 1)).max() > 0.2


def test_weights_count_as_repetitions() -> None:
    mixtures, frames, pdfs, _ = speech()
    half = len(frames) // 2
    twice = np.concatenate([np.ones(half), np.zeros(len(frames) - half)])
    by_weight = estimate(mixtures, frames, pdfs, twice)
    alone = estimate(mixtures, frames[:half], pdfs[:half], np.ones(half))
    unlabelled = estimate(mixtures, frames, np.where(twice > 0, pdfs, -1), np.ones(len(frames)))
    for other in (alone, unlabelled):
        np.testing.assert_allclose(by_weight.transform.matrix, other.transform.matrix, atol=1e-9)


@pytest.mark.parametrize("frames", [0, 30, 199])
def test_little_speech_keeps_the_identity(frames: int) -> None:
    mixtures, heard, pdfs, _ = speech()
    found = estimate(mixtures, heard[:frames], pdfs[:frames], np.ones(frames), least=200)
    assert_identity(found)
    assert found.frames == frames


def test_the_identity_fits_expected_frames_best() -> None:
    """They are what a large sample of the mixtures comes to."""
    mixtures, _, _, _ = speech(seed=1)
    counts = np.arange(1.0, S * K + 1)
    sums = expected(mixtures, counts)
    np.testing.assert_allclose(updated(sums, Transform.identity(D)).matrix, np.eye(D, D + 1), atol=1e-9)
    rng, drawn = stream(0, "drawn"), np.repeat(np.arange(S * K), 20_000)
    frames = mixtures.means[drawn] + np.sqrt(mixtures.variances[drawn]) * rng.standard_normal((len(drawn), D))
    single = Mixtures(np.ones(S * K), mixtures.means, mixtures.variances, np.arange(S * K + 1), mixtures.floor)
    found, _ = accumulate(single, frames.astype(np.float32), drawn, counts[drawn] / 20_000, Transform.identity(D))
    np.testing.assert_allclose(sums.G, found.G, rtol=0.05, atol=0.02 * np.abs(found.G).max())
    np.testing.assert_allclose(sums.k, found.k, rtol=0.05, atol=0.02 * np.abs(found.k).max())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expected_frames_help_where_there_is_little_speech(seed: int) -> None:
    """Speech that follows fits better with them than without, and than as it is; beside much they do not matter."""
    mixtures, frames, pdfs, _ = speech(seed, spread=0.1)
    few, ones = 12, np.ones(T)

    def fit(found: Estimate) -> float:
        return accumulate(mixtures, frames[few:], pdfs[few:], ones[few:], found.transform)[1]

    little = [estimate(mixtures, frames[:few], pdfs[:few], ones[:few], least=1, prior=prior) for prior in (0, 20)]
    nothing = estimate(mixtures, frames[:0], pdfs[:0], ones[:0], least=1, prior=20)
    assert_identity(nothing)
    assert fit(little[1]) > max(fit(little[0]), fit(nothing))
    much = [estimate(mixtures, frames, pdfs, ones, prior=prior).transform.matrix for prior in (0, 20)]
    np.testing.assert_allclose(much[0], much[1], atol=0.02)


def test_frames_that_never_change_keep_the_identity() -> None:
    mixtures, heard, pdfs, _ = speech()
    assert_identity(estimate(mixtures, np.zeros_like(heard), pdfs, np.ones(T)))


def assert_identity(found: Estimate) -> None:
    assert (found.transform.matrix == np.eye(D, D + 1)).all()
    assert found.objective == ()
