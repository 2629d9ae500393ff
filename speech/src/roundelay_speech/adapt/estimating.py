"""Transforms and counts of many speakers, in worker processes with one thread each: their number changes no result.

Workers read frames, mixtures and labels from files; what they are told is small.

Legend: T frames of all utterances, D dimensions, M components.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from roundelay.core.cores import cores
from roundelay.core.files import atomic_write
from roundelay.core.progress import Progress
from roundelay_speech.adapt.fmllr import Estimate, estimate
from roundelay_speech.adapt.ivector import counted
from roundelay_speech.data.processes import Workers, start_workers
from roundelay_speech.hmm.gmm import Mixtures, load_mixtures

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Groups = Mapping[str, Sequence[tuple[int, int]]]
"""Spans (first frame, frames) of the utterances that one transform, or one vector, is for, by its name."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class StatisticsFiles:
    """Files that statistics are taken from."""

    frames: Path  # (T, D) float32
    mixtures: Path  # as of `save_mixtures`
    weights: Path  # (T,) float64, 0 for frames that do not count
    pdfs: Path | None = None  # (T,) int32, -1 for frames that do not count; counts need none


class Estimators:
    """Running workers."""

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
        """Run function(...) in one of the workers: with one thread, whatever this process has."""
        for found in self._workers.in_order(_call, [(function, arguments, named)]):
            return found
        raise AssertionError("one job, one result")

    def _each(
        self, function: Callable[[Any], R], jobs: Iterator[Any], groups: Groups, progress: Progress, what: str
    ) -> dict[str, R]:
        progress.start(what, len(groups))
        found = {}
        for name, result in zip(groups, self._workers.in_order(function, jobs), strict=True):
            found[name] = result
            progress.advance()
        progress.finish()
        return found


@contextmanager
def estimators(workers: int = 0) -> Iterator[Estimators]:
    """Start the workers, 0 for as many as there are cores; they end with the block."""
    with start_workers(workers or cores(), _begin) as running:
        yield Estimators(running)


def save_array(path: Path, array: npt.NDArray[Any]) -> Path:
    """Write an array where workers find it."""
    with atomic_write(path) as file:
        np.save(file, array, allow_pickle=False)
    return path


class _OpenFiles:
    """Arrays and mixtures that this worker has open; those of the latest `StatisticsFiles` only."""

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


_FILES: list[_OpenFiles] = []  # of a worker process


def _begin() -> None:
    _FILES[:] = [_OpenFiles()]


def _transform(job: tuple[StatisticsFiles, tuple[tuple[int, int], ...], int, float]) -> Estimate:
    of, spans, rounds, least = job
    files = _FILES[0]
    mixtures = files.take(of)
    frames, pdfs, weights = (files.rows(name, spans) for name in ("frames", "pdfs", "weights"))
    return estimate(mixtures, frames, pdfs, weights, rounds=rounds, least=least)


def _counts(job: tuple[StatisticsFiles, tuple[tuple[int, int], ...]]) -> list[tuple[Float64, Float64]]:
    of, spans = job
    files = _FILES[0]
    mixtures = files.take(of)
    return [counted(mixtures, files.rows("frames", [span]), files.rows("weights", [span])) for span in spans]


def _call(job: tuple[Callable[..., R], tuple[Any, ...], dict[str, Any]]) -> R:
    function, arguments, named = job
    return function(*arguments, **named)
