"""Speakers of a corpus, and their transforms and counts, in worker processes with one thread each: their number changes
no result.

Workers read frames, mixtures and labels from files; messages to them are small.

Legend: T frames of all utterances, D dimensions, M components.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from roundelay.core.progress import Progress, tracked
from roundelay_speech.adapt.config import AdaptConfig, Unit
from roundelay_speech.adapt.fmllr import Estimate, estimate
from roundelay_speech.adapt.ivector import counted
from roundelay_speech.data.arrays import Float32, Float64, Ints, save_array
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.processes import Workers, start_workers
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.gmm import Mixtures, load_mixtures, save_mixtures
from roundelay_speech.hmm.topology import SILENCE, Tying

Groups = Mapping[str, Sequence[tuple[int, int]]]
"""By the name of a transform or vector, the spans (first frame, frames) of its utterances."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class StatisticsFiles:
    """The files from which workers take statistics."""

    frames: Path  # (T, D) float32
    mixtures: Path  # as of `save_mixtures`
    weights: Path  # (T,) float64, 0 for frames that do not count
    pdfs: Path | None = None  # (T,) int32, -1 for frames that do not count; counts need none


class Estimators:
    """Worker processes that estimate speakers' transforms and sum counts."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def transforms(
        self, of: StatisticsFiles, groups: Groups, rounds: int, least: float, progress: Progress, what: str
    ) -> dict[str, Estimate]:
        """Return the transform of each group; `rounds` and `least` as of `fmllr.estimate`."""
        jobs = ((of, tuple(spans), rounds, least) for spans in groups.values())
        return self._each(_transform, jobs, groups, progress, what)

    def counts(
        self, of: StatisticsFiles, groups: Groups, progress: Progress, what: str
    ) -> dict[str, list[tuple[Float64, Float64]]]:
        """Return n (M,) and sums (M, D) of each utterance of each group."""
        return self._each(_counts, ((of, tuple(spans)) for spans in groups.values()), groups, progress, what)

    def alone(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run a function in one of the workers, with one thread even if this process has more; return its result."""
        return self._workers.alone(function, *arguments, **named)

    def _each(
        self, function: Callable[..., R], jobs: Iterator[Any], groups: Groups, progress: Progress, what: str
    ) -> dict[str, R]:
        results = zip(groups, self._workers.in_order(function, jobs), strict=True)
        return dict(tracked(progress, what, results, len(groups)))


@contextmanager
def estimators(workers: int = 0) -> Iterator[Estimators]:
    """Start the workers, 0 for as many as there are cores; they end with the block."""
    with start_workers(workers, _OpenFiles) as running:
        yield Estimators(running)


class _OpenFiles:
    """The arrays and mixtures that a worker has open, only those of the latest `StatisticsFiles`."""

    def __init__(self) -> None:
        self.of: StatisticsFiles | None = None
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.mixtures: Mixtures | None = None

    def take(self, of: StatisticsFiles) -> Mixtures:
        if of != self.of or self.mixtures is None:
            named = {"frames": of.frames, "weights": of.weights, "pdfs": of.pdfs}
            self.arrays = {
                name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in named.items() if path
            }
            self.of, self.mixtures = of, load_mixtures(of.mixtures)
        return self.mixtures

    def rows(self, name: str, spans: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
        array = self.arrays[name]
        return np.concatenate([array[first : first + frames] for first, frames in spans])


def _transform(files: _OpenFiles, job: tuple[StatisticsFiles, tuple[tuple[int, int], ...], int, float]) -> Estimate:
    of, spans, rounds, least = job
    mixtures = files.take(of)
    frames, pdfs, weights = (files.rows(name, spans) for name in ("frames", "pdfs", "weights"))
    return estimate(mixtures, frames, pdfs, weights, rounds=rounds, least=least)


def _counts(
    files: _OpenFiles, job: tuple[StatisticsFiles, tuple[tuple[int, int], ...]]
) -> list[tuple[Float64, Float64]]:
    of, spans = job
    mixtures = files.take(of)
    return [counted(mixtures, files.rows("frames", [span]), files.rows("weights", [span])) for span in spans]


@dataclass(frozen=True, eq=False)
class Workplace:
    """Everything that each stage needs: options, running workers, a folder for temporary files, and a bar."""

    config: AdaptConfig
    run: Estimators
    scratch: Path
    progress: Progress


def grouped(utterances: Sequence[Utterance], store: FeatureStore, unit: Unit) -> dict[str, list[tuple[int, int]]]:
    """Group the utterances' spans by speaker, or each by itself, as `unit` says."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for utterance in utterances:
        name = utterance.speaker if unit == "speaker" else utterance.id
        groups.setdefault(name, []).append(store.span(utterance.id))
    return groups


def speech_weights(pdfs: Ints, tying: Tying, silence: float) -> Float64:
    """Return the weights (T,) of frames with these pdfs: 1 for phones, `silence` for silence, 0 for no pdf."""
    quiet = np.unique(tying.table[:, SILENCE])
    weights = np.where(np.isin(pdfs, quiet[quiet >= 0]), silence, 1.0)
    weights[pdfs < 0] = 0.0
    return weights


def speaker_transforms(
    place: Workplace, frames: Float32, labels: tuple[Mixtures, npt.NDArray[np.int32], Tying], groups: Groups, what: str
) -> dict[str, Estimate]:
    """Return the transform of each group, from untransformed frames (T, D) and their pdfs (T,).

    Args:
        labels: mixtures that the transformed frames shall fit, the pdf of every frame (-1: none), and their tying.
        what: names the work on the bar.
    """
    mixtures, pdfs, tying = labels
    folder, config = place.scratch, place.config
    save_mixtures(folder / "statistics.npz", mixtures)
    weights = speech_weights(pdfs, tying, config.silence_weight)
    number = len(list(folder.glob("pdfs-*.npy")))  # a new name each time: workers keep files they have read
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
    """Return a copy of frames (T, D), in which each group's frames are transformed by its own transform."""
    result = frames.copy()
    for groups, found in some:
        for name, spans in groups.items():
            for first, length in spans:
                result[first : first + length] = found[name].transform(frames[first : first + length])
    return result
