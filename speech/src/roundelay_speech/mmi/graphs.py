"""Numerator and denominator of lattice-free MMI as graphs of states that emit columns.

A state is a history of the language model of phones, which names the phone that is being said and, since it has the two
last of them, the one before. So all arcs that enter a state emit the same column in the frame they take, and while it
lasts the state emits another: the chain topology needs no states of its own. In a numerator a state is a history and a
place in the transcript, and has the same weights: a path of a numerator is a path of the denominator, if the model
allows it (`StateGraph.within`).

Transcripts of a prepared corpus as graphs: targets of lattice-free MMI.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar, final, overload

import numpy as np

from roundelay.core.state_graph import StateGraph
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.pronounced import CLOSING, OPENING, Said, ways_to_say
from roundelay_speech.mmi.phone_ngram import BEGINNING, History, PhoneNgram
from roundelay_speech.models.utterances import LabelledUtterances, labelled
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.units.base import UnitSet
from roundelay_speech.units.states import Emitted


@final
class TranscriptGraphs(Sequence[StateGraph]):
    """Numerators of a corpus, one for each different transcript, made when they are asked for; and the denominator.

    Args:
        units: phones as hidden Markov models.
        order, least: of the language model of phones (PhoneNgram).
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
        """Return all ways to say a transcript; None where a word of it is unknown."""
        return ways_to_say(text.split(), self._corpus.alignment_lexicon)

    @cached_property
    def _model(self) -> PhoneNgram:
        counts = Counter(self._corpus.transcripts(TRAIN))
        texts = ((said, times) for text, times in counts.items() if (said := self.said(text)) is not None)
        return PhoneNgram(texts, self._order, self._least)

    @cached_property
    def denominator(self) -> StateGraph:
        """All rows of phones that the training transcripts allow."""
        return denominator(self._model, self._emitted)


def graph_splits(
    corpus: Corpus, store: FeatureStore, graphs: TranscriptGraphs, subsampling: int
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split, each with one label, the number of its transcript in `graphs` from 1; and
    those that are left out, with reasons."""

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
"""Columns of the state in which paths begin, which emits nothing."""


def denominator(model: PhoneNgram, emitted: Emitted) -> StateGraph:
    """Return all rows of phones that the model allows."""
    graph = _Growing[History](BEGINNING, lambda history: _columns(history, emitted))
    for history in graph.found():
        for phone, log_p in model.followers(history).items():
            if phone == CLOSING:
                graph.end(history, log_p)
            else:
                graph.arc(history, model.after(history, phone), log_p)
    return graph.graph()


def numerator(said: Said, model: PhoneNgram, emitted: Emitted) -> StateGraph:
    """Return all ways to say a transcript, weighted by the model."""
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
    """A graph whose states are numbered as they are found."""

    def __init__(self, start: Key, columns: Callable[[Key], tuple[int, int]]) -> None:
        self._columns, self._order = columns, [start]
        self._numbers = {start: 0}
        self._arcs: list[tuple[int, int, float]] = []
        self._ends: dict[int, float] = {}

    def found(self) -> Iterator[Key]:
        """Yield every state once, those that are found meanwhile too."""
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
