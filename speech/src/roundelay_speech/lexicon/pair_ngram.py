"""n-grams over symbols as an automaton: interpolated modified Kneser-Ney (Chen and Goodman 1999), arrays throughout.

    p(w | h) = (c(h w) - D(c(h w))) / c(h) + g(h) p(w | h without its first symbol)

c counts at the highest order, and for grams at the beginning of a sequence; elsewhere it is the number of different
symbols before the gram. g(h) is what the discounts D have saved. Every node of the automaton is a history h, every arc
a gram with its finished p, and from every node but the empty one a back-off arc with g(h) leads to the shorter history.
Since the finished p of a gram is never below its value by way of the shorter history, the best path through arcs and
back-off arcs has the very score of the n-gram.

Legend: T symbols of all sequences, V different symbols, A arcs, N nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

EMPTY, START = 0, 1  # nodes: no history; the beginning of a sequence
FINAL = -1  # where the end of a sequence leads


@dataclass(frozen=True, eq=False)
class Automaton:
    """Histories and what may follow them; costs are in nats.

    Attributes:
        source, symbol, target, cost: (A,) of every arc; symbol V is the end of a sequence, its target FINAL.
        shorter, back_off: (N,) the node of the shorter history (EMPTY's is itself) and the cost of going there.
        length: (N,) symbols of each history.
    """

    symbols: int  # V
    source: Ints
    symbol: Ints
    target: Ints
    cost: Float64
    shorter: Ints
    back_off: Float64
    length: Ints


@dataclass(frozen=True, eq=False)
class _Grams:
    """All grams of one length."""

    context: Ints  # gram without its last symbol, one shorter
    symbol: Ints
    suffix: Ints  # gram without its first symbol, one shorter
    begins: npt.NDArray[np.bool_]  # at the beginning of a sequence
    count: Ints


def estimate_automaton(sequences: Sequence[Sequence[int]], symbols: int, order: int) -> Automaton:
    """Count the grams of sequences of symbols 0 to V - 1, and make them an automaton of this order (2 or more)."""
    begin, end = symbols + 1, symbols
    text = np.concatenate([[begin, *sequence, end] for sequence in sequences]).astype(np.int64)
    place = np.concatenate([np.arange(len(sequence) + 2) for sequence in sequences])
    levels = _all_grams(text, place, symbols + 2, order)
    counts = [
        grams.count
        if length == order
        else np.where(grams.begins, grams.count, np.bincount(levels[length].suffix, minlength=len(grams.count)))
        for length, grams in enumerate(levels, 1)
    ]
    counts[0][begin] = 0  # never comes after anything
    node = [np.zeros(1, np.int64)]  # by length of gram: its node, or -1
    owners = np.zeros(1, np.int64)  # the grams that are nodes, in the order of their nodes
    nodes = 1
    shorter, back_off, lengths = [np.zeros(1, np.int64)], [np.zeros(1)], [np.zeros(1, np.int64)]
    arcs: list[tuple[Ints, Ints, Ints, Float64]] = []
    below = np.full(1, 1.0 / (symbols + 1))  # p of the suffixes, one shorter
    beyond = np.zeros(1, np.int64)  # where the suffixes lead
    for length, (grams, count) in enumerate(zip(levels, counts, strict=True), 1):
        discount = _discounts(count)[np.minimum(count, 3)]
        total = np.bincount(grams.context, count, len(node[-1]))
        saved = np.bincount(grams.context, discount, len(node[-1]))
        rest = saved / np.maximum(total, 1)
        back_off[-1] = -np.log(np.maximum(rest[owners], 1e-30))
        p = (count - discount) / np.maximum(total, 1)[grams.context] + rest[grams.context] * below[grams.suffix]
        own = np.full(len(count), -1, np.int64)
        if length < order:
            followed = np.unique(levels[length].context)
            if length == 1:  # so that START is node 1
                followed = np.concatenate([[begin], followed[followed != begin]])
            owners = followed
            own[owners] = nodes + np.arange(len(owners))
            shorter.append(node[-1][grams.suffix[owners]])
            lengths.append(np.full(len(owners), length))
            back_off.append(np.zeros(len(owners)))
            nodes += len(owners)
        beyond = np.where(own >= 0, own, beyond[grams.suffix])
        told = count > 0
        target = np.where(grams.symbol == end, FINAL, beyond)
        arcs.append((node[-1][grams.context][told], grams.symbol[told], target[told], -np.log(p[told])))
        node.append(own)
        below = p
    source, symbol, target, cost = (np.concatenate(parts) for parts in zip(*arcs, strict=True))
    return Automaton(
        symbols,
        source,
        symbol,
        target,
        cost,
        np.concatenate(shorter),
        np.concatenate(back_off),
        np.concatenate(lengths),
    )


def _all_grams(text: Ints, place: Ints, size: int, order: int) -> list[_Grams]:
    """Return grams of lengths 1 to `order`; none reaches over the beginning of its sequence. Length 1 holds all
    symbols."""
    zeros = np.zeros(size, np.int64)
    begins = np.zeros(size, bool)
    levels = [_Grams(zeros, np.arange(size), zeros, begins, np.bincount(text, minlength=size))]
    current = text  # the gram that ends at each place; -1: reaches over the beginning
    for length in range(2, order + 1):
        whole = np.flatnonzero(place >= length - 1)
        context, symbol, suffix = current[whole - 1], text[whole], current[whole]
        _, first, number, count = np.unique(
            context * size + symbol, return_index=True, return_inverse=True, return_counts=True
        )
        levels.append(_Grams(context[first], symbol[first], suffix[first], place[whole][first] == length - 1, count))
        current = np.full(len(text), -1, np.int64)
        current[whole] = number
    return levels


def _discounts(count: Ints) -> Float64:
    """Return D by count 0, 1, 2, 3 and more (Chen and Goodman 1999, equation 26); 0.5, 1, 1.5 where counts are too
    few."""
    n = [int((count == i).sum()) for i in range(1, 5)]
    if min(n) == 0:
        return np.array([0.0, 0.5, 1.0, 1.5])
    y = n[0] / (n[0] + 2 * n[1])
    found = [0.0, *(i - (i + 1) * y * n[i] / n[i - 1] for i in range(1, 4))]
    return np.clip(found, [0.0, 0.05, 0.05, 0.05], [0.0, 0.95, 1.95, 2.95])
