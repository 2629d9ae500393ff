"""n-grams over symbols as an automaton: interpolated modified Kneser-Ney (ngrams/estimate.py), arrays throughout.

Every node of the automaton is a history h that something follows, every arc an n-gram with its finished p, and from
every node but the empty one a back-off arc leads to the shorter history. Since the finished p of an n-gram is never
below its value by way of the shorter history, the best path through arcs and back-off arcs has the very score of the
n-gram.

Legend: V different symbols, A arcs, N nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundelay_speech.ngrams.estimate import Estimator, count, model_of
from roundelay_speech.ngrams.ngram import BEGIN, END, NEVER, ROOT

Ints = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

EMPTY, START = 0, 1  # nodes: no history; the beginning of a sequence
FINAL = -1  # where the end of a sequence leads
_NATS = np.log(10.0)


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


def estimate_automaton(sequences: Sequence[Sequence[int]], symbols: int, order: int) -> Automaton:
    """Count the n-grams of sequences of symbols 0 to V - 1, and make them an automaton of this order (2 or more)."""
    words = (*map(str, range(symbols)), END, BEGIN)
    levels = count((map(str, sequence) for sequence in sequences), words, order)
    model = model_of(Estimator(method="kneser-ney"), words, levels, symbols + 1)
    followed = np.zeros(len(model.key) + 1, bool)
    followed[model.parent[1:]] = True
    begin = int(model.node([BEGIN]))
    nodes = np.flatnonzero(followed)
    nodes = np.concatenate([[ROOT, begin], nodes[(nodes != ROOT) & (nodes != begin)]])
    number = np.zeros(len(followed), np.int64)
    number[nodes] = np.arange(len(nodes))
    history = np.arange(len(followed))  # the longest suffix of each n-gram that something follows
    while len(todo := np.flatnonzero(~followed[history])):
        history[todo] = model.shorter[history[todo]]
    length = np.repeat(np.arange(len(model.counts) + 1), [1, *model.counts])
    arcs = 1 + np.flatnonzero(model.log10 > NEVER)
    return Automaton(
        symbols,
        source=number[model.parent[arcs]],
        symbol=model.last[arcs],
        target=np.where(model.last[arcs] == symbols, FINAL, number[history[arcs]]),
        cost=-_NATS * model.log10[arcs - 1],
        shorter=number[history[model.shorter[nodes]]],
        back_off=-_NATS * model.weight[nodes],
        length=length[nodes],
    )
