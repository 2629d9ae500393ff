"""Speakers of a corpus, and what is estimated for each of them.

Legend: T frames of all utterances, D dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.progress import Progress
from roundelay_speech.adapt.config import AdaptConfig, Unit
from roundelay_speech.adapt.estimating import Estimators, Groups, StatisticsFiles, save_array
from roundelay_speech.adapt.fmllr import Estimate
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.gmm import Mixtures, save_mixtures
from roundelay_speech.hmm.topology import SILENCE, Tying

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Workplace:
    """Options, running workers, a folder for files that only this run reads, and a bar: what every stage needs."""

    config: AdaptConfig
    run: Estimators
    scratch: Path
    progress: Progress


def grouped(utterances: Sequence[Utterance], store: FeatureStore, unit: Unit) -> dict[str, list[tuple[int, int]]]:
    """Return spans of the utterances that belong together: of each speaker, or of each utterance by itself."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for utterance in utterances:
        name = utterance.speaker if unit == "speaker" else utterance.id
        groups.setdefault(name, []).append(store.span(utterance.id))
    return groups


def speech_weights(pdfs: Ints, tying: Tying, silence: float) -> Float64:
    """Return (T,) 1 for frames of phones, `silence` for frames of silence, 0 for those without a pdf."""
    quiet = np.unique(tying.table[:, SILENCE])
    weights = np.where(np.isin(pdfs, quiet[quiet >= 0]), silence, 1.0)
    weights[pdfs < 0] = 0.0
    return weights


def speaker_transforms(
    place: Workplace, frames: Float32, labels: tuple[Mixtures, npt.NDArray[np.int32], Tying], groups: Groups, what: str
) -> dict[str, Estimate]:
    """Return the transform of each group, from frames (T, D) as they are and the pdfs (T,) they belong to.

    Args:
        labels: mixtures that the transformed frames shall fit, the pdf of every frame (-1: none), and their tying.
        what: names the work on the bar.
    """
    mixtures, pdfs, tying = labels
    folder, config = place.scratch, place.config
    save_mixtures(folder / "statistics.npz", mixtures)
    weights = speech_weights(pdfs, tying, config.silence_weight)
    number = len(list(folder.glob("pdfs-*.npy")))  # a new name each time: workers keep what they have read
    of = StatisticsFiles(
        save_array(folder / f"transformed-{number}.npy", frames),
        folder / "statistics.npz",
        save_array(folder / f"weights-{number}.npy", weights),
        save_array(folder / f"pdfs-{number}.npy", pdfs),
    )
    found = place.run.transforms(of, groups, config.em_rounds, config.min_frames, place.progress, what)
    of.frames.unlink()
    of.weights.unlink()
    return found


def transformed(frames: Float32, *some: tuple[Groups, Mapping[str, Estimate]]) -> Float32:
    """Return (T, D): every group's frames by its transform; a copy, in which frames of no group stay."""
    result = frames.copy()
    for groups, found in some:
        for name, spans in groups.items():
            for first, length in spans:
                result[first : first + length] = found[name].transform(frames[first : first + length])
    return result
