"""Alignment of a reference with a hypothesis: which words are right, substituted, deleted, inserted.

The convention, for whoever compares counts: of all alignments those with the fewest errors; of these those with the
fewest substitutions, that is, with the most correct words. It makes all four counts unique: insertions minus deletions
is the difference of the lengths, so substitutions and the total leave nothing free. sclite weighs insertions and
deletions 3 and substitutions 4 (`SCLITE`); its total can be higher where five substitutions have the choice of becoming
three insertions and three deletions, and is the same, in all four counts, wherever it is the smallest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import kaldialign

from roundelay.speech.scoring.marks import Arc, Network, is_fragment_of, plain_network

Pair = tuple[str | None, str | None]
"""(reference word, hypothesis word); None on the side where a word is missing."""


@dataclass(frozen=True)
class Costs:
    """What an insertion, a deletion and a substitution cost."""

    ins: int
    del_: int
    sub: int


_MANY = 1 << 30  # more than the errors of any utterance
FEWEST = Costs(_MANY, _MANY, _MANY + 1)
"""Fewest errors, then fewest substitutions: the default."""
SCLITE = Costs(3 * _MANY + 1, 3 * _MANY + 1, 4 * _MANY + 1)
"""As sclite weighs them; of equal costs the fewest errors (sclite takes these or those)."""


@dataclass(frozen=True)
class Alignment:
    """The pairs in order, and the positions of those that differ and are right all the same.

    These are optional words that are missing and fragments whose word was recognised.
    """

    pairs: tuple[Pair, ...]
    forgiven: frozenset[int] = frozenset()


def align_words(ref: Sequence[str], hyp: Sequence[str], costs: Costs = FEWEST) -> tuple[Pair, ...]:
    """A cheapest alignment of two word sequences, as (reference, hypothesis) pairs in order."""
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


def align_networks(ref: Network, hyp: Network, costs: Costs = FEWEST, fragments: bool = False) -> Alignment:
    """A cheapest alignment over all readings of both sides; of equally cheap readings the one written first.

    Dynamic programming over pairs of nodes: time and memory go with the product of the numbers of arcs.

    Args:
        fragments: whether a fragment in the reference is right against a word that begins or ends like it.
    """
    # best[i][j] = (cost, node of ref before, node of hyp before, pair, forgiven), as for two strings, except that a
    # node may be reached by several arcs. Nodes are numbered so that an arc comes from a smaller number.
    best: list[list[_Step]] = []
    for i, ref_arcs in enumerate(ref.into):
        row: list[_Step] = []
        best.append(row)
        for j, hyp_arcs in enumerate(hyp.into):
            found: _Step = (0, 0, 0, None, False) if i == j == 0 else _UNREACHED
            for r in ref_arcs:
                found = _cheaper(found, _leave_out(best[r.start][j][0], r, costs.del_, (r.start, j), (r.word, None)))
                for h in hyp_arcs:
                    if r.word is not None and h.word is not None:
                        right = r.word == h.word or (fragments and is_fragment_of(r.word, h.word))
                        cost = best[r.start][h.start][0] + (0 if right else costs.sub)
                        forgiven = right and r.word != h.word
                        found = _cheaper(found, (cost, r.start, h.start, (r.word, h.word), forgiven))
            for h in hyp_arcs:
                found = _cheaper(found, _leave_out(row[h.start][0], h, costs.ins, (i, h.start), (None, h.word)))
            row.append(found)
    return _trace(best)


_Step = tuple[float, int, int, Pair | None, bool]
_UNREACHED: _Step = (float("inf"), 0, 0, None, False)


def _cheaper(old: _Step, new: _Step) -> _Step:
    return new if new[0] < old[0] else old


def _leave_out(so_far: float, arc: Arc, cost: int, before: tuple[int, int], pair: Pair) -> _Step:
    """Pass an arc of one side alone: for nothing if it says nothing or is optional."""
    if arc.word is None:
        return so_far, *before, None, False
    return so_far + (0 if arc.optional else cost), *before, pair, arc.optional


def _trace(best: list[list[_Step]]) -> Alignment:
    i, j = len(best) - 1, len(best[0]) - 1
    steps = []
    while i or j:
        _, before, beside, pair, forgiven = best[i][j]
        if pair is not None:
            steps.append((pair, forgiven))
        i, j = before, beside
    steps.reverse()
    forgiven_at = frozenset(place for place, (_, forgiven) in enumerate(steps) if forgiven)
    return Alignment(tuple(pair for pair, _ in steps), forgiven_at)
