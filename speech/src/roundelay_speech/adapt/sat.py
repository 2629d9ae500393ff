"""Speaker adaptive training: mixtures and speakers' transforms estimated in turn (Anastasakos et al. 1996; Gales 1998).

1. LDA and MLLT project spliced cepstra to few dimensions (projection).
2. Mixtures of the tied states are trained on them, of all speakers as they are.
3. By turns: a transform for each training speaker, given the mixtures; mixtures, given the transformed frames.
4. Mixtures of all speakers as they are once more, by labels of the adapted ones: for a first pass over new speakers.

Labels are those of an alignment, renewed by the mixtures as they get better.

Legend: T frames of all utterances, C cepstra, S spliced, D dimensions.

Neighbouring frames projected to few dimensions that tell tied states apart and that diagonal Gaussians can model.

LDA (Haeb-Umbach and Ney 1992): with the covariance W of frames within their tied states and B of the states' means, the
rows of P are the solutions of B v = l W v with the largest l, scaled so that P W P' = 1.

MLLT, or a global semi-tied covariance (Gales 1999): a square matrix A in whose space diagonal covariances fit best.
Of the frames' deviations from their components' means, row by row,

    G_i = sum_m 1/v_mi sum_t g_m(t) (x_t - m_m)(x_t - m_m)',    a_i = c_i G_i^-1 sqrt(beta / (c_i G_i^-1 c_i'))

where c_i is the row of cofactors of A, raises beta log |det A| - 1/2 sum_i a_i G_i a_i'.

Legend: T frames, C cepstra, S = C (2 context + 1) spliced, D dimensions.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.streams import stream
from roundelay_speech.adapt.estimating import Groups, Workplace, speaker_transforms, transformed
from roundelay_speech.adapt.fmllr import Estimate, posteriors
from roundelay_speech.data.arrays import Float32, Float64, Ints, save_array
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.flat_start import AlignConfig, EmTraining
from roundelay_speech.hmm.gmm import CEPSTRA, Mixtures, all_cepstra, load_mixtures, rows_of
from roundelay_speech.hmm.passes import Material, aligners
from roundelay_speech.hmm.task import Labels, Task
from roundelay_speech.hmm.tree import DecisionTree
from roundelay_speech.lexicon.lexicon import Lexicon

RIDGE = 1e-4  # of the mean variance, added where frames hardly vary
MLLT_SWEEPS = 20
FRAMES_AT_ONCE = 100_000  # frames that are spliced together


def spliced(frames: Float32, offsets: Ints, context: int, rows: Ints | None = None) -> Float32:
    """Put each frame between its neighbours, earliest first: (T, C) -> (T, S), or only its `rows`. The first and last
    frame of an utterance are repeated beyond its ends; `offsets` are the utterances' first frames, and T."""
    rows = np.arange(len(frames)) if rows is None else rows
    utterance = np.searchsorted(offsets, rows, side="right") - 1
    first, last = offsets[utterance], offsets[utterance + 1] - 1
    shifts = range(-context, context + 1)
    return np.concatenate([frames[np.clip(rows + shift, first, last)] for shift in shifts], axis=1)


def projected(frames: Float32, offsets: Ints, projection: Float64, context: int) -> Float32:
    """Splice and project frames, (T, C) -> (T, D), by a projection (D, S + 1), offset last; a few utterances at
    a time."""
    result = np.empty((len(frames), len(projection)), np.float32)
    matrix, offset = projection[:, :-1].T.astype(np.float32), projection[:, -1].astype(np.float32)
    for begin in range(0, len(frames), FRAMES_AT_ONCE):
        rows = np.arange(begin, min(begin + FRAMES_AT_ONCE, len(frames)))
        result[rows] = spliced(frames, offsets, context, rows) @ matrix + offset
    return result


def discriminant(frames: Float32, classes: Ints, dimension: int) -> Float64:
    """Return the projection by linear discriminant analysis (D, S + 1), its last column the offset; projected classes
    have mean 0 and variance 1 within. `frames`: (T, S). `classes`: (T,) from 0; -1 for frames that do not count."""
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
    """Return the semi-tied (MLLT) matrix A (D, D) for frames (T, D) with pdfs (T,), -1 for none; and the objective per
    frame that A maximises, before and after each sweep over its rows."""
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


PROJECTION_FRAMES = 300_000  # that the projection is estimated from


@dataclass(frozen=True, eq=False)
class Models:
    """The models by which a new speaker's transform is estimated."""

    projection: Float64  # (D, S + 1), offset last; of spliced cepstra
    context: int  # frames on each side that are spliced
    independent: Mixtures  # mixtures of all speakers as they are, for a first pass
    adapted: Mixtures  # mixtures of transformed speakers

    def frames(self, store: FeatureStore) -> Float32:
        """Return the projected frames of all utterances (T, D), to which transforms apply."""
        return projected(static_cepstra(store), store.offsets, self.projection, self.context)


