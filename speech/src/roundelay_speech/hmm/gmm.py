"""Diagonal Gaussian mixtures, one per pdf, trained by EM on frames that an alignment has given to pdfs.

With the alignment fixed each mixture is a problem of its own (Young et al., The HTK Book, chapter 8):

    r_tk = w_k N(x_t; m_k, v_k) / sum_j w_j N(x_t; m_j, v_j)                       frames t of this pdf, components k
    w_k = sum_t r_tk / T,   m_k = sum_t r_tk x_t / sum_t r_tk,   v_k = sum_t r_tk x_t^2 / sum_t r_tk - m_k^2

log N is linear in (x, x^2), so all components of all pdfs over many frames are one matrix product.

Features are 13 cepstra of the stored filterbank, normalised by speaker, with deltas: diagonal Gaussians want features
that are little correlated, which neighbouring filters are not; the cosine transform sees to that (Davis and Mermelstein
1980). Features that are no filterbank (cepstra, fMLLR, bottleneck features) were made so elsewhere: of those the
first 13 are taken as they are.

Legend: T frames, D dimensions, S pdfs, G components of all pdfs together, F filters, C = 13 cepstra, or as many as
there are features.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay_speech.data.arrays import BROKEN, Float32, Float64, Ints
from roundelay_speech.features.store import FeatureStore

FEW_FRAMES = 10  # a pdf with fewer is not re-estimated
LEAST_FRAMES = 3.0  # a component that claims fewer frames is dropped
SPLIT_FRAMES = 20  # a pdf gets another component only with this many frames for each it has
RELATIVE_VARIANCE_FLOOR = 0.01  # of the variance of all frames
CHUNK = 256  # frames scored at a time: their scores stay in cache


@dataclass(frozen=True, eq=False)
class Mixtures:
    """The mixtures of all pdfs: components of pdf s are first[s] to first[s + 1]."""

    weights: Float64  # (G,)
    means: Float64  # (G, D)
    variances: Float64  # (G, D)
    first: npt.NDArray[np.int64]  # (S + 1,)
    floor: Float64  # (D,) smallest variance allowed

    @property
    def num_pdfs(self) -> int:
        return len(self.first) - 1

    @property
    def components(self) -> int:
        return len(self.weights)

    @cached_property
    def _linear(self) -> Float32:
        return _linear_form(self.weights, self.means, self.variances)

    def loglikes(self, frames: Float32, pdfs: Ints | None = None) -> Float32:
        """Return the log-likelihoods (T, S) of frames (T, D), or only those of `pdfs`, (T, len(pdfs))."""
        starts, ends = self.first[:-1], self.first[1:]
        if pdfs is not None:
            starts, ends = starts[pdfs], ends[pdfs]
        sizes = ends - starts
        # Mixtures of one size side by side: they are then one array of three axes, whose reductions numpy does at the
        # speed of memory, which reduceat does not reach.
        order = np.argsort(sizes, kind="stable")
        place = np.argsort(order, kind="stable")
        starts, ordered = starts[order], sizes[order]
        bounds = np.cumsum(ordered) - ordered
        rows = self._linear[np.repeat(starts - bounds, ordered) + np.arange(int(ordered.sum()))]
        size, first, count = np.unique(ordered, return_index=True, return_counts=True)
        result = np.empty((len(frames), len(sizes)), np.float32)
        for t in range(0, len(frames), CHUNK):
            scores = rows @ _moments(frames[t : t + CHUNK]).T
            total = np.empty((len(sizes), scores.shape[1]), np.float32)
            for k, begin, number in zip(size, first, count, strict=True):
                block = scores[bounds[begin] : bounds[begin] + k * number].reshape(number, k, -1)
                total[begin : begin + number] = _log_sum(block)
            result[t : t + CHUNK] = total[place].T
        return result


def _log_sum(scores: Float32) -> Float32:
    """Return log sum exp over the middle axis, (S, K, T) -> (S, T); overwrites its argument."""
    if scores.shape[1] == 1:
        return scores[:, 0]
    best: Float32 = scores.max(1)
    scores -= best[:, None]
    best += np.log(np.exp(scores, out=scores).sum(1))
    return best


def _moments(frames: Float32) -> Float32:
    """Return the moments of frames, (T, 2 D + 1): frames, their squares, and ones."""
    return np.concatenate([frames, frames * frames, np.ones((len(frames), 1), np.float32)], axis=1)


def _linear_form(weights: Float64, means: Float64, variances: Float64) -> Float32:
    """Return the matrix (G, 2 D + 1) whose product with a frame's moments is log w N(x) of every component."""
    offset = np.log(weights) - 0.5 * (np.log(2 * np.pi * variances) + means * means / variances).sum(1)
    return np.concatenate([means / variances, -0.5 / variances, offset[:, None]], axis=1).astype(np.float32)


