"""G: the language model as a transducer, made from the arrays of the model (Kaldi's arpa2fst, without the file).

A state is a history that knows at least one next word; every other n-gram would be a state with nothing but a back-off
arc, so arcs to it go to where that arc would lead, its weight added. Of a trigram model with cut-offs this leaves a
fifth of the states, and the graphs made from it are so much smaller.

#0 is read, and nothing written, where a history gives up its oldest word.
"""

import math

import numpy as np
import numpy.typing as npt

from roundelay_speech.ngrams.ngram import BEGIN, END, NEVER, ROOT, Arpa, Floats, Ints
from roundelay_speech.search.fst import ARC, Arcs


def grammar_arcs(model: Arpa, word_label: Ints, backoff_label: int) -> Arcs:
    """Return G as arrays. `word_label`: (V,) the label of each word of the model; 0 for words that cannot be
    recognised, whose arcs are left out. `backoff_label`: of #0, an input label."""
    nodes = len(model.key) + 1
    begin, end, start = model.word_ids[BEGIN], model.word_ids[END], model.node([BEGIN])
    is_state = np.zeros(nodes, bool)
    is_state[model.parent[1:]] = True
    is_state[[ROOT, start]] = True
    state = np.cumsum(is_state) - 1
    shorter = model.shorter
    cost = -math.log(10.0) * model.weight  # of giving up the oldest word
    settled, paid = _nearest_state(is_state, shorter, cost)

    word, source = model.last, model.parent
    price = np.concatenate([[0.0], -math.log(10.0) * model.log10])
    possible = np.concatenate([[False], model.log10 > NEVER])
    said = np.flatnonzero(possible & (word != begin) & (word != end) & (np.append(word_label, 0)[word] > 0))
    gives_up = np.flatnonzero(is_state & (np.arange(nodes) != ROOT))
    arcs = np.zeros(len(said) + len(gives_up), ARC)
    arcs["ilabel"] = np.concatenate([word_label[word[said]], np.full(len(gives_up), backoff_label)])
    arcs["olabel"][: len(said)] = word_label[word[said]]
    arcs["weight"] = np.concatenate([price[said] + paid[said], cost[gives_up] + paid[shorter[gives_up]]])
    arcs["target"] = state[settled[np.concatenate([said, shorter[gives_up]])]]

    final = np.full(int(is_state.sum()), np.inf, np.float32)
    ends = np.flatnonzero(possible & (word == end))
    final[state[source[ends]]] = price[ends]
    return Arcs(int(state[start]), final, np.concatenate([state[source[said]], state[gives_up]]), arcs)


def _nearest_state(is_state: npt.NDArray[np.bool_], shorter: Ints, cost: Floats) -> tuple[Ints, Floats]:
    """Return for each node, the first state on its way of giving up words, itself included, and what the way there
    costs."""
    settled, paid = np.arange(len(shorter)), np.zeros(len(shorter))
    while len(todo := np.flatnonzero(~is_state[settled])):
        paid[todo] += cost[settled[todo]]
        settled[todo] = shorter[settled[todo]]
    return settled, paid
