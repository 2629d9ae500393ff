"""Decoding many utterances: a graph that is loaded once per process, batches of utterances, results in order; and units
without lexicon and language model, those of the best columns or the most probable row of units.

The best column of every frame gives one way to write one row of units. A row has many ways to be written, with
repetitions and blanks in other places; prefix beam search (Graves 2012; Hannun et al. 2014) adds them up. For every
beginning of a row that is kept it knows the probability of all ways to write it that end in a blank, and of those that
end in its last unit: only behind a blank can the same unit come again.

Legend: T frames, U units.
"""

import math
import os
import resource
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

import numpy as np

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay_speech.bindings import kaldifst
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.processes import Here, Workers, batched, start_workers
from roundelay_speech.decode.alternatives import MOST_STRINGS
from roundelay_speech.decode.confidence import Pronouncing, timed_words
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.graphs.graph import Graph, load_graph
from roundelay_speech.decode.lattice import (
    LATTICE_BEAM,
    NARROW,
    WIDE,
    Unbounded,
    WordLattice,
    WordString,
    with_string,
    word_lattice,
)
from roundelay_speech.decode.rescore import Rescorer
from roundelay_speech.decode.search import BEAM, MAX_ACTIVE, Hypothesis, decode
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.search.beam import FEWEST_ACTIVE
from roundelay_speech.search.fst import Arcs, from_arrays, to_arrays

_BATCH_FRAMES = 4000  # sent to a worker at once: long enough to hide the transfer, short enough to balance


@dataclass(frozen=True)
class Detail:
    """The details of a search besides an utterance's best words; a part not asked for is empty."""

    nbest: tuple[WordString, ...] = ()
    lattice: str = ""
    timed: tuple[TimedWord, ...] = ()
    arcs: Arcs | None = None  # of the lattice of whole sentences, on its way to be rescored
    bounded: bool = True  # false where there were too many word strings for a lattice, and so for confidences


@dataclass(frozen=True)
class Search:
    """Options of a search."""

    scale: float  # the log-likelihoods are multiplied by it
    beam: float = BEAM
    max_active: int = MAX_ACTIVE
    word_cost: float | None = None  # added for every word, in nats; None for the graph's own
    nbest: int = 0  # how many word strings to list
    lattice: bool = False  # whether to keep lattices
    times: bool = False  # whether to time the words (and give them confidences)
    lattice_beam: float = LATTICE_BEAM
    favoured: tuple[str, ...] = ()  # words whose cost is less by `bonus` nats
    bonus: float = 0.0

    @property
    def more(self) -> bool:
        """True if more than the best words are asked for."""
        return self.nbest > 0 or self.lattice or self.times


@dataclass
class Batch:
    """The results of a search for a batch of utterances."""

    hypotheses: dict[str, Hypothesis] = field(default_factory=dict)
    details: dict[str, Detail] = field(default_factory=dict)
    search_seconds: float = 0.0  # processor time of the search for the best words
    seconds: float = 0.0  # of everything
    rescoring_seconds: float = 0.0  # processor time
    kept_as_found: int = 0  # utterances without a whole sentence that could be rescored
    unbounded: int = 0  # utterances with too many word strings for a lattice


@dataclass
class _Loaded:
    """The graph and lexicon that a process has loaded."""

    graph: Graph  # with the cost of words that was asked for last
    pronouncing: Pronouncing | None
    # a graph in which words are favoured, and its ingredients: the last of them.
    favouring: tuple[tuple[Graph, tuple[str, ...], float], Graph] | None = None

    def searched(self, options: Search) -> Graph:
        if options.word_cost is not None:
            self.graph = self.graph.with_word_cost(options.word_cost)
        if not options.favoured:
            return self.graph
        made_of = (self.graph, options.favoured, options.bonus)
        if self.favouring is None or self.favouring[0] != made_of:
            self.favouring = made_of, self.graph.favouring(options.favoured, options.bonus)
        return self.favouring[1]


Utterances = list[tuple[str, Float32]]
"""Utterance ids with (T, S) unscaled log-likelihoods."""
Job = tuple[Utterances, Search, bool]
"""A batch to decode; its last element: lattices are wanted for rescoring, and no other details."""


