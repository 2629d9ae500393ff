"""Lattices with the costs of another language model: a large one, of which no graph could be made.

A lattice of the search has, for every word string W in it, one path, which costs

    A(W) + G(W),    A: acoustics, pronunciations, pauses, costs of words; G: the grammar that the graph was made of.

The decoding graph of any other grammar would charge A too. So the string costs A(W) + M(W) with a model M, and
that is put in by walking through the lattice and both models at once: a state of the result is a state of the lattice
with all that G and M remember of the words on the way there. No cost is approximated, and each string stays in the
result once. G is counted as the graph counts it (lm/scorer.py), so that nothing of it is left.

A string that the search left out is not found again: the lattice must be wide enough to hold the large model's choice.

Words that M does not know cannot be recognised, as with a graph made of M.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay_speech.decode.graphs.graph import load_words
from roundelay_speech.decode.graphs.making import LM_FILE
from roundelay_speech.decode.lattice import WordString
from roundelay_speech.decode.lm.arpa_file import read_arpa
from roundelay_speech.decode.lm.scorer import PathScorer, Scorer
from roundelay_speech.search.fst import ARC, Arcs

_REMEMBERED = 300_000  # pairs of state and word whose cost is kept from one utterance to the next, at most


@dataclass
class _Walk:
    """A lattice while it is expanded: arcs by number, ordered so that no arc comes before one that leads to it."""

    source: list[int]
    target: list[int]
    label: list[int]
    cost: list[float]
    final: dict[int, float]


class Rescorer:
    """A rescorer of lattices from one grammar, with which they were made, to another.

    Args:
        words: symbols by word id.
        old: the grammar of the decoding graph.
        new: the grammar whose costs lattices are to get.

    Raises:
        UserError: the grammars share no word.
    """

    def __init__(self, words: Sequence[str], old: Scorer, new: Scorer) -> None:
        self.words, self._old, self._new = tuple(words), old, new
        usable = [word for word in words if old.knows(word)]
        self._known = [old.knows(word) and new.knows(word) for word in words]
        self.unknown = [word for word in usable if not new.knows(word)]
        if len(self.unknown) == len(usable):
            raise UserError(
                f"The words of the decoding graph ({', '.join(usable[:5])}...) are not in the model of decode.rescore. "
                "Do they agree on upper and lower case?"
            )
        self._forget()

    def _forget(self) -> None:
        start = (self._old.start, self._new.start)
        self._pairs: list[tuple[Hashable, Hashable]] = [start]  # by number, the start first
        self._number: dict[tuple[Hashable, Hashable], int] = {start: 0}
        self._steps: dict[tuple[int, int], tuple[float, int]] = {}
        self._ends: dict[int, float] = {}

    def lattice(self, lattice: Arcs, beam: float) -> Arcs | None:
        """Return the lattice with the new model's costs, cut to strings within `beam` nats of the best; None: no string
        left.

        Args:
            lattice: deterministic acceptor of word ids, without cycles.
        """
        if len(self._steps) > _REMEMBERED:
            self._forget()
        walk = self._expand(lattice)
        return _pruned(walk, beam)

    def string(self, string: WordString) -> WordString:
        """Return a word string of the first search with its new cost; inf if the new model does not know a word."""
        new = self._new.sentence(string.words)
        return replace(string, cost=string.cost - self._old.sentence(string.words) + new)

    def _expand(self, lattice: Arcs) -> _Walk:
        leaving = _leaving(lattice)
        walk = _Walk([], [], [], [], {})
        here: defaultdict[int, dict[int, int]] = defaultdict(dict)  # lattice state -> pair of histories -> new state
        here[lattice.start][0] = 0
        states, steps, known, final = 1, self._steps, self._known, lattice.final.tolist()
        for state in _in_order(lattice.start, leaving):
            for pair, own in here.pop(state, {}).items():
                if final[state] < math.inf:
                    walk.final[own] = final[state] + self._end(pair)
                for word, cost, target in leaving[state]:
                    if word and not known[word]:
                        continue
                    change, behind = (steps.get((pair, word)) or self._step(pair, word)) if word else (0.0, pair)
                    if (place := here[target].get(behind)) is None:
                        place = here[target][behind] = states
                        states += 1
                    walk.source.append(own)
                    walk.target.append(place)
                    walk.label.append(word)
                    walk.cost.append(cost + change)
        return walk

    def _step(self, pair: int, word: int) -> tuple[float, int]:
        """Return the additional cost of a word, and the pair of histories after it."""
        (old, new), text = self._pairs[pair], self.words[word]
        paid, old = self._old.word(old, text)
        price, new = self._new.word(new, text)
        number = self._number.setdefault((old, new), len(self._pairs))
        if number == len(self._pairs):
            self._pairs.append((old, new))
        found = self._steps[pair, word] = (price - paid, number)
        return found

    def _end(self, pair: int) -> float:
        if pair not in self._ends:
            old, new = self._pairs[pair]
            self._ends[pair] = self._new.end(new) - self._old.end(old)
        return self._ends[pair]


def rescorer_of(graph_folder: Path, model: Scorer) -> Rescorer:
    """Make the rescorer of lattices of the graph in a folder, by the grammar beside the graph.

    Raises:
        UserError: no graph and grammar in the folder; the model has none of the graph's words.
    """
    return Rescorer(load_words(graph_folder), PathScorer(read_arpa(graph_folder / LM_FILE)), model)


_Leaving = dict[int, list[tuple[int, float, int]]]
"""The arcs that leave each state, as (word id, cost, target)."""


def _leaving(lattice: Arcs) -> _Leaving:
    result: _Leaving = defaultdict(list)
    arcs = lattice.arcs
    columns = (lattice.source.tolist(), arcs["ilabel"].tolist(), arcs["weight"].tolist(), arcs["target"].tolist())
    for source, word, cost, target in zip(*columns, strict=True):
        result[source].append((word, cost, target))
    return result


def _in_order(start: int, leaving: _Leaving) -> list[int]:
    """Return the reachable states in topological order."""
    waits: defaultdict[int, int] = defaultdict(int)
    seen, stack = {start}, [start]
    while stack:
        for _, _, target in leaving[stack.pop()]:
            waits[target] += 1
            if target not in seen:
                seen.add(target)
                stack.append(target)
    order, ready = [], [start]
    while ready:
        order.append(state := ready.pop())
        for _, _, target in leaving[state]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return order


def _pruned(walk: _Walk, beam: float) -> Arcs | None:
    """Prune an expanded lattice: return the arcs on paths within `beam` of the best, with states renumbered."""
    before: dict[int, float] = defaultdict(lambda: math.inf, {0: 0.0})
    for source, target, cost in zip(walk.source, walk.target, walk.cost, strict=True):
        before[target] = min(before[target], before[source] + cost)
    after: dict[int, float] = defaultdict(lambda: math.inf, walk.final)
    for source, target, cost in zip(reversed(walk.source), reversed(walk.target), reversed(walk.cost), strict=True):
        after[source] = min(after[source], after[target] + cost)
    if not math.isfinite(best := after[0]):
        return None
    most = best + beam + 1e-9
    arcs, sources, number = [], [], {0: 0}
    for source, target, label, cost in zip(walk.source, walk.target, walk.label, walk.cost, strict=True):
        if source in number and before[source] + cost + after[target] <= most:
            sources.append(number[source])
            arcs.append((label, label, cost, number.setdefault(target, len(number))))
    final = np.full(len(number), np.inf, np.float32)
    for state, cost in walk.final.items():
        if state in number and before[state] + cost <= most:
            final[number[state]] = cost
    return Arcs(0, final, np.array(sources, np.int64), np.array(arcs, ARC))
