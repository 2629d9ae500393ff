"""All ways to say a row of words: every pronunciation, and a silence or none at the ends and between words.

A graph without cycles whose arcs are phones. Nodes are numbered so that arcs lead to higher numbers; node 0 is the
beginning.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from roundelay_speech.lexicon.lexicon import Lexicon

EDGES, BETWEEN = 0.8, 0.2
"""Probability of a silence at either end of an utterance, and between two of its words: what flat-start LF-MMI assumes
(Hadian et al. 2018)."""
OPENING, CLOSING = "<s>", "</s>"


@dataclass(frozen=True)
class SaidArc:
    """One phone."""

    phone: str
    target: int
    probability: float  # of all arcs that leave a node, and of ending there, the sum is 1


@dataclass(frozen=True)
class Said:
    """All ways to say a row of words."""

    arcs: tuple[tuple[SaidArc, ...], ...]  # that leave each node
    ends: tuple[float, ...]  # probability of ending in each node

    def shortest(self) -> int:
        """Return phones of the shortest way."""
        least: list[float] = [0.0, *[math.inf] * (len(self.arcs) - 1)]
        for node, arcs in enumerate(self.arcs):
            for arc in arcs:
                least[arc.target] = min(least[arc.target], least[node] + 1)
        return int(min(size for size, end in zip(least, self.ends, strict=True) if end > 0))


def ways_to_say(words: Sequence[str], lexicon: Lexicon) -> Said | None:
    """Return all ways to say these words, pronunciations of a word with equal probability; None where one of them has
    none."""
    if any(word not in lexicon for word in words):
        return None
    arcs: list[list[SaidArc]] = []
    ends: list[float] = []

    def node() -> int:
        arcs.append([])
        ends.append(0.0)
        return len(arcs) - 1

    here, paused = node(), node()
    for number, word in enumerate(words):
        silence = EDGES if number == 0 else BETWEEN
        arcs[here].append(SaidArc(lexicon.silence, paused, silence))
        variants = lexicon.pronunciations[word]
        inner = [[node() for _ in said[1:]] for said in variants]
        after, after_paused = node(), node()
        for said, nodes in zip(variants, inner, strict=True):
            way = [*nodes, after]
            share = 1.0 / len(variants)
            arcs[here].append(SaidArc(said[0], way[0], (1.0 - silence) * share))
            arcs[paused].append(SaidArc(said[0], way[0], share))
            for place, phone in enumerate(said[1:]):
                arcs[way[place]].append(SaidArc(phone, way[place + 1], 1.0))
        here, paused = after, after_paused
    silence = EDGES if words else 1.0
    arcs[here].append(SaidArc(lexicon.silence, paused, silence))
    ends[here], ends[paused] = 1.0 - silence, 1.0
    return Said(tuple(map(tuple, arcs)), tuple(ends))


def expected_ngrams(said: Said, order: int) -> Counter[tuple[str, ...]]:
    """Return the mean number of times that every n-gram of phones occurs.

    An n-gram is a history of up to `order` - 1 phones, with `OPENING` first where it begins an utterance, and then a
    phone or `CLOSING`.
    """
    found: Counter[tuple[str, ...]] = Counter()
    reached: list[defaultdict[tuple[str, ...], float]] = [defaultdict(float) for _ in said.arcs]
    reached[0][(OPENING,)] = 1.0
    keep = order - 1
    for node, arcs in enumerate(said.arcs):
        for history, mass in reached[node].items():
            shown = history[len(history) - min(keep, len(history)) :]
            for arc in arcs:
                part = mass * arc.probability
                found[(*shown, arc.phone)] += part  # type: ignore[assignment]
                longer = (*shown, arc.phone)
                reached[arc.target][longer[max(0, len(longer) - keep) :]] += part
            if said.ends[node] > 0:
                found[(*shown, CLOSING)] += mass * said.ends[node]  # type: ignore[assignment]
    return found
