"""Alignment of a reference with a hypothesis: which words are right, substituted, deleted, inserted.

The convention, for comparing counts: of all alignments those with the fewest errors; of these those with the
fewest substitutions, that is, with the most correct words. It makes all four counts unique: insertions minus deletions
is the difference of the lengths, so substitutions and the total leave nothing free. sclite weighs insertions and
deletions 3 and substitutions 4 (`SCLITE`); its total can be higher where five substitutions have the choice of becoming
three insertions and three deletions, and is the same, in all four counts, wherever it is the smallest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roundelay_speech.bindings import kaldialign
from roundelay_speech.scoring.alignment.marks import Arc, WordNetwork, fragments_match, plain_network

Pair = tuple[str | None, str | None]
"""(reference word, hypothesis word); None on the side where a word is missing."""


@dataclass(frozen=True)
class Costs:
    """The costs of an alignment: of an insertion, a deletion, a substitution, an omitted optional word, and a skipped
    `@`."""

    ins: int
    del_: int
    sub: int
    optional: int = 0
    nothing: int = 0

    def alone(self, arc: Arc, price: int) -> int:
        """Return the cost of an arc without a word on the other side, where a word costs `price`."""
        if arc.word is None:
            return self.nothing if arc.optional else 0
        return self.optional if arc.optional else price


_MANY = 1 << 30  # more than the errors of any utterance
FEWEST = Costs(_MANY, _MANY, _MANY + 1)
"""Fewest errors, then fewest substitutions: the default."""
SCLITE = Costs(3 * _MANY + 1, 3 * _MANY + 1, 4 * _MANY + 1, optional=2 * _MANY, nothing=_MANY // 1000)
"""The costs of sclite; of equal costs the fewest errors win (sclite takes either)."""


@dataclass(frozen=True)
class WordAlignment:
    """An alignment: the pairs in order, and the positions of pairs that differ but are right: missing optional words,
    and fragments whose word was recognised."""

    pairs: tuple[Pair, ...]
    forgiven: frozenset[int] = frozenset()


def align_words(ref: Sequence[str], hyp: Sequence[str], costs: Costs = FEWEST) -> tuple[Pair, ...]:
    """Return a cheapest alignment of two sequences of words, as (reference, hypothesis) pairs in order."""
    words = [*dict.fromkeys([*ref, *hyp])]  # numbered, so that no word can be mistaken for the gap
    number = {word: i for i, word in enumerate(words)}
    refs, hyps = [number[w] for w in ref], [number[w] for w in hyp]
    if costs in (FEWEST, SCLITE):
        # kaldialign knows sclite's costs and unit costs, but not how to break their ties. With sclite's costs the total
        # is almost always the smallest, and then the alignment is the one wanted under either.
        pairs = kaldialign.align(refs, hyps, -1, sclite_mode=True)
        if sum(r != h for r, h in pairs) == kaldialign.edit_distance(refs, hyps)["total"]:
            return tuple((words[r] if r >= 0 else None, words[h] if h >= 0 else None) for r, h in pairs)
    return align_networks(plain_network(ref), plain_network(hyp), costs).pairs


def align_networks(ref: WordNetwork, hyp: WordNetwork, costs: Costs = FEWEST, fragments: bool = False) -> WordAlignment:
    """Return a cheapest alignment over all readings of both sides; of equally cheap readings the one written first.

    Dynamic programming over pairs of nodes: time and memory go with the product of the numbers of arcs.

    Args:
        fragments: True if a fragment, on either side, is right against a word that begins or ends like it.
    """
    # costs[i][j] and steps[i][j], how it was reached: as for two strings, except that a node may be reached by several
    # arcs. Nodes are numbered so that an arc comes from a smaller number. The loops are plain for speed.
    alone = [[(arc.start, arc.word, costs.alone(arc, costs.ins), arc.free) for arc in arcs] for arcs in hyp.into]
    totals: list[list[float]] = []
    steps: list[list[_Step]] = []
    for i, ref_arcs in enumerate(ref.into):
        row: list[float] = []
        ways: list[_Step] = []
        totals.append(row)
        steps.append(ways)
        for j, hyp_arcs in enumerate(alone):
            low, way = (0.0, _BEGIN) if i == j == 0 else (math.inf, _BEGIN)
            for arc in ref_arcs:
                start, word = arc.start, arc.word
                above = totals[start]
                cost = above[j] + costs.alone(arc, costs.del_)
                if cost < low:
                    low, way = cost, (start, j, (word, None), arc.optional)
                if word is None:
                    continue
                for before, said, _, _ in hyp_arcs:
                    if said is None or above[before] >= low:
                        continue
                    right = word == said or (fragments and fragments_match(word, said))
                    cost = above[before] + (0 if right else costs.sub)
                    if cost < low:
                        low, way = cost, (start, before, (word, said), right and word != said)
            for before, said, price, free in hyp_arcs:
                cost = row[before] + price
                if cost < low:
                    low, way = cost, (i, before, (None, said), free)
            row.append(low)
            ways.append(way)
    return _trace(steps)


_Step = tuple[int, int, Pair, bool]
"""A step of an alignment: the nodes of reference and hypothesis before, the pair between (both None if nothing is
said), and whether it is forgiven."""
_BEGIN: _Step = (0, 0, (None, None), False)


def _trace(steps: list[list[_Step]]) -> WordAlignment:
    i, j = len(steps) - 1, len(steps[0]) - 1
    found = []
    while i or j:
        i, j, pair, forgiven = steps[i][j]
        if pair != (None, None):
            found.append((pair, forgiven))
    found.reverse()
    forgiven_at = frozenset(place for place, (_, forgiven) in enumerate(found) if forgiven)
    return WordAlignment(tuple(pair for pair, _ in found), forgiven_at)
