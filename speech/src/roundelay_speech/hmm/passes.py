"""Passes of forced alignment over many utterances, in worker processes that keep the utterances' graphs.

A worker gets lasting data (transcripts, lexicon, where the frames are) once; the mixtures, which change from pass to
pass, it reads from a file when told its name. Results do not depend on the number of workers, to the last bit.

Legend: T frames of one utterance, S pdfs.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from roundelay.core.cores import cores
from roundelay.core.files import read_json
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.processes import Workers, batched, start_workers
from roundelay_speech.hmm.align import Aligned, UtteranceGraph, align, phone_loop, utterance_graph
from roundelay_speech.hmm.gmm import Mixtures, Part, joined, load_mixtures, reestimate_some, rows_of
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.hmm.tree import DecisionTree
from roundelay_speech.lexicon.lexicon import Lexicon

T = TypeVar("T")

BATCH = 16  # utterances per task
EM_JOBS = 8  # tasks that EM is cut into, so that no worker waits long for another
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
    """The models and beams of one pass."""

    tree: Path  # file of the state tying; graphs are kept while it stays the same
    mixtures: Path | None  # file of the Gaussian mixtures; None when log-likelihoods come with the utterances
    scale: float  # of the log-likelihoods
    beams: tuple[float, ...]  # tried in order, in scaled nats


@dataclass(frozen=True)
class ToScore:
    """An utterance, and the transcripts with which it is to be compared (see fit)."""

    id: str
    # mixtures, tree: files; of monophones.
    mixtures: Path
    tree: Path
    scale: float  # of the log-likelihoods
    beams: tuple[float, ...]  # tried in order, in scaled nats
    transcripts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Scored:
    """Log-likelihoods a frame of an utterance, in nats: of each of several transcripts (None: it has no path), and of
    the best phones in any order (`loop`)."""

    id: str
    scores: tuple[float | None, ...]
    loop: float


@dataclass(frozen=True)
class Material:
    """The data that a worker keeps; `frames` is an .npy file of features, or None if scores come with utterances."""

    spoken: Mapping[str, Spoken]
    lexicon: Lexicon
    silence_probability: float
    frames: Path | None


Batch = list[tuple[str, Float32 | None]]
Outcome = list[tuple[str, Aligned | None]]


class Aligners:
    """Worker processes that align utterances pass after pass, and re-estimate mixtures between passes."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __call__(
        self, utterances: Iterable[tuple[str, Float32 | None]], what: Pass
    ) -> Iterator[tuple[str, Aligned | None]]:
        """Align utterances; yield (id, alignment, or None without a path) in the order given.

        Args:
            utterances: (id, log-likelihoods (T, S), or None to compute them by the mixtures).
        """
        for outcome in self._workers.in_order(Worker.run, ((batch, what) for batch in batched(utterances, BATCH))):
            yield from outcome

    def scored(self, jobs: Iterable[ToScore]) -> Iterator[Scored]:
        """Score utterances with transcripts; yield results in the order given."""
        for found in self._workers.in_order(Worker.score, batched(jobs, BATCH)):
            yield from found

    def reestimate(self, mixtures: Mixtures, file: Path, pdfs: Path) -> Mixtures:
        """Run EM in the workers; return the new mixtures. `pdfs` is an .npy file with the pdf of each frame, `file`
        that of the mixtures for workers."""
        step = -(-mixtures.num_pdfs // EM_JOBS)
        jobs = [(file, pdfs, range(i, min(i + step, mixtures.num_pdfs))) for i in range(0, mixtures.num_pdfs, step)]
        parts = [part for some in self._workers.in_order(Worker.reestimate, jobs) for part in some]
        return joined(parts, mixtures.floor)


@contextmanager
def aligners(material: Material, workers: int = 0) -> Iterator[Aligners]:
    """Start the workers, 0 for as many as there are cores; they end with the block.

    Even a single worker is a process of its own, with one thread: the number of threads changes the last bits of matrix
    products, and so alignments.
    """
    with start_workers(workers or cores(), Worker, material) as running:
        yield Aligners(running)


class Worker:
    """The part of a worker process: it reads models when they change, and keeps graphs while the tying stays."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._frames = None if material.frames is None else np.load(material.frames, mmap_mode="r", allow_pickle=False)
        self._graphs: dict[str, UtteranceGraph] = {}
        self._tree: Path | None = None
        self._tying: Tying | None = None
        self._mixtures_file: Path | None = None
        self._mixtures: Mixtures | None = None
        self._rows_file: Path | None = None
        self._rows: list[npt.NDArray[np.int64]] = []
        self._loop: UtteranceGraph | None = None  # of the present tying

    def run(self, job: tuple[Batch, Pass]) -> Outcome:
        """Align a few utterances."""
        batch, what = job
        self._take(what.tree)
        return [(name, self._align(self._material.spoken[name], loglikes, what)) for name, loglikes in batch]

    def score(self, jobs: list[ToScore]) -> list[Scored]:
        """Compare a few utterances with transcripts."""
        return [self._scored(job) for job in jobs]

    def _scored(self, job: ToScore) -> Scored:
        """Return the log-likelihoods per frame of an utterance's transcripts and of free phones."""
        tying = self._take(job.tree)
        if self._loop is None:
            self._loop = phone_loop(tying)
        assert self._frames is not None
        spoken = self._material.spoken[job.id]
        frames = self._frames[spoken.first : spoken.first + spoken.frames]
        loglikes = np.float32(job.scale) * self._read(job.mixtures).loglikes(frames)

        def of(graph: UtteranceGraph) -> float | None:
            found = align(graph, loglikes[:, graph.pdfs], job.beams)
            return None if found is None else found.acoustic / job.scale / spoken.frames

        graphs = (
            utterance_graph(words, self._material.lexicon, tying, self._material.silence_probability)
            for words in job.transcripts
        )
        scores, loop = tuple(map(of, graphs)), of(self._loop)
        return Scored(job.id, scores, float(loglikes.max(1).mean()) / job.scale if loop is None else loop)

    def _take(self, tree: Path) -> Tying:
        """Return the tying in a file; drop graphs if it has changed."""
        if tree != self._tree or self._tying is None:
            self._tying, self._tree = DecisionTree.from_json(read_json(tree)).tying(), tree
            self._graphs, self._loop = {}, None
        return self._tying

    def reestimate(self, job: tuple[Path, Path, range]) -> list[Part]:
        """Run EM for some pdfs."""
        mixtures, pdfs, some = job
        assert self._frames is not None
        read = self._read(mixtures)
        if pdfs != self._rows_file:
            self._rows, self._rows_file = rows_of(np.load(pdfs, allow_pickle=False), read.num_pdfs), pdfs
        return reestimate_some(read, self._frames, self._rows, some)

    def _read(self, mixtures: Path) -> Mixtures:
        if self._mixtures is None or mixtures != self._mixtures_file:
            self._mixtures, self._mixtures_file = load_mixtures(mixtures), mixtures
        return self._mixtures

    def _align(self, spoken: Spoken, loglikes: Float32 | None, what: Pass) -> Aligned | None:
        graph = self._graph(spoken)
        if loglikes is None:
            assert what.mixtures is not None, "a pass without mixtures needs log-likelihoods"
            assert self._frames is not None
            frames = self._frames[spoken.first : spoken.first + spoken.frames]
            scores = self._read(what.mixtures).loglikes(frames, graph.pdfs)
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
