"""A decoding graph in memory and on disk, and the parts of all kinds of it: words, their pronunciations, a language
model.

    G  words by the language model (grammar.py: back-off on #0)
    L  phones to words: all pronunciations, optional silence at the start and after every word, disambiguation symbols

Costs of words are put on last: a finished graph can be given others without being built again.

G: the language model as a transducer, made from the arrays of the model (Kaldi's arpa2fst, without the file).

A state is a history that knows at least one next word; every other n-gram would be a state with nothing but a back-off
arc, so arcs to it go to where that arc would lead, its weight added. Of a trigram model with cut-offs this leaves a
fifth of the states, and the graphs made from it are so much smaller.

#0 is read, and nothing written, where a history gives up its oldest word.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import read_checked, write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_text, write_text
from roundelay_speech.bindings import kaldifst
from roundelay_speech.decode.graphs.transducers import BACKOFF, EPSILON, Symbols, lexicon_transducer
from roundelay_speech.kaldi_io.tables import symbol_table
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import BEGIN, END, NEVER, ROOT, Arpa, Floats, Ints, Restricted, restrict
from roundelay_speech.search.fst import (
    ARC,
    Arcs,
    Fst,
    add_output_cost,
    file_bytes,
    from_arrays,
    map_input,
    merge_equal_states,
    read_checked_fst,
    to_arrays,
    write_arrays,
)


def grammar_arcs(model: Arpa, word_label: Ints, backoff_label: int) -> Arcs:
    """Return the grammar G as arrays. `word_label`: (V,) the label of each word of the model; 0 for words that cannot
    be recognised, whose arcs are left out. `backoff_label`: the input label of #0."""
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
    """Return for each node the first state that is reached by giving up words, itself included, and the cost of the
    way."""
    settled, paid = np.arange(len(shorter)), np.zeros(len(shorter))
    while len(todo := np.flatnonzero(~is_state[settled])):
        paid[todo] += cost[settled[todo]]
        settled[todo] = shorter[settled[todo]]
    return settled, paid


FST_FILE, WORDS_FILE, PHONES_FILE, GRAPH_FILE = "HCLG.fst", "words.txt", "phones.txt", "graph.json"
GRAPH_VERSION = 2


@dataclass(frozen=True)
class GraphConfig:
    """Options of a graph besides lexicon, language model and columns."""

    silence_probability: float = 0.5  # of a silence at the start and after each word
    word_cost: float = 0.0  # added for every word, in nats; above 0 it trades insertions for deletions

    def __post_init__(self) -> None:
        if not 0.0 < self.silence_probability < 1.0:
            raise UserError(f"silence_probability {self.silence_probability} is not between 0 and 1 (both excluded).")
        if not math.isfinite(self.word_cost):
            raise UserError(f"word_cost {self.word_cost} is not a number; 0 to 2 is usual.")


@dataclass(frozen=True, eq=False)
class Graph:
    """A decoding graph in memory."""

    fst: Fst  # kaldifst.StdConstFst; input labels are pdf + 1, output labels word ids
    words: tuple[str, ...]  # symbols by word id (id 0 is epsilon)
    num_pdfs: int  # columns that log-likelihoods must have
    info: Mapping[str, Any]  # content of graph.json

    def with_word_cost(self, cost: float) -> "Graph":
        """Return the graph with another cost of a word (nats); itself if it has that cost."""
        change = cost - float(self.info["word_cost"])
        if not change:
            return self
        fst = from_arrays(add_output_cost(to_arrays(self.fst), change))
        return replace(self, fst=fst, info={**self.info, "word_cost": cost})

    def favouring(self, words: Collection[str], bonus: float) -> "Graph":
        """Return the graph with the cost of `words` reduced by `bonus` nats; itself if there are none.

        Raises:
            UserError: the graph lacks a word (names it).
        """
        if not words or not bonus:
            return self
        ids = {word: number for number, word in enumerate(self.words)}
        if unknown := [word for word in words if word not in ids]:
            raise UserError(f"{unknown[0]!r} cannot be favoured: it is not among the words of the decoding graph.")
        labels = np.array([ids[word] for word in words])
        return replace(self, fst=from_arrays(add_output_cost(to_arrays(self.fst), -bonus, labels)))


def lexicon_and_grammar(
    lexicon: Lexicon, model: Arpa, phones: Sequence[str], config: GraphConfig, *, silence: bool = True
) -> tuple[Symbols, Fst]:
    """Build L o G, determinized and merged, sorted by input label."""
    symbols, lexicon_fst = lexicon_transducer(lexicon, phones, config.silence_probability if silence else None)
    ids = symbols.word_ids
    labels = np.array([ids[word] if word in lexicon else 0 for word in model.words])
    grammar = from_arrays(grammar_arcs(model, labels, ids[BACKOFF]))
    lg = kaldifst.compose(lexicon_fst, grammar)
    del grammar, lexicon_fst
    kaldifst.determinize_star(lg, use_log=True)
    arcs = to_arrays(lg)
    del lg
    lg = kaldifst.StdVectorFst(from_arrays(merge_equal_states(arcs)))
    return symbols, lg