def static_cepstra(store: FeatureStore) -> Float32:
    """Return the cepstra (T, C), normalised by speaker, without deltas."""
    every = all_cepstra(store)
    return np.ascontiguousarray(every[:, : min(CEPSTRA, every.shape[1] // 3)])


@dataclass(frozen=True, eq=False)
class SpeakerTraining:
    """A training of the models for transforms: training speakers, their words, and options of mixtures."""

    task: Task
    tree: DecisionTree  # tied states
    lexicon: Lexicon
    groups: Groups  # spans of training utterances by speaker
    labels: Labels  # of the training split; renewed as mixtures get better
    how: AlignConfig  # sizes of mixtures, passes of EM and beams
    log: list[dict[str, Any]]  # a line for each pass

    def models(self, place: Workplace, store: FeatureStore) -> Models:
        """Train the models for transforms."""
        config, cepstra = place.config, static_cepstra(store)
        projection = self._projection(place, cepstra, store.offsets)
        frames = projected(cepstra, store.offsets, projection, config.context)
        mixtures = self._mixtures(place, "independent", frames, self.how)
        for number in range(1, config.sat_rounds + 1):
            found = self._transforms(place, frames, mixtures, f"transforms, round {number}")
            mixtures = self._mixtures(place, f"adapted-{number}", transformed(frames, (self.groups, found)), self.how)
        independent = self._mixtures(place, "first-pass", frames, self._as_labelled)
        return Models(projection, config.context, independent, mixtures)

    @property
    def _as_labelled(self) -> AlignConfig:
        """Options of training without new alignments."""
        return replace(self.how, tri_realign=(), mono_realign=())

    def _projection(self, place: Workplace, cepstra: Float32, offsets: npt.NDArray[np.int64]) -> Float64:
        """Estimate LDA, and MLLT by temporary mixtures trained on it; return the projection."""
        config, folder, run = place.config, place.scratch, place.run
        rows = np.flatnonzero(self.labels.pdf >= 0)
        if len(rows) > PROJECTION_FRAMES:
            rows = np.sort(stream(config.seed, "projection").choice(rows, PROJECTION_FRAMES, replace=False))
        pdfs = self.labels.pdf[rows]
        place.progress.start("linear discriminants")
        file = save_array(folder / "spliced.npy", spliced(cepstra, offsets, config.context, rows))
        dimension = min(config.dimension, cepstra.shape[1] * (2 * config.context + 1))
        projection = run.alone(_discriminant, file, pdfs, dimension)
        place.progress.finish()
        frames = projected(cepstra, offsets, projection, config.context)
        # Without new alignments: these mixtures only say along which directions the diagonals should lie.
        self._mixtures(place, "projected", frames, self._as_labelled)
        place.progress.start("semi-tied covariances")
        file = save_array(folder / "few.npy", frames[rows])
        turn, gained = run.alone(_semi_tied, folder / "mixtures-projected.npz", file, pdfs)
        place.progress.finish()
        self.log.append({"stage": "semi-tied covariances", "gained": round(gained[-1] - gained[0], 4)})
        return turn @ projection

    def _mixtures(self, place: Workplace, stage: str, frames: Float32, how: AlignConfig) -> Mixtures:
        """Return mixtures trained on frames (T, D)."""
        file = save_array(place.scratch / f"frames-{stage}.npy", frames)
        material = Material(self.task.spoken, self.lexicon, how.silence_probability, file)
        with aligners(material, place.config.workers) as run:
            training = EmTraining(self.task, frames, how, run, place.scratch, place.progress, self.labels, self.log)
            mixtures = training.train(stage, self.tree, how.tri_gaussians)
        training.save(f"mixtures-{stage}", mixtures)
        file.unlink()
        return mixtures

    def _transforms(self, place: Workplace, frames: Float32, mixtures: Mixtures, what: str) -> dict[str, Estimate]:
        return speaker_transforms(place, frames, (mixtures, self.labels.pdf, self.tree.tying()), self.groups, what)


def _discriminant(frames: Path, pdfs: npt.NDArray[np.int32], dimension: int) -> Float64:
    return discriminant(np.load(frames, allow_pickle=False), pdfs, dimension)


def _semi_tied(mixtures: Path, frames: Path, pdfs: npt.NDArray[np.int32]) -> tuple[Float64, list[float]]:
    return semi_tied(load_mixtures(mixtures), np.load(frames, allow_pickle=False), pdfs)
