"""Vectors of speakers: posteriors against a dense reference, EM, and speakers that are told apart."""

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.core.streams import stream
from roundelay_speech.adapt.ivector import COUNT_SCALE, MOST_COUNT, Counts, Extractor, added, counted
from roundelay_speech.hmm.gmm import Mixtures

Float64 = npt.NDArray[np.float64]
M, D, R = 8, 4, 3


def background(seed: int = 0) -> Mixtures:
    rng = stream(seed, "background")
    return Mixtures(np.full(M, 1 / M), 4 * rng.standard_normal((M, D)), np.ones((M, D)), np.array([0, M]), np.ones(D))


def said(speaker: Float64, loadings: Float64, frames: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Frames of a speaker with this vector (R,)."""
    component = rng.integers(0, M, frames)
    shift = np.einsum("tdr,r->td", loadings[component], speaker)
    return np.asarray(background().means[component] + shift + rng.standard_normal((frames, D)), np.float32)


def corpus(utterances: int, seed: int = 0) -> tuple[Counts, Float64]:
    rng = stream(seed, "speakers")
    loadings = stream(0, "loadings").standard_normal((M, D, R))
    speakers = rng.standard_normal((utterances, R))
    every = [added([counted(background(), said(w, loadings, 250, rng), np.ones(250))]) for w in speakers]
    return Counts(np.stack([n for n, _ in every]), np.stack([sums for _, sums in every])), speakers


@pytest.fixture(scope="module")
def trained() -> Extractor:
    counts, _ = corpus(200)
    extractor = Extractor.begun(background(), R, stream(0, "start"))
    for _ in range(8):
        extractor = extractor.reestimated(counts)
    return extractor


def test_posterior_is_that_of_the_joint_gaussian() -> None:
    """Dense, without any of the algebra: w and all means together are one Gaussian, conditioned on what was counted."""
    rng = stream(1, "dense")
    extractor = Extractor(rng.standard_normal((M, D)), rng.uniform(0.5, 2.0, (M, D)), rng.standard_normal((M, D, R)))
    n, sums = rng.uniform(0.2, 5.0, (1, M)), rng.standard_normal((1, M, D))
    mean, covariance = extractor.posterior(Counts(n, sums))
    # The mean of n frames of component c is N(m + T w, V / n).
    loading = extractor.loadings.reshape(M * D, R)
    noise = (extractor.variances / n[0, :, None]).reshape(-1)
    joint = loading @ loading.T + np.diag(noise)
    seen = (sums[0] / n[0, :, None] - extractor.means).reshape(-1)
    gain = loading.T @ np.linalg.inv(joint)
    np.testing.assert_allclose(mean[0], gain @ seen, atol=1e-9)
    np.testing.assert_allclose(covariance[0], np.eye(R) - gain @ loading, atol=1e-9)


def log_evidence(extractor: Extractor, counts: Counts) -> float:
    """Log-likelihood of the counted frames with w integrated out, in nats, but for a constant that depends
    on the frames and the variances alone."""
    mean, covariance = extractor.posterior(counts)
    centred = counts.sums - counts.n[:, :, None] * extractor.means
    linear = np.einsum("ucd,cdr->ur", centred, extractor.loadings / extractor.variances[:, :, None], optimize=True)
    determinants = np.linalg.slogdet(covariance)[1]
    centre = extractor.means / extractor.variances  # with w = 0
    without = (counts.sums.sum(0) * centre).sum() - 0.5 * (counts.n.sum(0)[:, None] * extractor.means * centre).sum()
    return float(without + 0.5 * (linear * mean).sum() + 0.5 * determinants.sum())


def test_evidence_is_that_of_the_joint_gaussian() -> None:
    rng = stream(2, "dense")
    variances = rng.uniform(0.5, 2.0, (M, D))
    counts = Counts(rng.uniform(0.2, 5.0, (1, M)), rng.standard_normal((1, M, D)))

    def dense(extractor: Extractor) -> float:
        loading = extractor.loadings.reshape(M * D, R)
        joint = loading @ loading.T + np.diag((variances / counts.n[0, :, None]).reshape(-1))
        seen = (counts.sums[0] / counts.n[0, :, None] - extractor.means).reshape(-1)
        return float(-0.5 * (seen @ np.linalg.solve(joint, seen) + np.linalg.slogdet(joint)[1]))

    one, other = (Extractor(rng.standard_normal((M, D)), variances, rng.standard_normal((M, D, R))) for _ in range(2))
    expected = dense(one) - dense(other)
    assert log_evidence(one, counts) - log_evidence(other, counts) == pytest.approx(expected, rel=1e-9)


def test_every_round_of_em_raises_the_evidence() -> None:
    counts, _ = corpus(60, seed=5)
    extractor, values = Extractor.begun(background(), R, stream(0, "start")), []
    for _ in range(8):
        values.append(log_evidence(extractor, counts))
        extractor = extractor.reestimated(counts)
    assert np.diff(values).min() > 0


def test_vectors_have_mean_0_and_variance_1(trained: Extractor) -> None:
    counts, _ = corpus(200)
    mean, covariance = trained.posterior(counts)
    second = covariance.mean(0) + mean.T @ mean / len(mean)
    assert np.abs(mean.mean(0)).max() < 0.1
    assert np.abs(second - np.eye(R)).max() < 0.1


def test_halves_of_a_speaker_are_together_and_speakers_apart(trained: Extractor) -> None:
    rng, loadings = stream(9, "halves"), stream(0, "loadings").standard_normal((M, D, R))
    found = []
    for speaker in rng.standard_normal((12, R)):
        halves = [counted(background(), said(speaker, loadings, 300, rng), np.ones(300)) for _ in range(2)]
        n, sums = (np.stack([half[i] for half in halves]) for i in range(2))
        found.append(trained.vectors(Counts(n, sums)))
    pairs = np.stack(found)  # (speakers, halves, R)
    apart = np.linalg.norm(pairs[:, None, 0] - pairs[None, :, 1], axis=2)
    assert (apart.argmin(1) == np.arange(len(pairs))).all()
    others = apart[~np.eye(len(pairs), dtype=bool)]
    assert np.diag(apart).max() < 0.5 * np.median(others)


def test_vectors_of_two_utterances_together_are_those_of_one_twice_as_long() -> None:
    rng = stream(4, "together")
    frames = said(rng.standard_normal(R), stream(0, "loadings").standard_normal((M, D, R)), 200, rng)
    whole = added([counted(background(), frames, np.ones(200))])
    parts = added([counted(background(), part, np.ones(100)) for part in (frames[:100], frames[100:])])
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    assert whole[0].sum() == pytest.approx(200 * COUNT_SCALE)


def test_more_of_the_same_counts_up_to_a_bound() -> None:
    n, sums = np.full(M, 2 * MOST_COUNT), np.ones((M, D))
    bounded, scaled = added([(n, sums)])
    assert bounded.sum() == pytest.approx(MOST_COUNT)
    np.testing.assert_allclose(scaled / bounded[:, None], sums / n[:, None])


def test_silence_alone_gives_the_vector_of_nobody(trained: Extractor) -> None:
    n, sums = added([counted(background(), np.ones((50, D), np.float32), np.zeros(50))])
    assert (trained.vectors(Counts(n[None], sums[None])) == 0).all()