def finished(
    arcs: Arcs,
    symbols: Symbols,
    columns: int,
    config: GraphConfig,
    restricted: Restricted,
    lexicon: Lexicon,
    info: Mapping[str, Any],
) -> Graph:
    """Make the graph of composed arcs, with the costs of words, and its facts for graph.json."""
    arcs = add_output_cost(arcs, config.word_cost)
    info = {
        "version": GRAPH_VERSION,
        "num_pdfs": columns,
        **info,
        "symbols": len(symbols.words),
        "words": len(lexicon.words),
        "lm_order": restricted.model.order,
        "lm_ngrams": list(restricted.model.counts),
        "silence_probability": config.silence_probability,
        "word_cost": config.word_cost,
        "missing_words": list(restricted.missing),
        "left_out": restricted.describe(),
        "states": len(arcs.final),
        "arcs": len(arcs.arcs),
        "fst_bytes": file_bytes(arcs),
    }
    return Graph(from_arrays(arcs), symbols.words, columns, info)


def graph_of_columns(
    lexicon: Lexicon,
    model: Arpa,
    config: GraphConfig,
    info: dict[str, Any],
    transducer: Callable[[Symbols], Fst],
    *,
    silence: bool = True,
) -> Graph:
    """Compile lexicon, language model and the columns of a model that needs no tied states: T o L o G.

    Args:
        info: facts kept with the graph: its `columns`, and the `phones` of columns.
        transducer: makes T, from columns to phones.
        silence: True if L has optional silences.

    Raises:
        UserError: lexicon and language model share no word; the lexicon has a phone that the model does not know.
    """
    said = {phone for variants in lexicon.pronunciations.values() for variant in variants for phone in variant}
    if strange := sorted(said - set(info["phones"])):
        raise UserError(
            f"The lexicon has units that the model does not know ({', '.join(strange[:10])}). Leave out their words, "
            "or write them in the units of the model."
        )
    restricted = restrict(model, lexicon.words)
    symbols, lg = lexicon_and_grammar(lexicon, restricted.model, info["phones"], config, silence=silence)
    composed = to_arrays(kaldifst.compose(transducer(symbols), lg))
    del lg
    columns = len(info["columns"])
    keep = np.arange(columns + 1 + len(symbols.disambiguation))
    keep[columns + 1 :] = 0
    arcs = merge_equal_states(map_input(composed, keep))
    return finished(arcs, symbols, columns, config, restricted, lexicon, info)


def save_graph(graph: Graph, folder: Path) -> None:
    """Write `HCLG.fst`, `words.txt`, `phones.txt` and, last, `graph.json`."""
    (folder / GRAPH_FILE).unlink(missing_ok=True)  # a mixture of two graphs must not look whole
    with atomic_write(folder / FST_FILE) as file:
        write_arrays(file, to_arrays(graph.fst))
    write_text(folder / WORDS_FILE, symbol_table(graph.words))
    write_text(folder / PHONES_FILE, symbol_table([EPSILON, *graph.info["phones"]]))
    write_checked(folder / GRAPH_FILE, graph.info, [FST_FILE, WORDS_FILE, PHONES_FILE])


def load_graph(folder: Path) -> Graph:
    """Read a graph from the files of `save_graph`, checked by their checksums, since the searching library trusts every
    byte.

    Raises:
        UserError: the folder holds no graph, a file is damaged, or they do not belong together.
    """
    if not (folder / GRAPH_FILE).is_file():
        raise UserError(f"{folder}: no decoding graph here (no {GRAPH_FILE}). `roundelay decode` builds it.")
    info = read_checked(folder / GRAPH_FILE, f"Delete {folder} to have the graph built again by `roundelay decode`.")
    try:
        if info["version"] != GRAPH_VERSION:
            raise UserError(
                f"{folder}: a graph of another version of Roundelay. Delete the folder to have it built again."
            )
        words = load_words(folder)
        whole = (folder / FST_FILE).stat().st_size == info["fst_bytes"] and len(words) == info["symbols"]
        num_pdfs = int(info["num_pdfs"])
        if not math.isfinite(float(info["word_cost"])):
            raise ValueError("word_cost is not a number")
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{folder}: broken graph ({error}). Delete the folder to have it built again.") from error
    if not whole:
        raise UserError(f"{folder}: its files do not belong together. Delete the folder to have the graph built again.")
    try:
        fst = read_checked_fst(folder / FST_FILE, num_pdfs, len(words))
    except UserError as error:
        raise UserError(f"{error} Delete {folder} to have it built again.") from None
    return Graph(fst, words, num_pdfs, info)


def load_words(folder: Path) -> tuple[str, ...]:
    """Return symbols by word id of the graph in a folder.

    Raises:
        UserError: there is no list of words, or it is no text.
    """
    lines = read_text(folder / WORDS_FILE, "a graph has its words there").split("\n")[:-1]
    return tuple(line.rsplit(" ", 1)[0] for line in lines)