class Decoders:
    """A graph that is loaded once, here or in worker processes, and decodes any number of lists of utterances."""

    def __init__(
        self,
        workers: Workers | Here,
        pronouncing: Pronouncing | None = None,
        rescorer: Rescorer | None = None,
    ) -> None:
        self._workers, self._pronouncing, self._rescorer = workers, pronouncing, rescorer

    def __call__(
        self,
        loglikes: Iterable[tuple[str, Float32]],
        scale: float,
        beam: float = BEAM,
        max_active: int = MAX_ACTIVE,
        progress: Progress | None = None,
        word_cost: float | None = None,
    ) -> dict[str, Hypothesis]:
        """Return the best words of each utterance."""
        return self.search(loglikes, Search(scale, beam, max_active, word_cost), progress).hypotheses

    def search(
        self, loglikes: Iterable[tuple[str, Float32]], options: Search, progress: Progress | None = None
    ) -> Batch:
        """Search for the words of each utterance; return hypotheses, and the details that `options` ask for.

        Raises:
            UserError: scale or beam are not positive, too few paths; names the utterance whose log-likelihoods cannot
                be used.
        """
        if not options.scale > 0.0:
            raise UserError(f"The acoustic scale {options.scale} is not above 0; 0.05 to 0.25 is usual.")
        if not options.beam > 0.0:
            raise UserError(f"The beam {options.beam} is not above 0; 8 to 14 is usual.")
        if options.max_active <= FEWEST_ACTIVE:
            raise UserError(f"max_active {options.max_active} is not above {FEWEST_ACTIVE}; 2000 to 10000 is usual.")
        result, sent = Batch(), deque[Utterances]()  # batches whose results are still to come
        for done in self._workers.in_order(_decode_batch, self._jobs(loglikes, options, sent)):
            batch = sent.popleft()
            if self._rescorer is not None:
                _rescore(self._rescorer, done, dict(batch), options, self._pronouncing)
            result.hypotheses |= done.hypotheses
            result.details |= done.details
            result.search_seconds += done.search_seconds
            result.seconds += done.seconds
            result.rescoring_seconds += done.rescoring_seconds
            result.kept_as_found += done.kept_as_found
            result.unbounded += done.unbounded
            (progress or Silent()).advance(len(done.hypotheses))
        return result

    def _jobs(self, loglikes: Iterable[tuple[str, Float32]], options: Search, sent: deque[Utterances]) -> Iterator[Job]:
        rescored = self._rescorer is not None
        for batch in batched(loglikes, _BATCH_FRAMES, lambda one: len(one[1])):
            # Only times need the scores once more, here.
            sent.append(batch if rescored and options.times else [])
            yield batch, options, rescored


@contextmanager
def decoders(
    graph_folder: Path,
    workers: int = 0,
    pronouncing: Pronouncing | None = None,
    rescorer: Rescorer | None = None,
) -> Iterator[Decoders]:
    """Load a graph for many calls; worker processes end with the block.

    Args:
        pronouncing: needed if words are to be timed.
        rescorer: rescores all lattices, in this process alone, so that its large model is held once.

    Raises:
        UserError: no graph in the folder.
    """
    graph = load_graph(graph_folder)  # also when workers load it, so that a broken graph is one clear message
    if (workers or cores()) == 1:
        yield decoder_here(graph, pronouncing, rescorer)
        return
    del graph
    with start_workers(workers, _load, graph_folder, pronouncing) as running:
        yield Decoders(running, pronouncing, rescorer)


def decoder_here(graph: Graph, pronouncing: Pronouncing | None = None, rescorer: Rescorer | None = None) -> Decoders:
    """Return a decoder in this process, with a graph that is loaded already; arguments as of `decoders`."""
    return Decoders(Here(_Loaded(graph, pronouncing)), pronouncing, rescorer)


def _load(graph_folder: Path, pronouncing: Pronouncing | None) -> _Loaded:
    return _Loaded(load_graph(graph_folder), pronouncing)


