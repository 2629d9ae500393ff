"""Constrained maximum likelihood linear regression (fMLLR): an affine map of a speaker's features (Gales 1998).

A speaker's frames are moved to where mixtures of diagonal Gaussians expect them, y = A x + b. With W = [A b] and
z = [x 1], the auxiliary function of EM is, row by row,

    Q(W) = beta log |det A| - 1/2 sum_i (w_i G_i w_i' - 2 w_i k_i)
    G_i = sum_m 1/v_mi sum_t g_m(t) z_t z_t',    k_i = sum_m m_mi/v_mi sum_t g_m(t) z_t,    beta = sum_mt g_m(t)

where g_m(t) is the posterior of component m among those of the frame's pdf. Row i is updated with the others fixed,
where p_i is the row of cofactors of A with a 0 behind it (any scale will do):

    w_i = (a p_i + k_i) G_i^-1,    a^2 p_i G_i^-1 p_i' + a p_i G_i^-1 k_i - beta = 0

Of the two roots the one with the larger Q is taken. Each update raises Q or leaves it; so each round of EM raises
sum_t log p(A x_t + b) + log |det A|, which is the log-likelihood of x under the mixtures mapped back.

Legend: T frames, D dimensions.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from roundelay_speech.data.arrays import Float32, Float64, Ints
from roundelay_speech.hmm.gmm import Mixtures

SWEEPS = 10  # over all rows, in each round of EM


@dataclass(frozen=True, eq=False)
class Transform:
    """An affine map of features: x -> A x + b."""

    matrix: Float64  # (D, D + 1): [A b]

    @classmethod
    def identity(cls, dimension: int) -> "Transform":
        return cls(np.eye(dimension, dimension + 1))

    @property
    def log_det(self) -> float:
        """log |det A|: the gain of a frame's log-likelihood by the change of its volume."""
        return float(np.linalg.slogdet(self.matrix[:, :-1])[1])

    def __call__(self, frames: Float32) -> Float32:
        """Transform frames, (T, D) -> (T, D)."""
        mapped: Float32 = (frames @ self.matrix[:, :-1].T + self.matrix[:, -1]).astype(np.float32)
        return mapped


@dataclass(frozen=True, eq=False)
class Sums:
    """Statistics of a speaker: beta, G (D, D + 1, D + 1) and k (D, D + 1)."""

    beta: float
    G: Float64
    k: Float64

    def objective(self, matrix: Float64) -> float:
        """Return Q of a transform's matrix (D, D + 1)."""
        quadratic = np.einsum("ij,ijk,ik->", matrix, self.G, matrix) - 2 * (matrix * self.k).sum()
        return float(self.beta * np.linalg.slogdet(matrix[:, :-1])[1] - 0.5 * quadratic)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A speaker's transform."""

    transform: Transform
    frames: float  # sum of the weights of the frames that it was estimated from
    # log-likelihood a frame, log |det A| included, before each round of EM and after the last, in nats; empty where
    # there were too few frames and the transform is the identity.
    objective: tuple[float, ...] = ()


def posteriors(mixtures: Mixtures, frames: Float32, pdf: int) -> tuple[Float64, Float64]:
    """Return the posteriors (T, K) of a pdf's components, and the log-likelihoods (T,) of frames (T, D)."""
    own = slice(mixtures.first[pdf], mixtures.first[pdf + 1])
    means, variances = mixtures.means[own], mixtures.variances[own]
    offset = np.log(mixtures.weights[own]) - 0.5 * (np.log(2 * np.pi * variances) + means * means / variances).sum(1)
    x = frames.astype(np.float64)
    scores = x @ (means / variances).T - 0.5 * (x * x) @ (1 / variances).T + offset
    best = scores.max(1)
    shares = np.exp(scores - best[:, None])
    total = shares.sum(1)
    return shares / total[:, None], best + np.log(total)


