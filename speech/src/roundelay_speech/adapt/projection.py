"""Neighbouring frames projected to few dimensions that tell tied states apart and that diagonal Gaussians can model.

LDA (Haeb-Umbach and Ney 1992): with the covariance W of frames within their tied states and B of the states' means, the
rows of P are the solutions of B v = l W v with the largest l, scaled so that P W P' = 1.

MLLT, or a global semi-tied covariance (Gales 1999): a square matrix A in whose space diagonal covariances fit best.
Of the frames' deviations from their components' means, row by row,

    G_i = sum_m 1/v_mi sum_t g_m(t) (x_t - m_m)(x_t - m_m)',    a_i = c_i G_i^-1 sqrt(beta / (c_i G_i^-1 c_i'))

where c_i is the row of cofactors of A, raises beta log |det A| - 1/2 sum_i a_i G_i a_i'.

Legend: T frames, C cepstra, S = C (2 context + 1) spliced, D dimensions.
"""

import numpy as np
import numpy.typing as npt

from roundelay_speech.adapt.fmllr import posteriors
from roundelay_speech.hmm.gmm import Mixtures, rows_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]

RIDGE = 1e-4  # of the mean variance, added where frames hardly vary
MLLT_SWEEPS = 20
FRAMES_AT_ONCE = 100_000  # frames that are spliced together


def spliced(frames: Float32, offsets: Ints, context: int, rows: Ints | None = None) -> Float32:
    """Return frames between their neighbours, earliest first: (T, C) -> (T, S), or only `rows` of it. The first and
    last frame of an utterance stand for those beyond it; `offsets` are the utterances' first frames, and T."""
    rows = np.arange(len(frames)) if rows is None else rows
    utterance = np.searchsorted(offsets, rows, side="right") - 1
    first, last = offsets[utterance], offsets[utterance + 1] - 1
    shifts = range(-context, context + 1)
    return np.concatenate([frames[np.clip(rows + shift, first, last)] for shift in shifts], axis=1)


def projected(frames: Float32, offsets: Ints, projection: Float64, context: int) -> Float32:
    """Return (T, C) -> (T, D): spliced frames by a projection (D, S + 1), offset last; a few utterances at a time."""
    result = np.empty((len(frames), len(projection)), np.float32)
    matrix, offset = projection[:, :-1].T.astype(np.float32), projection[:, -1].astype(np.float32)
    for begin in range(0, len(frames), FRAMES_AT_ONCE):
        rows = np.arange(begin, min(begin + FRAMES_AT_ONCE, len(frames)))
        result[rows] = spliced(frames, offsets, context, rows) @ matrix + offset
    return result


def discriminant(frames: Float32, classes: Ints, dimension: int) -> Float64:
    """Return the projection (D, S + 1), its last column the offset: mean 0 and variance 1 within classes come out.
    `frames`: (T, S). `classes`: (T,) from 0; -1 for frames that do not count."""
    rows = classes >= 0
    used, label = frames[rows].astype(np.float64), classes[rows]
    mean = used.mean(0)
    counts = np.bincount(label)
    sums = np.zeros((len(counts), used.shape[1]))
    np.add.at(sums, label, used)
    seen = counts > 0
    centres = sums[seen] / counts[seen, None] - mean
    total = used.T @ used / len(used) - np.outer(mean, mean)
    between = (centres * (counts[seen, None] / len(used))).T @ centres
    within = total - between
    within += RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    root = np.linalg.inv(np.linalg.cholesky(within))
    _, vectors = np.linalg.eigh(root @ between @ root.T)  # ascending
    matrix = vectors[:, ::-1][:, :dimension].T @ root
    return np.concatenate([matrix, -(matrix @ mean)[:, None]], axis=1)


def semi_tied(
    mixtures: Mixtures, frames: Float32, pdfs: Ints, sweeps: int = MLLT_SWEEPS
) -> tuple[Float64, list[float]]:
    """Return the matrix A (D, D) for frames (T, D) that an alignment gives to pdfs (T,), -1 for frames of none; and
    what it maximises, a frame, before and after each sweep over its rows."""
    size = frames.shape[1]
    beta, G = 0.0, np.zeros((size, size, size))
    for pdf, rows in enumerate(rows_of(pdfs, mixtures.num_pdfs)):
        if not len(rows):
            continue
        x = frames[rows].astype(np.float64)
        share, _ = posteriors(mixtures, frames[rows], pdf)
        for k, component in enumerate(range(mixtures.first[pdf], mixtures.first[pdf + 1])):
            apart = x - mixtures.means[component]
            spread = (apart * share[:, k, None]).T @ apart
            G += spread[None] / mixtures.variances[component][:, None, None]
        beta += len(rows)
    inverse, matrix = np.linalg.inv(G), np.eye(size)

    def objective() -> float:
        quadratic = np.einsum("ij,ijk,ik->", matrix, G, matrix)
        return float(np.linalg.slogdet(matrix)[1] - 0.5 * quadratic / beta)

    found = [objective()]
    for _ in range(sweeps):
        for i in range(size):
            cofactors = np.linalg.inv(matrix)[:, i]
            toward = inverse[i] @ cofactors
            matrix[i] = toward * np.sqrt(beta / (cofactors @ toward))
        found.append(objective())
    return matrix, found
