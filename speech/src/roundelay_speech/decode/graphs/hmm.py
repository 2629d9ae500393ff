"""The decoding graph HCLG: states of hidden Markov models in, words out (Mohri, Pereira and Riley 2002; Kaldi).

    G  words by the language model (grammar.py: back-off on #0)
    L  phones to words: all pronunciations, optional silence at the start and after every word, disambiguation symbols
    C  phones in context to phones (kaldifst.compose_context)
    H  states of hidden Markov models to phones in context

    HCLG = self-loops(merge(determinize(H o (C o merge(determinize(L o G))))))

Input labels of H are one per different (phone, state, pdf), so that determinisation never takes two states for one
because they share a pdf; in the finished graph label = pdf + 1, the column of the log-likelihoods plus one.

`merge` is minimisation by hashes on whole arrays (fst.py). Costs of words are put on last: a finished graph can be
given others without being built again.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from roundelay.core.errors import UserError
from roundelay_speech.bindings import kaldifst
from roundelay_speech.decode.graphs.base import Columns, GraphKind
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig, finished, lexicon_and_grammar
from roundelay_speech.decode.graphs.transducers import Symbols, expand_states
from roundelay_speech.hmm.topology import PhoneState, Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import Arpa, Restricted, restrict
from roundelay_speech.search.fst import Arcs, add_self_loops, from_arrays, map_input, merge_equal_states, to_arrays


@dataclass(frozen=True)
class HmmGraph(GraphKind):
    """Hidden Markov models of phones in context: columns are the tied states of the alignment."""

    name: Literal["hmm"] = field(default="hmm", kw_only=True)
    """Kind of the decoding graph (`roundelay list graphs`, docs/decoding.md)."""
    tied_states: ClassVar[bool] = True

    def columns(self, tying: Tying) -> "TiedStates":
        return TiedStates(tying)


@dataclass(frozen=True, eq=False)
class TiedStates(Columns):
    """The columns of hidden Markov models, one a tied state."""

    tying: Tying

    @property
    def phones(self) -> tuple[str, ...]:
        return self.tying.phones

    def identity(self) -> tuple[list[Any], bytes]:
        return list(self.tying.phones), self.tying.table.tobytes()

    def compile(self, lexicon: Lexicon, model: Arpa, config: GraphConfig) -> Graph:
        return build_graph(lexicon, model, self.tying, config)


@dataclass(frozen=True, eq=False)
class GraphOfStates:
    """A graph whose input labels distinguish phones even if they share a pdf."""

    arcs: Arcs  # input labels are places in `states` + 1. Loops are the arcs that lead to where they come from
    states: tuple[PhoneState, ...]  # (phone, state, pdf)
    symbols: Symbols  # of words and phones
    restricted: Restricted  # the language model without words that the lexicon lacks
    lexicon: Lexicon  # in the phones of the tying


def build_graph(lexicon: Lexicon, model: Arpa, tying: Tying, config: GraphConfig | None = None) -> Graph:
    """Compile lexicon, language model and tied states into one graph.

    Words of the language model that the lexicon lacks are left out and reported: `info["left_out"]` is a sentence for
    the user, `info["missing_words"]` the list (empty when all is well).

    Raises:
        UserError: lexicon and language model share no word; the lexicon has a phone that the tying does not know.
    """
    config = config or GraphConfig()
    found = graph_of_states(lexicon, model, tying, config)
    symbols, restricted, lexicon = found.symbols, found.restricted, found.lexicon
    arcs = map_input(found.arcs, np.array([0, *(pdf + 1 for _, _, pdf in found.states)]))
    del found  # one graph of this size is enough
    info = {"topology": "hmm", "context": tying.context, "phones": list(tying.phones)}
    return finished(arcs, symbols, tying.num_pdfs, config, restricted, lexicon, info)


def graph_of_states(lexicon: Lexicon, model: Arpa, tying: Tying, config: GraphConfig) -> GraphOfStates:
    """Return the graph of `build_graph` before its labels become pdfs, and without costs of words.

    Raises:
        UserError: as `build_graph`.
    """
    lexicon = lexicon.in_phones(tying.phones)
    if strange := sorted(set(lexicon.phones) - set(tying.phones)):
        raise UserError(
            f"The lexicon has phones that the alignment does not know ({', '.join(strange[:10])}). "
            "Align again with this lexicon, or decode with the lexicon that the alignment was made with."
        )
    restricted = restrict(model, lexicon.words)
    symbols, lg = lexicon_and_grammar(lexicon, restricted.model, tying.phones, config)
    ids = symbols.phone_ids
    context = tying.context
    clg, windows = kaldifst.compose_context([ids[d] for d in symbols.disambiguation], context, context // 2, lg)
    del lg
    expanded, labels, auxiliary = expand_states(to_arrays(clg), windows, tying)
    del clg  # each is of the size of the result: one no longer needed must go before the next is made
    hclg = kaldifst.StdVectorFst(from_arrays(expanded))
    del expanded
    kaldifst.determinize_star(hclg, use_log=True)
    keep = np.arange(len(labels) + 1 + auxiliary)
    keep[len(labels) + 1 :] = 0
    arcs = to_arrays(hclg)
    del hclg
    arcs = add_self_loops(merge_equal_states(map_input(arcs, keep)))
    return GraphOfStates(arcs, tuple(labels), symbols, restricted, lexicon)