def _decode_batch(loaded: _Loaded, job: Job) -> Batch:
    """Decode a batch in this process."""
    utterances, options, to_rescore = job
    graph = loaded.searched(options)
    result, begun = Batch(), _processor_seconds()
    for utterance, loglikes in utterances:
        started = _processor_seconds()
        scores = np.float32(options.scale) * loglikes
        try:
            found = decode(graph, scores, options.beam, options.max_active)
        except ValueError as error:
            raise UserError(f"{utterance}: cannot be decoded: {error}. Check its features and the model.") from error
        result.hypotheses[utterance] = found
        result.search_seconds += _processor_seconds() - started
        if to_rescore or options.more:
            result.details[utterance] = _looked_closer(graph, scores, found, loaded.pronouncing, options, to_rescore)
            result.unbounded += not result.details[utterance].bounded
    result.seconds = _processor_seconds() - begun
    return result


def _looked_closer(
    graph: Graph, scores: Float32, found: Hypothesis, pronouncing: Pronouncing | None, options: Search, to_rescore: bool
) -> Detail:
    """Return the details of an utterance or, for rescoring, the lattice that they will be made of."""
    width = WIDE if to_rescore or options.lattice or options.nbest else NARROW
    lattice, bounded = None, True
    try:
        lattice = word_lattice(graph, scores, options.beam, options.lattice_beam, width=width)
    except Unbounded:
        bounded = False
    if to_rescore:
        whole = lattice is not None and lattice.whole
        return Detail(arcs=to_arrays(lattice.fst) if whole and lattice is not None else None, bounded=bounded)
    return _detail(lattice, found, _Told(scores, options, pronouncing, bounded))


def _rescore(
    rescorer: Rescorer,
    batch: Batch,
    loglikes: Mapping[str, Float32],
    options: Search,
    pronouncing: Pronouncing | None,
) -> None:
    """Rescore the hypotheses and details of a batch by another language model.

    Args:
        loglikes: log-likelihoods of the batch, if words are to be timed.
    """
    begun = _processor_seconds()
    for utterance, found in batch.hypotheses.items():
        arcs = batch.details[utterance].arcs
        arcs = None if arcs is None else rescorer.lattice(arcs, options.lattice_beam)
        lattice = None if arcs is None else WordLattice(kaldifst.StdVectorFst(from_arrays(arcs)), rescorer.words)
        best = lattice.best(1) if lattice is not None else []
        if found.reached_final:  # its search had a wider beam, and may have found words the lattice's has not
            best = with_string(best, rescorer.string(WordString(found.words, found.cost)))
        if best and math.isfinite(best[0].cost):
            words, cost = best[0].words, best[0].cost
            batch.hypotheses[utterance] = Hypothesis(words, cost, math.nan, math.nan, True)
        else:
            batch.kept_as_found += 1
        detail = Detail()
        if options.more:
            scores = np.float32(options.scale) * loglikes[utterance] if options.times else None
            told = _Told(scores, options, pronouncing, batch.details[utterance].bounded)
            detail = _detail(lattice, batch.hypotheses[utterance], told)
        batch.details[utterance] = detail
    batch.rescoring_seconds = _processor_seconds() - begun


@dataclass(frozen=True)
class _Told:
    """The inputs of an utterance's details besides lattice and words."""

    scores: Float32 | None
    options: Search
    pronouncing: Pronouncing | None
    bounded: bool


def _detail(lattice: WordLattice | None, found: Hypothesis, told: _Told) -> Detail:
    options = told.options
    wanted = max(options.nbest, MOST_STRINGS if options.times else 0)
    best = lattice.best(wanted) if lattice is not None and wanted else []
    if found.reached_final:  # its search had a wider beam, and may have found words the lattice's has not
        best = with_string(best, WordString(found.words, found.cost))
    timed: tuple[TimedWord, ...] = ()
    if options.times:
        if told.pronouncing is None or told.scores is None:
            raise ValueError("words cannot be timed without a lexicon")
        timed = timed_words(found.words, told.scores, best if told.bounded else None, told.pronouncing)
    text = lattice.to_text() if options.lattice and lattice is not None else ""
    return Detail(tuple(best[: options.nbest]), text, timed, bounded=told.bounded)