def single_gaussians(frames: Float32, pdfs: Ints, num_pdfs: int) -> Mixtures:
    """Return one Gaussian per pdf. A pdf with few frames gets the variance of all frames, one without any also their
    mean. `pdfs` (T,) is -1 for frames of no pdf, which do not count among "all frames"."""
    used = frames[pdfs >= 0]
    mean, variance = used.mean(0, dtype=np.float64), used.var(0, dtype=np.float64)
    floor = RELATIVE_VARIANCE_FLOOR * variance
    means, variances = np.tile(mean, (num_pdfs, 1)), np.tile(variance, (num_pdfs, 1))
    for pdf, rows in enumerate(rows_of(pdfs, num_pdfs)):
        if len(rows):
            own = frames[rows].astype(np.float64)
            means[pdf] = own.mean(0)
            if len(rows) >= FEW_FRAMES:
                variances[pdf] = np.maximum(own.var(0), floor)
    return Mixtures(np.ones(num_pdfs), means, variances, np.arange(num_pdfs + 1), floor)


Part = tuple[Float64, Float64, Float64]
"""Weights, means and variances of one pdf."""


def reestimate(mixtures: Mixtures, frames: Float32, pdfs: Ints, rounds: int = 2) -> Mixtures:
    """Return the mixtures after some rounds of EM on the frames (T, D) of each pdf; `pdfs` (T,) is -1 for frames of no
    pdf."""
    rows = rows_of(pdfs, mixtures.num_pdfs)
    return joined(reestimate_some(mixtures, frames, rows, range(mixtures.num_pdfs), rounds), mixtures.floor)


def reestimate_some(
    mixtures: Mixtures, frames: Float32, rows: Sequence[Ints], some: range, rounds: int = 2
) -> list[Part]:
    """Run rounds of EM for the pdfs in `some` alone, which are independent of others. `rows` has the frames of each
    pdf, as from `rows_of`."""
    parts = []
    for pdf in some:
        own = slice(mixtures.first[pdf], mixtures.first[pdf + 1])
        part = mixtures.weights[own], mixtures.means[own], mixtures.variances[own]
        if len(rows[pdf]) >= FEW_FRAMES:
            moments = _moments(frames[rows[pdf]])
            for _ in range(rounds):
                part = _em(part, moments, mixtures.floor)
        parts.append(part)
    return parts


def _em(part: Part, moments: Float32, floor: Float64) -> Part:
    """Run one round of EM for one pdf, on its frames' `moments`, as from `_moments`."""
    scores = moments @ _linear_form(*part).T
    scores -= scores.max(1, keepdims=True)
    posteriors = np.exp(scores, out=scores)
    posteriors /= posteriors.sum(1, keepdims=True)
    frames = posteriors.sum(0, dtype=np.float64)
    alive = frames > LEAST_FRAMES
    if not alive.any():
        return part
    frames = frames[alive]
    average = (posteriors[:, alive].T @ moments).astype(np.float64) / frames[:, None]
    means, squares = np.split(average[:, :-1], 2, axis=1)
    return frames / frames.sum(), means, np.maximum(squares - means * means, floor)


def split(mixtures: Mixtures, frames: Ints, components: int, rng: np.random.Generator, power: float = 0.25) -> Mixtures:
    """Split heavy components, mean +- 0.2 standard deviations, until there are about `components` of them.

    Pdfs share the components in proportion to (frames of the pdf) ** power: common sounds get more, but not all (as
    Kaldi's gmm-est --power). `frames` (S,) counts the frames of each pdf.
    """
    share = frames.astype(np.float64) ** power
    wanted = np.maximum(1, np.round(components * share / share.sum()))
    parts = []
    for pdf in range(mixtures.num_pdfs):
        own = slice(mixtures.first[pdf], mixtures.first[pdf + 1])
        w, m, v = mixtures.weights[own], mixtures.means[own], mixtures.variances[own]
        while len(w) < wanted[pdf] and frames[pdf] > SPLIT_FRAMES * len(w):
            heavy = int(w.argmax())
            step = 0.2 * np.sqrt(v[heavy]) * rng.standard_normal(m.shape[1])
            w = np.append(w, w[heavy] / 2)
            w[heavy] /= 2
            m = np.vstack([m, m[heavy] + step])
            m[heavy] -= step
            v = np.vstack([v, v[heavy]])
        parts.append((w, m, v))
    return joined(parts, mixtures.floor)


