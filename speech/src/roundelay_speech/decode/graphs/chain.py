"""The kind of graph for phones as hidden Markov models of the chain topology (units `chain`): T o L o G.

A row of phones is written as any row of columns in which each phone is its first frame's column and then, any number of
times, that of its further frames. T is that rule as a transducer, with a state for each phone that is being said and
the columns it has there. Transitions cost nothing: every frame has one. L has optional silences, as for tied states.

Legend: P phones, S columns.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from roundelay.core.errors import UserError
from roundelay_speech.decode.graphs.base import Columns, GraphKind
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig, graph_of_columns
from roundelay_speech.decode.graphs.transducers import Symbols, compiled
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import Arpa
from roundelay_speech.search.fst import Fst
from roundelay_speech.units.base import UnitSet


@dataclass(frozen=True)
class ChainGraph(GraphKind):
    """Phones as hidden Markov models that a model was trained on without an alignment (lattice-free MMI)."""

    name: Literal["chain"] = field(default="chain", kw_only=True)
    """Kind of the decoding graph (`roundelay list graphs`, docs/decoding.md)."""

    def columns(self, tying: Tying) -> "StatesOfPhones":
        raise UserError(
            f"decode.graph={self.name} is for models trained with training.objective=lfmmi, whose columns they keep. "
            f"These are {tying.num_pdfs} tied states: give decode.graph=hmm."
        )

    def columns_of(self, units: UnitSet, silence: str) -> "StatesOfPhones":
        """Return the columns of a model with these units."""
        del silence
        return StatesOfPhones(units)


@dataclass(frozen=True)
class StatesOfPhones(Columns):
    """The columns of the chain topology, two a phone: its first frame, and all further ones."""

    pieces: UnitSet  # the phones, as hidden Markov models

    @property
    def phones(self) -> tuple[str, ...]:
        assert self.pieces.hmm is not None
        return self.pieces.hmm.phones(self.pieces.names)

    def identity(self) -> tuple[list[Any], bytes]:
        return ["chain", list(self.phones), list(self.pieces.columns)], b""

    def compile(self, lexicon: Lexicon, model: Arpa, config: GraphConfig) -> Graph:
        return build_chain_graph(lexicon, model, self.pieces, config)


def build_chain_graph(lexicon: Lexicon, model: Arpa, units: UnitSet, config: GraphConfig) -> Graph:
    """Compile lexicon, language model and phones into one graph.

    Raises:
        UserError: lexicon and language model share no word; a phone of the lexicon has no columns.
    """
    assert units.hmm is not None
    phones = units.hmm.phones(units.names)
    info = {"topology": "chain", "columns": list(units.columns), "phones": phones}
    return graph_of_columns(lexicon, model, config, info, partial(state_transducer, units))


def state_transducer(units: UnitSet, symbols: Symbols) -> Fst:
    """Build T: input label = column + 1, output label the phone's id in `symbols`; disambiguation symbols pass through,
    as labels behind those of the columns."""
    assert units.hmm is not None
    emitted, phones, ids = units.hmm.emitted(units.names), units.hmm.phones(units.names), symbols.phone_ids
    numbers: dict[tuple[str, int], int] = {("", -1): 0}  # of (phone, its first column)
    places = [("", -1)]
    lines = []
    for source, (before, _) in enumerate(places):
        for phone in phones:
            first, further = emitted.of(before, phone)
            place = phone, first
            if place not in numbers:
                numbers[place] = len(places)
                places.append(place)  # and so this loop goes on to it
                lines.append(f"{numbers[place]} {numbers[place]} {further + 1} 0")
            lines.append(f"{source} {numbers[place]} {first + 1} {ids[phone]}")
        for label, name in enumerate(symbols.disambiguation, len(units.columns) + 1):
            lines.append(f"{source} {source} {label} {ids[name]}")
    lines.sort(key=lambda line: int(line.split()[0]))  # the first line names the state in which paths begin
    lines += [f"{state} 0" for state in range(len(places))]
    return compiled(lines)
