"""Numerator and denominator of lattice-free MMI as graphs of states that emit columns.

A state is a history of the language model of phones, which names the phone that is being said and, since it has the two
last of them, the one before. So all arcs that enter a state emit the same column in the frame they take, and while it
lasts the state emits another: the chain topology needs no states of its own. In a numerator a state is a history and a
place in the transcript, and has the same weights: a path of a numerator is a path of the denominator, if the model
allows it (`StateGraph.within`).

The language model of phones is made of all ways to say the training transcripts:

    P(w | h) = c(h w) / c(h)

with c the expected counts over all pronunciations and silences (expected_ngrams), and h as long as the order allows
if it occurs often enough, else the last two phones. Nothing is smoothed: phones never said have no probability, so the
model stays sparse, as Povey et al. 2016 (section 3.3) want it, and nothing below a history of two phones is pruned.

Transcripts that it was not estimated from may have phones it does not allow; their phones are scored by shorter
histories, with a factor 0.4 for each phone that is dropped (stupid backoff, Brants et al. 2007).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar, final, overload

import numpy as np

from roundelay.core.state_graph import StateGraph
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.lexicon import CLOSING, OPENING, Said, expected_ngrams, ways_to_say
from roundelay_speech.models.sequences import LabelledUtterances, labelled
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.units.base import UnitSet
from roundelay_speech.units.states import Emitted

History = tuple[str, ...]
BEGINNING: History = (OPENING,)
SHORTER_FACTOR = 0.4
NEVER_SAID = 1e-4
"""Probability of a phone that no transcript has."""
ALWAYS_KEPT = 2
"""Length in phones of histories that are always kept."""


@final
class PhoneNgram:
    """A language model of phones: n-grams with shortened rare histories.

    Args:
        texts: ways to say each training transcript, with the number of times it occurs.
        order: the longest n-grams, 2 or more.
        least: a history of more than two phones that occurs less often is shortened to two.
    """

    def __init__(self, texts: Iterable[tuple[Said, int]], order: int, least: float) -> None:
        self._keep = order - 1
        counts: Counter[History] = Counter()
        for said, times in texts:
            for ngram, mean in expected_ngrams(said, order).items():
                counts[ngram] += times * mean
        masses: Counter[History] = Counter()
        for ngram, mean in counts.items():
            masses[ngram[:-1]] += mean
        self._kept = {history for history, mean in masses.items() if len(history) <= ALWAYS_KEPT or mean >= least}
        self._followers: dict[History, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for ngram, mean in counts.items():
            for history in {self._shortened(ngram[:-1]), ngram[:-1][-1:], ()}:
                self._followers[history][ngram[-1]] += mean
        self._totals = {history: sum(some.values()) for history, some in self._followers.items()}

    def after(self, history: History, phone: str) -> History:
        """Return the history that the model looks at after one more phone."""
        return self._shortened((*history, phone)[-self._keep :])

    def _shortened(self, history: History) -> History:
        return history if history in self._kept else history[-ALWAYS_KEPT:]

    def followers(self, history: History) -> Mapping[str, float]:
        """Return log P of every phone, and of `CLOSING`, that the model allows after a history."""
        total = self._totals[history]
        return {phone: math.log(mean / total) for phone, mean in self._followers[history].items()}

    def allows(self, history: History, phone: str) -> bool:
        """Return True if a phone, or `CLOSING`, has a probability after a history without shortening it."""
        return self._followers.get(history, {}).get(phone, 0.0) > 0

    def log_p(self, history: History, phone: str) -> float:
        """Return log P(phone | history), also for `CLOSING`, by shorter histories if the model does not allow it."""
        cost = 0.0
        for shorter in (history, history[-1:], ()):
            if mean := self._followers.get(shorter, {}).get(phone, 0.0):
                return cost + math.log(mean / self._totals[shorter])
            cost += math.log(SHORTER_FACTOR)
        return cost + math.log(NEVER_SAID)


@final
class TranscriptGraphs(Sequence[StateGraph]):
    """The graphs of a corpus: a numerator for each different transcript, made when asked for, and the denominator.

    Args:
        units: phones as hidden Markov models.
        order, least: options of the language model of phones (PhoneNgram).
    """

    def __init__(self, corpus: Corpus, units: UnitSet, order: int, least: float) -> None:
        assert units.hmm is not None
        self._corpus, self._order, self._least = corpus, order, least
        self._emitted = units.hmm.emitted(units.names)
        self._texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the place of a transcript in this sequence."""
        return self._texts.setdefault(text, len(self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, number: int, /) -> StateGraph: ...
    @overload
    def __getitem__(self, number: slice, /) -> Sequence[StateGraph]: ...
    def __getitem__(self, number: int | slice, /) -> StateGraph | Sequence[StateGraph]:
        texts = list(self._texts)[number]
        if isinstance(texts, list):
            return [self._made(text) for text in texts]
        return self._made(texts)

    def _made(self, text: str) -> StateGraph:
        said = self.said(text)
        assert said is not None
        return numerator(said, self._model, self._emitted)

    def said(self, text: str) -> Said | None:
        """Return all ways to say a transcript; None if a word of it is unknown."""
        return ways_to_say(text.split(), self._corpus.alignment_lexicon)

    @cached_property
    def _model(self) -> PhoneNgram:
        counts = Counter(self._corpus.transcripts(TRAIN))
        texts = ((said, times) for text, times in counts.items() if (said := self.said(text)) is not None)
        return PhoneNgram(texts, self._order, self._least)

    @cached_property
    def denominator(self) -> StateGraph:
        """Graph of all phone sequences that the training transcripts allow."""
        return denominator(self._model, self._emitted)


def graph_splits(
    corpus: Corpus, store: FeatureStore, graphs: TranscriptGraphs, subsampling: int
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split, each with one label, the number of its transcript in `graphs` from 1; and
    the utterances left out, with reasons."""

    def labels_of(utterance: Utterance, rows: int) -> list[int] | str:
        said = graphs.said(utterance.text)
        if said is None:
            return "a word of it is not in the lexicon"
        if (needed := said.shortest()) > rows:
            return f"too short for its transcript: {rows} rows of scores, and it has {needed} phones"
        return [1 + graphs.number(utterance.text)]

    return labelled(corpus.splits, store, subsampling, labels_of)


Key = TypeVar("Key")
NOBODY = (0, 0)
"""Columns of the state where paths begin, which emits nothing."""


def denominator(model: PhoneNgram, emitted: Emitted) -> StateGraph:
    """Build the denominator: the graph of all phone sequences that the model allows."""
    graph = _Growing[History](BEGINNING, lambda history: _columns(history, emitted))
    for history in graph.found():
        for phone, log_p in model.followers(history).items():
            if phone == CLOSING:
                graph.end(history, log_p)
            else:
                graph.arc(history, model.after(history, phone), log_p)
    return graph.graph()


def numerator(said: Said, model: PhoneNgram, emitted: Emitted) -> StateGraph:
    """Build a numerator: the graph of all ways to say a transcript, weighted by the model."""
    graph = _Growing[tuple[int, History]]((0, BEGINNING), lambda key: _columns(key[1], emitted))
    within = True
    for node, history in graph.found():
        for arc in said.arcs[node]:
            after = arc.target, model.after(history, arc.phone)
            graph.arc((node, history), after, model.log_p(history, arc.phone))
            within = within and model.allows(history, arc.phone)
        if said.ends[node] > 0:
            graph.end((node, history), model.log_p(history, CLOSING))
            within = within and model.allows(history, CLOSING)
    return replace(graph.graph(), within=within)


def _columns(history: History, emitted: Emitted) -> tuple[int, int]:
    if history == BEGINNING:
        return NOBODY
    left, phone = (OPENING, *history)[-2:]
    return emitted.of(left, phone)


class _Growing(Generic[Key]):
    """A graph under construction, whose states are numbered as they are found."""

    def __init__(self, start: Key, columns: Callable[[Key], tuple[int, int]]) -> None:
        self._columns, self._order = columns, [start]
        self._numbers = {start: 0}
        self._arcs: list[tuple[int, int, float]] = []
        self._ends: dict[int, float] = {}

    def found(self) -> Iterator[Key]:
        """Yield every state once, also those found meanwhile."""
        at = 0
        while at < len(self._order):
            yield self._order[at]
            at += 1

    def _number(self, key: Key) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._order)
            self._order.append(key)
        return self._numbers[key]

    def arc(self, source: Key, target: Key, weight: float) -> None:
        self._arcs.append((self._numbers[source], self._number(target), weight))

    def end(self, key: Key, weight: float) -> None:
        self._ends[self._numbers[key]] = weight

    def graph(self) -> StateGraph:
        source, target, weight = zip(*self._arcs, strict=True)
        columns = np.array([self._columns(key) for key in self._order], np.int64)
        final = np.full(len(self._order), -np.inf)
        final[list(self._ends)] = list(self._ends.values())
        return StateGraph(
            np.array(source, np.int64),
            np.array(target, np.int64),
            np.array(weight),
            columns[:, 0].copy(),
            columns[:, 1].copy(),
            final,
        )
