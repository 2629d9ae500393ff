"""Numerator and denominator of lattice-free MMI as graphs of states that emit columns.

A state is a history of the language model of phones, which names the phone that is being said and, since it has the two
last of them, the one before. So all arcs that enter a state emit the same column in the frame they take, and while it
lasts the state emits another: the chain topology needs no states of its own. In a numerator a state is a history and a
place in the transcript, and has the same weights: a path of a numerator is a path of the denominator, if the model
allows it (`StateGraph.within`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from roundelay.core.state_graph import StateGraph
from roundelay_speech.lexicon.pronounced import CLOSING, OPENING, Said
from roundelay_speech.mmi.phone_ngram import BEGINNING, History, PhoneNgram
from roundelay_speech.units.states import Emitted

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
