"""Passes of forced alignment over many utterances, in worker processes that keep the utterances' graphs.

What a worker needs for good (transcripts, lexicon, where the frames are) it gets once; what changes from pass to pass
(the mixtures) it reads from a file when told its name. Results do not depend on the number of workers.

Legend: T frames of one utterance, S pdfs.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from roundelay.core.files import read_json
from roundelay.speech.hmm.align import Aligned, UtteranceGraph, align, utterance_graph
from roundelay.speech.hmm.gmm import Mixtures, load_mixtures
from roundelay.speech.hmm.topology import Tying
from roundelay.speech.hmm.tree import DecisionTree
from roundelay.speech.lexicon import Lexicon
from roundelay.speech.processes import Workers, cores, start_workers

Float32 = npt.NDArray[np.float32]

BATCH = 16  # utterances per task
GRAPHS_KEPT = 20_000  # per worker, some 30 kB each


@dataclass(frozen=True)
class Spoken:
    """An utterance to align: its words, and its frames in the feature array."""

    id: str
    words: tuple[str, ...]
    first: int
    frames: int


@dataclass(frozen=True)
class Pass:
    """What one pass aligns with.

    Attributes:
        tree: file of the state tying; graphs are kept while it stays the same.
        mixtures: file of the Gaussian mixtures; None when log-likelihoods come with the utterances.
        scale: of the log-likelihoods.
        beams: tried in order, in scaled nats.
    """

    tree: Path
    mixtures: Path | None
    scale: float
    beams: tuple[float, ...]


@dataclass(frozen=True)
class Material:
    """What a worker holds for good; `frames` is an .npy file of features, or None when scores come with utterances."""

    spoken: Mapping[str, Spoken]
    lexicon: Lexicon
    silence_probability: float
    frames: Path | None


Batch = list[tuple[str, Float32 | None]]
Outcome = list[tuple[str, Aligned | None]]


class Aligners:
    """Worker processes, or this one, that align utterances pass after pass."""

    def __init__(self, material: Material, workers: Workers | None) -> None:
        self._here, self._workers = None if workers else Worker(material), workers

    def __call__(
        self, utterances: Iterable[tuple[str, Float32 | None]], what: Pass
    ) -> Iterator[tuple[str, Aligned | None]]:
        """Align; yields (id, alignment, or None without a path) in the order given.

        Args:
            utterances: (id, (T, S) log-likelihoods, or None to have them from the mixtures).
        """
        batches = ((batch, what) for batch in _batched(utterances))
        if self._workers is not None:
            for outcome in self._workers.in_order(_work, batches):
                yield from outcome
            return
        assert self._here is not None
        for batch, _ in batches:
            yield from self._here.run(batch, what)


@contextmanager
def aligners(material: Material, workers: int = 0) -> Iterator[Aligners]:
    """Start the workers, 0 for as many as there are cores, 1 for none but this process; they end with the block."""
    if (workers or cores()) == 1:
        yield Aligners(material, None)
        return
    with start_workers(workers or cores(), _start, material) as running:
        yield Aligners(material, running)


class Worker:
    """One process's share: reads models when they change, keeps graphs while the tying stays."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._frames = None if material.frames is None else np.load(material.frames, mmap_mode="r", allow_pickle=False)
        self._graphs: dict[str, UtteranceGraph] = {}
        self._tree: Path | None = None
        self._tying: Tying | None = None
        self._mixtures_file: Path | None = None
        self._mixtures: Mixtures | None = None

    def run(self, batch: Batch, what: Pass) -> Outcome:
        """Align a few utterances."""
        if what.tree != self._tree:
            self._tying, self._tree = DecisionTree.from_json(read_json(what.tree)).tying(), what.tree
            self._graphs = {}
        if what.mixtures != self._mixtures_file:
            self._mixtures = None if what.mixtures is None else load_mixtures(what.mixtures)
            self._mixtures_file = what.mixtures
        return [(name, self._align(self._material.spoken[name], loglikes, what)) for name, loglikes in batch]

    def _align(self, spoken: Spoken, loglikes: Float32 | None, what: Pass) -> Aligned | None:
        graph = self._graph(spoken)
        if loglikes is None:
            assert self._mixtures is not None, "a pass without mixtures needs log-likelihoods"
            assert self._frames is not None
            frames = self._frames[spoken.first : spoken.first + spoken.frames]
            scores = self._mixtures.loglikes(frames, graph.pdfs)
        else:
            scores = loglikes[:, graph.pdfs]
        return align(graph, np.float32(what.scale) * scores, what.beams)

    def _graph(self, spoken: Spoken) -> UtteranceGraph:
        graph = self._graphs.get(spoken.id)
        if graph is None:
            assert self._tying is not None
            if len(self._graphs) >= GRAPHS_KEPT:
                self._graphs = {}
            graph = utterance_graph(
                spoken.words, self._material.lexicon, self._tying, self._material.silence_probability
            )
            self._graphs[spoken.id] = graph
        return graph


_WORKER: list[Worker] = []  # of a worker process


def _start(material: Material) -> None:
    _WORKER[:] = [Worker(material)]


def _work(job: tuple[Batch, Pass]) -> Outcome:
    return _WORKER[0].run(*job)


def _batched(utterances: Iterable[tuple[str, Float32 | None]]) -> Iterator[Batch]:
    batch: Batch = []
    for item in utterances:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