def _processor_seconds() -> float:
    """Return the processor seconds that this process has used, without other processes' work."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Searcher(Protocol):
    """A search for the words of many utterances."""

    def search(
        self, loglikes: Iterable[tuple[str, Float32]], options: Search, progress: Progress | None = None
    ) -> Batch:
        """Return the results that `options` ask for, of each utterance with its log-likelihoods (T, S)."""


@final
@dataclass(frozen=True)
class SearchedGraph:
    """A decoding graph that is searched."""

    run: Searcher  # its decoders
    columns: Columns
    words: Set[str] | None  # those that it can recognise; None: any spelling of units


LEAST_LIKELY = math.log(1e-6)
"""Log-probability below which columns are skipped, as nearly all are in nearly every frame."""

_NEVER = -math.inf


def most_probable(
    scores: Float32, prefixes: int, blank: int = 0, least: float = LEAST_LIKELY
) -> tuple[tuple[int, ...], float]:
    """Return the most probable row of units, and its log-probability, a sum over all ways to write it that were kept.

    Args:
        scores: (T, U + 1) log-probabilities.
        prefixes: number of beginnings kept at every frame; with all the result is exact.
        blank: column of the blank.
    """
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, _NEVER)}
    for frame in scores:
        columns = [(c, float(frame[c])) for c in np.flatnonzero(frame >= least).tolist()]
        found: dict[tuple[int, ...], list[float]] = {}
        for prefix, (in_blank, in_unit) in kept.items():
            both = _sum(in_blank, in_unit)
            for column, p in columns:
                if column == blank:
                    _add(found, prefix, 0, both + p)
                elif prefix and column == prefix[-1]:
                    _add(found, prefix, 1, in_unit + p)
                    _add(found, (*prefix, column), 1, in_blank + p)
                else:
                    _add(found, (*prefix, column), 1, both + p)
        best = sorted(found.items(), key=lambda item: (-_sum(*item[1]), item[0]))[:prefixes]
        kept = {prefix: (in_blank, in_unit) for prefix, (in_blank, in_unit) in best}
    prefix, ends = next(iter(kept.items()))
    return prefix, _sum(*ends)


def _add(found: dict[tuple[int, ...], list[float]], prefix: tuple[int, ...], end: int, p: float) -> None:
    ends = found.setdefault(prefix, [_NEVER, _NEVER])
    ends[end] = _sum(ends[end], p)


def _sum(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    low, high = (a, b) if a < b else (b, a)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))


@final
class SpelledWords:
    """A search in place of `Decoders`: words as the model's units spell them, without a graph.

    Args:
        columns: columns of the scores.
        kind: the best unit of each frame (greedy), or the most probable row of units.

    Raises:
        UserError: units spell no words.
    """

    def __init__(self, columns: UnitsAndBlank, kind: CtcGraph) -> None:
        if columns.words_of(()) is None:
            raise UserError(
                f"decode.graph.search is {kind.search}: the model's units are no pieces of written words, so they "
                "spell no words. Give decode.graph.search=words, which needs a lexicon; units.txt beside the words and "
                "the unit errors in decode.json, say what is read off without one."
            )
        self._columns, self._kind = columns, kind

    def search(
        self, loglikes: Iterable[tuple[str, Float32]], options: Search, progress: Progress | None = None
    ) -> Batch:
        """Return the words that each utterance's units spell; `options` are not used."""
        del options
        batch, begun = Batch(), os.times().user
        for utterance, scores in loglikes:
            units, cost = self._units(scores)
            words = self._columns.words_of(units) or ()
            batch.hypotheses[utterance] = Hypothesis(words, cost, 0.0, cost, True)
            (progress or Silent()).advance(1)
        batch.search_seconds = batch.seconds = os.times().user - begun
        return batch

    def _units(self, scores: Float32) -> tuple[tuple[str, ...], float]:
        if self._kind.search == "greedy":
            return self._columns.read_off(scores), -float(scores.max(1).sum())
        names = self._columns.names
        units, log_p = most_probable(scores, self._kind.prefixes, names.index(self._columns.blank))
        return tuple(names[unit] for unit in units), -log_p
