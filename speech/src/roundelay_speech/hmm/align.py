"""Forced alignment: the best way through the states of known words (Viterbi).

The graph of an utterance holds every pronunciation of every word and an optional silence at the start, between words
and at the end. It is written down directly, state by state, and needs no transducer algebra:

    start -> [SIL] -> word 1 -> [SIL] -> word 2 ... -> [SIL] -> end        words: any of their pronunciations
    a phone between two neighbours = its states, each with a loop; an arc has the pdf of the state it enters

A phone with several possible neighbours (a word after an optional silence) is there once for each pair of them.

Legend: T frames of one utterance, U pdfs in its graph, S pdfs of the tying.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roundelay_speech.data.arrays import Float32, Int32
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, Tying, transitions
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.search.beam import search
from roundelay_speech.search.fst import ARC, Arcs, Fst, from_arrays

UNLIMITED = 2**31 - 1


@dataclass(frozen=True, eq=False)
class UtteranceGraph:
    """The graph of the states that an utterance of given words may pass through."""

    fst: Fst  # input label = place in `pdfs` + 1, output label = width * phone + state + 1
    pdfs: Int32  # (U,) those that occur in the graph, ascending: only their likelihoods are needed
    width: int = STATES


@dataclass(frozen=True, eq=False)
class Aligned:
    """The best path of an utterance: tied state, phone and state of each frame, (T,)."""

    pdfs: Int32
    phones: npt.NDArray[np.int16]
    states: npt.NDArray[np.int8]
    acoustic: float  # sum over frames of the (scaled) log-likelihoods of their pdfs


def shortest(words: Sequence[str], lexicon: Lexicon) -> int:
    """Return the fewest frames that words can be aligned to: three for each phone of their shortest pronunciations."""
    return STATES * sum(min(len(phones) for phones in lexicon.pronunciations[word]) for word in words)


@dataclass(frozen=True)
class _Phones:
    """Phones and the phones that may follow each; place 0 is the start, before any phone."""

    phone: list[int]  # by place
    after: list[list[tuple[int, float]]]  # by place: (place, cost of going there)
    end: dict[int, float]  # places that may be the last one, and the cost of ending there


def _phone_lattice(words: Sequence[str], lexicon: Lexicon, silence_probability: float) -> _Phones:
    present, absent = -math.log(silence_probability), -math.log(1.0 - silence_probability)
    lattice = _Phones([EDGE], [[]], {})

    def new(phone: int) -> int:
        lattice.phone.append(phone)
        lattice.after.append([])
        return len(lattice.phone) - 1

    ends = [0]  # places where the words so far may end, before a silence is decided on
    for word in [*words, None]:
        silence = new(SILENCE)
        for place in ends:
            lattice.after[place].append((silence, present))
        if word is None:
            lattice.end.update({place: absent for place in ends if place} | {silence: 0.0})
            break
        finished = []
        for variant in lexicon.pronunciations[word]:
            chain = [new(lexicon.phone_ids[phone]) for phone in variant]
            for place in ends:
                lattice.after[place].append((chain[0], absent))
            lattice.after[silence].append((chain[0], 0.0))
            for here, there in pairwise(chain):
                lattice.after[here].append((there, 0.0))
            finished.append(chain[-1])
        ends = finished
    return lattice


def utterance_graph(
    words: Sequence[str], lexicon: Lexicon, tying: Tying, silence_probability: float = 0.5
) -> UtteranceGraph:
    """Build the graph of the states that an utterance of these words may pass through."""
    lattice = _phone_lattice(words, lexicon, silence_probability)
    looks_left, looks_right = tying.context > 1, tying.context > 2
    # An instance is a phone (by place) between neighbours; those a tying does not look at are EDGE.
    number: dict[tuple[int, int, int], int] = {}
    pending: list[tuple[int, int, int]] = []
    links: list[tuple[int, int, float]] = []  # from instance, to instance, cost; instance -1 is the start
    final: dict[int, float] = {}

    def instance(place: int, left: int, right: int) -> int:
        key = (place, left, right)
        if key not in number:
            number[key] = len(number)
            pending.append(key)
        return number[key]

    def rights(place: int) -> list[int]:
        if not looks_right:
            return [EDGE]
        found = {lattice.phone[there] for there, _ in lattice.after[place]}
        return sorted(found | {EDGE} if place in lattice.end else found)

    def connect(source: int, place: int, right: int | None) -> None:
        left = lattice.phone[place] if looks_left else EDGE
        for there, cost in lattice.after[place]:
            if right is None or lattice.phone[there] == right:
                links.extend((source, instance(there, left, r), cost) for r in rights(there))

    connect(-1, 0, None)
    while pending:
        key = pending.pop()
        place, _, right = key
        if place in lattice.end and right == EDGE:
            final[number[key]] = lattice.end[place]
        connect(number[key], place, right if looks_right else None)
    return _with_states(number, links, final, lattice.phone, tying)


def phone_loop(tying: Tying) -> UtteranceGraph:
    """Build the graph of any phones in any order, by a tying that ignores neighbours: no words fit better, apart from
    the cost of silences."""
    # All phones come from one state and lead back to it: with an arc for each pair a search takes thrice as long.
    number = {(phone, EDGE, EDGE): phone - 1 for phone in range(1, len(tying.phones) + 1)}
    links = [(-1, target, 0.0) for target in number.values()]
    return _with_states(number, links, dict.fromkeys(number.values(), 0.0), range(len(tying.phones) + 1), tying, True)


def _with_states(
    number: dict[tuple[int, int, int], int],
    links: Sequence[tuple[int, int, float]],
    final: dict[int, float],
    phone_at: Sequence[int],
    tying: Tying,
    back: bool = False,
) -> UtteranceGraph:
    """Build the graph of the states of all phones' instances, numbered from 1 on; state 0 is the start, to which with
    `back` every instance leads."""
    keys = np.array(list(number))
    phone = np.array(phone_at)[keys[:, 0]]
    silence = phone == SILENCE
    size = np.where(silence, tying.states(SILENCE), STATES)
    first = 1 + np.cumsum(size) - size  # state of each instance
    owner = np.repeat(np.arange(len(keys)), size)
    within = np.arange(len(owner)) - (first - 1)[owner]
    pdf = tying.table[keys[owner, 1], phone[owner], keys[owner, 2], within]
    pdfs, column = np.unique(pdf, return_inverse=True)
    label = tying.width * phone[owner] + within + 1
    state = np.arange(1, len(pdf) + 1)
    inner = np.concatenate(
        [
            (first[some, None, None] + np.array(transitions(count), np.int64).reshape(-1, 2)).reshape(-1, 2)
            for some, count in ((~silence, STATES), (silence, tying.states(SILENCE)))
        ]
    )
    source, target, cost = (np.array(values) for values in zip(*links, strict=True))
    left_from = np.where(source < 0, 0, (first + size - 1)[source])  # the start (-1) is state 0
    sources = np.concatenate([state, inner[:, 0], left_from])
    arcs = np.zeros(len(sources), ARC)
    arcs["target"] = np.concatenate([state, inner[:, 1], first[target]])
    arcs["weight"][len(state) + len(inner) :] = cost
    arcs["ilabel"] = column[arcs["target"] - 1] + 1
    arcs["olabel"] = label[arcs["target"] - 1]
    if back:  # by arcs without a label, which take no frame
        sources = np.concatenate([sources, first + size - 1])
        arcs = np.concatenate([arcs, np.zeros(len(first), ARC)])
    ends = np.full(len(pdf) + 1, np.inf, np.float32)
    for i, weight in final.items():
        ends[first[i] + size[i] - 1] = weight
    graph = from_arrays(Arcs(0, ends, sources.astype(np.int64), arcs))
    return UtteranceGraph(graph, pdfs.astype(np.int32), tying.width)


def align(graph: UtteranceGraph, scores: Float32, beams: Sequence[float]) -> Aligned | None:
    """Return the best path, or None when no beam is wide enough for any path to reach the end.

    Args:
        scores: (T, U) scaled log-likelihoods of `graph.pdfs`.
        beams: tried in order; a narrow one is fast and mostly enough.
    """
    if not len(scores):
        return None
    for beam in beams:
        found = search(graph.fst, scores, beam, UNLIMITED)
        if found is not None and found[4]:
            columns, labels = np.array(found[0]) - 1, np.array(found[1]) - 1
            return Aligned(
                graph.pdfs[columns],
                (labels // graph.width).astype(np.int16),
                (labels % graph.width).astype(np.int8),
                -found[3],
            )
    return None


def word_spans(words: Sequence[str], lexicon: Lexicon, phones: Sequence[int]) -> list[tuple[int, int, str]] | None:
    """Return (first phone, phone behind the last, word or "" for silence) of a sequence of phones; None where they are
    not a pronunciation of the words."""

    # Forwards, the places that words so far may end at, with the way there; a silence may stand before any word.
    ends: dict[int, tuple[tuple[int, int, str], ...]] = {0: ()}
    for word in [*words, None]:
        found: dict[int, tuple[tuple[int, int, str], ...]] = {}
        for end, way in ends.items():
            starts = [(end, way)]
            if end < len(phones) and phones[end] == SILENCE:
                starts.append((end + 1, (*way, (end, end + 1, ""))))
            for start, before in starts:
                if word is None:
                    found.setdefault(start, before)
                    continue
                for variant in lexicon.pronunciations.get(word, ()):
                    stop = start + len(variant)
                    if [lexicon.phone_ids[p] for p in variant] == list(phones[start:stop]):
                        found.setdefault(stop, (*before, (start, stop, word)))
        ends = found
    return list(ends[len(phones)]) if len(phones) in ends else None
