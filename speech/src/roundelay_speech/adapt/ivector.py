"""i-vectors: a speaker, or an utterance, as one short vector (Dehak et al. 2011; Kenny, Boulianne and Dumouchel 2005).

A mixture of M Gaussians describes all speech (the universal background model). The means of one speaker differ from its
means m_c by a vector w that all components share,

    x_t ~ sum_c u_c N(m_c + T_c w, V_c),    w ~ N(0, 1)

With n_c = sum_t g_c(t) and f_c = sum_t g_c(t) (x_t - m_c), g_c(t) being the posterior of component c, w is normal given
the frames, and its mean is the i-vector:

    L = 1 + sum_c n_c T_c' V_c^-1 T_c,    E[w] = L^-1 sum_c T_c' V_c^-1 f_c,    cov w = L^-1

EM over many utterances u: T_c = (sum_u f_c E[w]') (sum_u n_c E[w w'])^-1, and then, so that w has mean 0 and variance 1
over them (minimum divergence), T_c <- T_c K and m_c <- m_c + T_c mean(w), where K K' is the covariance of w.

Frames are not independent: counts are scaled down, and bounded, since more of the same recording says little new.

Legend: T frames, D dimensions, M components, R dimensions of w, U utterances.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roundelay_speech.data.arrays import Float32, Float64
from roundelay_speech.hmm.gmm import Mixtures

COUNT_SCALE = 0.1  # frames follow each other: ten of them say as much as one alone would
MOST_COUNT = 100.0  # scaled frames; later ones say nothing new
VECTORS_AT_ONCE = 256  # utterances whose posteriors are held together


@dataclass(frozen=True, eq=False)
class Counts:
    """The statistics of utterances for vectors: counts n (U, M) and sums of frames (U, M, D), not centred."""

    n: Float64
    sums: Float64


def counted(background: Mixtures, frames: Float32, weights: Float64) -> tuple[Float64, Float64]:
    """Return n (M,) and sums of frames (M, D) of one utterance, scaled; `weights` (T,) are 0 for frames that do not
    count."""
    rows = weights > 0
    if not rows.any():
        return np.zeros(background.components), np.zeros(background.means.shape)
    x = frames[rows].astype(np.float64)
    means, variances = background.means, background.variances
    offset = np.log(background.weights) - 0.5 * (np.log(variances) + means * means / variances).sum(1)
    scores = x @ (means / variances).T - 0.5 * (x * x) @ (1 / variances).T + offset
    share = np.exp(scores - scores.max(1, keepdims=True))
    share *= (COUNT_SCALE * weights[rows] / share.sum(1))[:, None]
    return share.sum(0), share.T @ x


def added(some: Sequence[tuple[Float64, Float64]]) -> tuple[Float64, Float64]:
    """Add the counts of several utterances of one speaker, bounded in total."""
    n, sums = sum(one for one, _ in some), sum(other for _, other in some)
    assert not isinstance(n, int)
    assert not isinstance(sums, int)
    factor = min(1.0, MOST_COUNT / max(float(n.sum()), 1e-10))
    return factor * n, factor * sums


@dataclass(frozen=True, eq=False)
class Extractor:
    """An i-vector extractor: means, variances and loadings of its Gaussians."""

    means: Float64  # (M, D), m
    variances: Float64  # (M, D), the diagonals of V
    loadings: Float64  # (M, D, R), T

    @classmethod
    def begun(cls, background: Mixtures, dimension: int, rng: np.random.Generator) -> "Extractor":
        """Return an extractor with random loadings, a tenth of a standard deviation in all directions."""
        spread = np.sqrt(background.variances)[:, :, None]
        drawn = rng.standard_normal((*background.means.shape, dimension))
        return cls(background.means, background.variances, 0.1 * spread * drawn)

    def posterior(self, counts: Counts) -> tuple[Float64, Float64]:
        """Return the mean (U, R) and covariance (U, R, R) of w, given the counts of utterances."""
        weighted = self.loadings / self.variances[:, :, None]  # V^-1 T
        components, _, size = weighted.shape
        products = np.einsum("cdr,cds->crs", weighted, self.loadings, optimize=True)
        precision = (counts.n @ products.reshape(components, -1)).reshape(-1, size, size) + np.eye(size)
        centred = counts.sums - counts.n[:, :, None] * self.means
        linear = centred.reshape(len(centred), -1) @ weighted.reshape(-1, size)
        covariance = np.linalg.inv(precision)
        return np.einsum("urs,us->ur", covariance, linear), covariance

    def vectors(self, counts: Counts) -> Float64:
        """Return the i-vectors (U, R)."""
        return self.posterior(counts)[0]

    def reestimated(self, counts: Counts) -> "Extractor":
        """Return the extractor after one round of EM, minimum divergence included."""
        components, _, size = self.loadings.shape
        second = np.zeros((components, size * size))
        first = np.zeros((components, self.means.shape[1], size))
        spread, centre = np.zeros((size, size)), np.zeros(size)
        utterances = len(counts.n)
        for begin in range(0, utterances, VECTORS_AT_ONCE):
            part = Counts(counts.n[begin : begin + VECTORS_AT_ONCE], counts.sums[begin : begin + VECTORS_AT_ONCE])
            mean, covariance = self.posterior(part)
            moment = covariance + mean[:, :, None] * mean[:, None, :]
            second += part.n.T @ moment.reshape(len(mean), -1)
            first += np.einsum("ucd,ur->cdr", part.sums - part.n[:, :, None] * self.means, mean, optimize=True)
            spread, centre = spread + moment.sum(0), centre + mean.sum(0)
        centre /= utterances
        heard = counts.n.sum(0) > 1e-8  # a component without frames keeps its loadings
        loadings = self.loadings.copy()
        inverse = np.linalg.inv(second.reshape(components, size, size)[heard])
        loadings[heard] = np.einsum("cdr,crs->cds", first[heard], inverse, optimize=True)
        means = self.means + loadings @ centre
        root = np.linalg.cholesky(spread / utterances - np.outer(centre, centre))
        return Extractor(means, self.variances, loadings @ root)