def joined(parts: Sequence[Part], floor: Float64) -> Mixtures:
    """Join the parts of all pdfs, in order, to mixtures."""
    weights, means, variances = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return Mixtures(weights, means, variances, np.cumsum([0, *(len(part[0]) for part in parts)]), floor)


def rows_of(pdfs: Ints, num_pdfs: int) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of the frames of each pdf."""
    order = np.argsort(pdfs, kind="stable")
    bounds = np.searchsorted(pdfs[order], np.arange(num_pdfs + 1))
    return [order[a:b] for a, b in itertools.pairwise(bounds)]


def save_mixtures(path: Path, mixtures: Mixtures) -> None:
    """Write mixtures as an .npz file."""
    with atomic_write(path) as file:
        np.savez(
            file,
            weights=mixtures.weights,
            means=mixtures.means,
            variances=mixtures.variances,
            first=mixtures.first,
            floor=mixtures.floor,
        )


def load_mixtures(path: Path) -> Mixtures:
    """Read the file of `save_mixtures`.

    Raises:
        UserError: the file is missing or broken.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            fields = {name: file[name] for name in ("weights", "means", "variances", "first", "floor")}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. `roundelay align` writes it.") from None
    except BROKEN as error:
        raise UserError(f"{path}: broken mixtures ({error}). Delete the folder and align again.") from error
    return Mixtures(**fields)


CEPSTRA = 13
LIFTER = 22
DELTA_WINDOW = 2  # frames to either side
STD_FLOOR = 1e-5


def cepstral_matrix(filters: int) -> Float32:
    """Return the matrix (F, C) from filterbanks to cepstra: the orthonormal type-2 cosine transform, times 1 + L/2
    sin(pi n / L), so that all cepstra weigh alike."""
    n = np.arange(CEPSTRA)
    basis: npt.NDArray[np.float64] = np.sqrt(2 / filters) * np.cos(
        np.pi * n * (np.arange(filters)[:, None] + 0.5) / filters
    )
    basis[:, 0] /= np.sqrt(2)
    lift: npt.NDArray[np.float64] = 1 + LIFTER / 2 * np.sin(np.pi * n / LIFTER)
    return (basis * lift).astype(np.float32)


def deltas(frames: Float32, window: int = DELTA_WINDOW) -> Float32:
    """Return the deltas of frames, (T, C) -> (T, C): slopes over 2 window + 1 frames by linear regression; edge frames
    are repeated."""
    padded = np.pad(frames, ((window, window), (0, 0)), mode="edge")
    total = len(frames)
    slope = np.zeros_like(frames)
    for i in range(1, window + 1):
        slope += np.float32(i) * (padded[window + i : window + i + total] - padded[window - i : window - i + total])
    slope /= np.float32(2 * sum(i * i for i in range(1, window + 1)))
    return slope


def fill_deltas(frames: Float32, store: FeatureStore) -> Float32:
    """Fill frames (T, 3 C), whose first third is given, with its deltas and second deltas, utterance by utterance;
    return them."""
    width = frames.shape[1] // 3
    for start, end in itertools.pairwise(store.offsets):
        if end > start:
            first = deltas(frames[start:end, :width])
            frames[start:end, width : 2 * width] = first
            frames[start:end, 2 * width :] = deltas(first)
    return frames


def all_cepstra(store: FeatureStore) -> Float32:
    """Return (T, 3 C): cepstra with zero mean and unit variance per speaker, their deltas and second deltas.

    Frames are in the store's order; deltas do not look across utterances.
    """
    store.must_be_whole("cepstra are normalised over")
    if any(part.filterbank for part in store.parts):
        columns = store.filterbank()
        plain = store.array[:, columns] @ cepstral_matrix(columns.stop - columns.start)
    else:
        plain = store.array[:, : min(store.parts[0].width, CEPSTRA)]
    width = plain.shape[1]
    speakers = store.frame_speakers
    counts = np.maximum(np.bincount(speakers, minlength=len(store.speakers.names)), 1)

    def by_speaker(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.bincount(speakers, values, minlength=len(counts)) / counts

    result = np.empty((len(plain), 3 * width), np.float32)
    for c in range(width):
        column = plain[:, c].astype(np.float64)
        column -= by_speaker(column)[speakers]
        column /= np.sqrt(by_speaker(column * column))[speakers] + STD_FLOOR
        result[:, c] = column
    return fill_deltas(result, store)
