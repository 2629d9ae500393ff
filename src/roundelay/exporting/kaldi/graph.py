"""The decoding graph with transition-ids, and what Kaldi reads beside it.

A transition-id says phone, state, pdf, and the way it is left, so that Kaldi finds phones and words in a path. Ours
stand where Kaldi's are with --reorder=true: the way out of a state on the arc that enters it, its loop behind. Weights
are those of the packed graph, costs of words in them: transitions cost nothing here, and Kaldi's decoders take all
costs from the graph.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from roundelay.core.files import atomic_write, write_text
from roundelay.speech.decode.graphs.graph import FST_FILE, PHONES_FILE, WORDS_FILE
from roundelay.speech.decode.graphs.hmm import GraphOfStates
from roundelay.speech.hmm.formats.kaldi_model import TransitionModel
from roundelay.speech.hmm.topology import SILENCE
from roundelay.speech.lexicon.lexicon import INSIDE, SINGLE, WORD_BEGIN, WORD_END, are_by_position
from roundelay.speech.search.fst import Arcs, add_output_cost, write_arrays

PLACES = {WORD_BEGIN: "begin", WORD_END: "end", INSIDE: "internal", SINGLE: "singleton"}


def with_transition_ids(graph: GraphOfStates, model: TransitionModel, word_cost: float) -> Arcs:
    """The graph with transition-ids for input labels, and the costs of words."""
    first = dict(zip((told[:3] for told in model.tuples), model.first_ids.tolist(), strict=True))
    loop_of = np.array([0, *(first[state] for state in graph.states)])
    arcs = graph.arcs.arcs.copy()
    entered = arcs["ilabel"] > 0
    loops = entered & (arcs["target"] == graph.arcs.source)
    arcs["ilabel"] = loop_of[arcs["ilabel"]] + (entered & ~loops)
    return add_output_cost(replace(graph.arcs, arcs=arcs), word_cost)


def write_graph_folder(folder: Path, graph: GraphOfStates, arcs: Arcs, pdfs: int) -> None:
    """Write HCLG.fst, words.txt, phones.txt, num_pdfs and phones/, as utils/mkgraph.sh leaves them."""
    with atomic_write(folder / FST_FILE) as file:
        write_arrays(file, arcs)
    write_text(folder / WORDS_FILE, symbols(graph.symbols.words))
    write_text(folder / PHONES_FILE, symbols((*graph.symbols.phones, *graph.symbols.disambiguation)))
    write_text(folder / "num_pdfs", f"{pdfs}\n")
    write_text(folder / "phones/silence.csl", f"{SILENCE}\n")
    phones = graph.symbols.phones[1:]
    if are_by_position(phones):
        write_text(folder / "phones/word_boundary.int", _boundaries(phones))


def symbols(names: Sequence[str]) -> str:
    """Contents of a symbol table: a name and its number a line."""
    return "".join(f"{name} {number}\n" for number, name in enumerate(names))


def _boundaries(phones: Sequence[str]) -> str:
    """Places in words of phones, a number and a place a line."""
    places = ["nonword" if number == SILENCE else PLACES[phone[-2:]] for number, phone in enumerate(phones, 1)]
    return "".join(f"{number} {place}\n" for number, place in enumerate(places, 1))
