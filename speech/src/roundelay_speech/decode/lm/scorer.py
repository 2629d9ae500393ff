"""The seam between a language model and code that asks it for words one after the other.

A scorer has states; a state stands for all that the model remembers of the words so far. Two of them are made from our
own arrays: `ArpaScorer` asks for P(w | h) as an ARPA file means it, `PathScorer` for the cheapest way through the
transducer G that a decoding graph is made of (graphs/grammar.py). These are not the same: there, giving up the oldest
word is an arc that any path may take, also where the model lists the n-gram, so

    cost of G for w1 ... wn = min over all choices of giving up words <= sum_i -ln P(wi | h_i).

The charge of a graph is taken back exactly only if it is counted the way the graph counts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable

from roundelay_speech.ngrams.ngram import BEGIN, END, NEVER, ROOT, Arpa

NATS = -math.log(10.0)
"""Factor from a log10 probability to a cost in nats."""

_DIGITS = 9  # of costs inside states: finer differences come from the order of additions


class Scorer(ABC):
    """A language model, word by word. States are hashable, and equal only if all that follows costs the same."""

    @property
    @abstractmethod
    def start(self) -> Hashable:
        """The state at the start of a sentence."""

    @abstractmethod
    def knows(self, word: str) -> bool:
        """Return True if the model can predict the word; an unknown-word token is no word."""

    @abstractmethod
    def word(self, state: Hashable, word: str) -> tuple[float, Hashable]:
        """Return the cost in nats of a word that the model knows, and the state after it."""

    @abstractmethod
    def end(self, state: Hashable) -> float:
        """Return the cost of ending the sentence here, in nats; inf: impossible."""

    def sentence(self, words: tuple[str, ...]) -> float:
        """Return the cost of a whole sentence in nats, its end included; inf if the model does not know a word."""
        total, state = 0.0, self.start
        for word in words:
            if not self.knows(word):
                return math.inf
            cost, state = self.word(state, word)
            total += cost
        return total + self.end(state)


class _Nodes:
    """Access to single nodes of a model's arrays: whole-array operations are faster only for many nodes."""

    def __init__(self, model: Arpa) -> None:
        self.key, self.size = model.key, len(model.words)
        self.ids = model.word_ids
        self.shorter, self.weight, self.log10 = model.shorter, model.weight, model.log10
        self.begin = model.node([BEGIN])
        self.known = {word for word in model.vocabulary if model.log10[self.ids[word]] > NEVER}

    def child(self, node: int, word: int) -> int:
        """Return the child of a node by a word; the root, which is no child, if there is none."""
        key = node * self.size + word
        place = int(self.key.searchsorted(key))
        return place + 1 if place < len(self.key) and int(self.key[place]) == key else ROOT

    def cost(self, node: int) -> float:
        log10 = float(self.log10[node - 1])
        return NATS * log10 if log10 > NEVER else math.inf

    def give_up(self, node: int) -> tuple[float, int]:
        """Return the cost of dropping the oldest word of a history, and the node of the rest."""
        return NATS * float(self.weight[node]), int(self.shorter[node])


class ArpaScorer(Scorer):
    """A language model by back-off, exactly as an ARPA file has it: the longest listed n-gram counts. States
    are nodes."""

    def __init__(self, model: Arpa) -> None:
        self._nodes = _Nodes(model)

    @property
    def start(self) -> Hashable:
        return self._nodes.begin

    def knows(self, word: str) -> bool:
        return word in self._nodes.known

    def word(self, state: Hashable, word: str) -> tuple[float, Hashable]:
        return self._predict(state, self._nodes.ids[word])

    def end(self, state: Hashable) -> float:
        return self._predict(state, self._nodes.ids[END])[0]

    def _predict(self, state: Hashable, word: int) -> tuple[float, int]:
        assert isinstance(state, int)
        nodes, paid = self._nodes, 0.0
        while (found := nodes.child(state, word)) == ROOT and state != ROOT:
            cost, state = nodes.give_up(state)
            paid += cost
        return (paid + nodes.cost(found), found) if found != ROOT else (math.inf, ROOT)


_Paths = tuple[tuple[int, float], ...]
"""All paths that may still be the best, as (history, its cost above the cheapest), the longest history first."""


class PathScorer(Scorer):
    """A language model as a decoding graph has it, by the cheapest way through its grammar: back-off is an arc like any
    other."""

    def __init__(self, model: Arpa) -> None:
        self._nodes = _Nodes(model)

    @property
    def start(self) -> Hashable:
        return ((self._nodes.begin, 0.0),)

    def knows(self, word: str) -> bool:
        return word in self._nodes.known

    def word(self, state: Hashable, word: str) -> tuple[float, Hashable]:
        nodes, best = self._nodes, math.inf
        reached: list[tuple[int, float]] = []
        for node, paid in self._histories(state):
            found = nodes.child(node, nodes.ids[word])
            if found != ROOT and math.isfinite(cost := nodes.cost(found)):
                reached.append((found, paid + cost))
                best = min(best, reached[-1][1])
        return best, self._needed(reached, best)

    def end(self, state: Hashable) -> float:
        nodes, best = self._nodes, math.inf
        for node, paid in self._histories(state):
            if (found := nodes.child(node, nodes.ids[END])) != ROOT:
                best = min(best, paid + nodes.cost(found))
        return best

    def _histories(self, state: Hashable) -> list[tuple[int, float]]:
        """Return every history that can be reached by dropping words, with the least cost of that, the longest
        first."""
        assert isinstance(state, tuple)
        cost = dict(state)
        node, paid = next(iter(state))
        found = [(node, paid)]
        while node != ROOT:
            price, node = self._nodes.give_up(node)
            paid = min(paid + price, cost.get(node, math.inf))
            found.append((node, paid))
        return found

    def _needed(self, reached: list[tuple[int, float]], best: float) -> _Paths:
        """Return the `reached` histories (each a suffix of the one before) that are cheaper than dropping words
        later."""
        kept = [(reached[0][0], round(reached[0][1] - best, _DIGITS))]
        node, paid = reached[0]
        cheaper = dict(reached[1:])
        while cheaper and node != ROOT:
            price, node = self._nodes.give_up(node)
            paid += price
            if (own := cheaper.pop(node, math.inf)) < paid - 1e-9:
                kept.append((node, round(own - best, _DIGITS)))
                paid = own
        return tuple(kept)
