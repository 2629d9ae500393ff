"""Vectors of the speakers of a corpus: the background mixture, the extractor, and their training data.

Features are cepstra that are *not* normalised by speaker, since that would take away the speaker's own part: 13 with
their deltas and the deltas of those, after they are brought to mean 0 and variance 1 over the training split. Frames of
silence do not count.

Legend: T frames of all utterances, C cepstra, M components, R dimensions of a vector.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.progress import tracked
from roundelay.core.streams import stream
from roundelay_speech.adapt.estimating import Groups, StatisticsFiles, Workplace
from roundelay_speech.adapt.ivector import Counts, Extractor, added
from roundelay_speech.data.arrays import Float32, Float64, save_array
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.gmm import (
    STD_FLOOR,
    Mixtures,
    cepstral_matrix,
    fill_deltas,
    reestimate,
    save_mixtures,
    single_gaussians,
    split,
)

BACKGROUND_FRAMES = 500_000  # that the background mixture is trained on
ROUNDS = 4  # of EM at each size of it


@dataclass(frozen=True, eq=False)
class VectorModels:
    """The models by which a new speaker's vector is estimated."""

    # mean, std: (C,) of the cepstra of the training split.
    mean: Float64
    std: Float64
    background: Mixtures  # one mixture of M components
    extractor: Extractor  # trained on training utterances

    def vectors(self, place: Workplace, store: FeatureStore, weights: Float64, groups: Groups) -> dict[str, Float32]:
        """Return the vector (R,) of each group; the zero vector for a group without speech.

        Args:
            weights: (T,) 1 for frames of speech, 0 for others.
        """
        frames = scaled_cepstra(store, self.mean, self.std)
        of = _statistics(place, frames, weights, self.background, "vectors")
        counts = place.run.counts(of, groups, place.progress, "speaker vectors")
        found = {}
        for name, some in counts.items():
            n, sums = added(some)
            found[name] = self.extractor.vectors(Counts(n[None], sums[None]))[0].astype(np.float32)
        return found


def raw_cepstra(store: FeatureStore) -> Float32:
    """Return the cepstra (T, C) of the first filterbank, not normalised.

    Raises:
        UserError: the store has no filterbank.
    """
    columns = store.filterbank()
    store.must_be_whole("vectors of speakers are of")
    return store.array[:, columns] @ cepstral_matrix(columns.stop - columns.start)


def scaled_cepstra(store: FeatureStore, mean: Float64, std: Float64) -> Float32:
    """Return (T, 3 C): cepstra scaled by (x - mean) / std, their deltas and second deltas, utterance by utterance."""
    plain = ((raw_cepstra(store) - mean) / std).astype(np.float32)
    width = plain.shape[1]
    result = np.empty((len(plain), 3 * width), np.float32)
    result[:, :width] = plain
    return fill_deltas(result, store)


def train_vectors(place: Workplace, store: FeatureStore, weights: Float64, utterances: Groups) -> VectorModels:
    """Train the models for vectors on training utterances, each a group by itself.

    Args:
        weights: (T,) 1 for frames of speech, 0 for others.
    """
    config = place.config
    if len(utterances) > config.ivector_utterances:
        rng = stream(config.seed, "ivector", "utterances")
        chosen = sorted(rng.choice(len(utterances), config.ivector_utterances, replace=False).tolist())
        names = list(utterances)
        utterances = {names[i]: utterances[names[i]] for i in chosen}
    rows = np.concatenate([np.arange(first, first + n) for spans in utterances.values() for first, n in spans])
    rows = rows[weights[rows] > 0]
    plain = raw_cepstra(store)[rows].astype(np.float64)
    mean, std = plain.mean(0), plain.std(0) + STD_FLOOR
    frames = scaled_cepstra(store, mean, std)
    background = _background(place, frames, rows)
    of = _statistics(place, frames, weights, background, "training")
    found = place.run.counts(of, utterances, place.progress, "counts of training utterances")
    every = [added(some) for some in found.values()]
    path = place.scratch / "counts.npz"
    np.savez(path, n=np.stack([n for n, _ in every]), sums=np.stack([sums for _, sums in every]))
    extractor = Extractor.begun(background, config.ivector_dimension, stream(config.seed, "ivector", "start"))
    for _ in tracked(place.progress, "extractor of speaker vectors", range(config.ivector_rounds)):
        extractor = place.run.alone(_reestimated, extractor, path)
    return VectorModels(mean, std, background, extractor)


def _background(place: Workplace, frames: Float32, rows: npt.NDArray[np.int64]) -> Mixtures:
    """Return one mixture trained on the frames in `rows`, grown by doubling."""
    config = place.config
    if len(rows) > BACKGROUND_FRAMES:
        rows = np.sort(stream(config.seed, "ivector", "frames").choice(rows, BACKGROUND_FRAMES, replace=False))
    used = frames[rows]
    file = save_array(place.scratch / "background.npy", used)
    mixtures = single_gaussians(used, np.zeros(len(used), np.int32), 1)
    sizes = [min(2**k, config.ivector_gaussians) for k in range(1, config.ivector_gaussians.bit_length() + 1)]
    sizes = list(dict.fromkeys(size for size in sizes if size > 1))
    for size in tracked(place.progress, "background mixture", sizes):
        rng = stream(config.seed, "ivector", "split", size)
        mixtures = place.run.alone(_grown, mixtures, file, size, rng)
    return mixtures


def _grown(mixtures: Mixtures, frames: Path, components: int, rng: np.random.Generator) -> Mixtures:
    used = np.load(frames, allow_pickle=False)
    grown = split(mixtures, np.array([len(used)]), components, rng)
    return reestimate(grown, used, np.zeros(len(used), np.int32), ROUNDS)


def _reestimated(extractor: Extractor, counts: Path) -> Extractor:
    with np.load(counts, allow_pickle=False) as file:
        return extractor.reestimated(Counts(file["n"], file["sums"]))


def _statistics(
    place: Workplace, frames: Float32, weights: Float64, background: Mixtures, name: str
) -> StatisticsFiles:
    folder = place.scratch
    mixtures = folder / f"background-{name}.npz"
    save_mixtures(mixtures, background)
    return StatisticsFiles(
        save_array(folder / f"cepstra-{name}.npy", frames), mixtures, save_array(folder / f"speech-{name}.npy", weights)
    )