def accumulate(
    mixtures: Mixtures, frames: Float32, pdfs: Ints, weights: Float64, transform: Transform, prior: float = 0.0
) -> tuple[Sums, float]:
    """Return statistics of a speaker's frames, and their weighted log-likelihood under a transform, log |det A|
    included.

    Args:
        frames: (T, D) without any transform.
        pdfs: (T,) pdf of each frame; -1 for frames that do not count.
        weights: (T,) weight of each frame, 0 to 1; for silence usually less than 1.
        transform: the transform under which posteriors are computed.
        prior: frames of the same sounds, as the mixtures expect them, that are counted beside the speaker's.
    """
    mapped = transform(frames)
    size = frames.shape[1]
    precision, centre = np.zeros((len(frames), size)), np.zeros((len(frames), size))
    likelihood, counts = 0.0, np.zeros(mixtures.components)
    order = np.argsort(pdfs, kind="stable")
    order = order[(pdfs[order] >= 0) & (weights[order] > 0)]
    bounds = np.flatnonzero(np.diff(pdfs[order], prepend=-2, append=-2))
    for begin, end in itertools.pairwise(bounds):
        rows = order[begin:end]
        pdf = int(pdfs[rows[0]])
        share, found = posteriors(mixtures, mapped[rows], pdf)
        own = slice(mixtures.first[pdf], mixtures.first[pdf + 1])
        inverse = 1 / mixtures.variances[own]
        share *= weights[rows, None]
        counts[own] += share.sum(0)
        precision[rows] = share @ inverse
        centre[rows] = share @ (inverse * mixtures.means[own])
        likelihood += float(weights[rows] @ found)
    beta = float(weights[order].sum())
    z = np.concatenate([frames[order].astype(np.float64), np.ones((len(order), 1))], axis=1)
    precision, centre = precision[order], centre[order]
    sums = Sums(beta, _weighted(z, precision), centre.T @ z)
    if prior:
        more = expected(mixtures, counts * prior / beta)
        sums = Sums(beta + prior, sums.G + more.G, sums.k + more.k)
    return sums, likelihood + beta * transform.log_det


def expected(mixtures: Mixtures, counts: Float64) -> Sums:
    """Return the statistics of frames as mixtures expect them, `counts` (M,) of each component: of all transforms the
    identity fits these best."""
    used = counts > 0
    means, precision = mixtures.means[used], counts[used, None] / mixtures.variances[used]
    z = np.concatenate([means, np.ones((len(means), 1))], axis=1)
    G, diagonal = _weighted(z, precision), np.arange(means.shape[1])
    G[:, diagonal, diagonal] += precision.T @ mixtures.variances[used]
    return Sums(float(counts.sum()), G, (precision * means).T @ z)


def _weighted(z: Float64, precision: Float64) -> Float64:
    """Return G (D, D + 1, D + 1) of vectors z (T, D + 1) with weights (T, D)."""
    return np.stack([(z * column[:, None]).T @ z for column in precision.T])


def updated(sums: Sums, start: Transform, sweeps: int = SWEEPS) -> Transform:
    """Return the transform after `sweeps` updates of every row, from `start`; no update lowers Q."""
    matrix = start.matrix.copy()
    inverse = np.linalg.inv(sums.G)
    for _ in range(sweeps):
        for i in range(len(matrix)):
            # Column i of the inverse is the row of cofactors over the determinant.
            p = np.append(np.linalg.inv(matrix[:, :-1])[:, i], 0.0)
            matrix[i] = _row(p, inverse[i], sums.k[i], sums.beta)
    return Transform(matrix)


def _row(p: Float64, inverse: Float64, k: Float64, beta: float) -> Float64:
    toward = inverse @ p
    square, cross = float(p @ toward), float(k @ toward)
    root = np.sqrt(cross * cross + 4 * square * beta)
    candidates = [(-cross + root) / (2 * square), (-cross - root) / (2 * square)]
    gains = [beta * np.log(abs(a * square + cross)) - 0.5 * a * a * square for a in candidates]
    row: Float64 = candidates[int(np.argmax(gains))] * toward + inverse @ k
    return row


def estimate(
    mixtures: Mixtures,
    frames: Float32,
    pdfs: Ints,
    weights: Float64,
    *,
    rounds: int = 4,
    least: float = 200.0,
    prior: float = 0.0,
) -> Estimate:
    """Return a speaker's transform by rounds of EM, from the identity.

    Args:
        frames, pdfs, weights: as of `accumulate`.
        least: weight of frames below which the estimate is the identity, as it is if G cannot be inverted.
        prior: as of `accumulate`; the less the speaker has said, the nearer to the identity it keeps the estimate.
    """
    size = frames.shape[1]
    transform = Transform.identity(size)
    total = float(weights[pdfs >= 0].sum())
    if total < max(least, 1 if prior else size + 2):
        return Estimate(transform, total)
    objective = []
    try:
        with np.errstate(invalid="ignore"):  # NaN, which is looked for below
            for _ in range(rounds):
                sums, likelihood = accumulate(mixtures, frames, pdfs, weights, transform, prior)
                objective.append(likelihood / total)
                transform = updated(sums, transform)
            objective.append(accumulate(mixtures, frames, pdfs, weights, transform)[1] / total)
    except np.linalg.LinAlgError:  # constant frames, such as digital silence
        return Estimate(Transform.identity(size), total)
    if not objective[-1] >= objective[0]:  # NaN as well: numbers so near to singular that nothing was maximised
        return Estimate(Transform.identity(size), total)
    return Estimate(transform, total, tuple(objective))
