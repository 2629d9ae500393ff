"""The kind of graph for hidden Markov models: columns are the tied states of an alignment (graph.py builds it)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from roundelay.speech.decode.graphs.hmm import Graph, GraphConfig, build_graph
from roundelay.speech.decode.kinds import Columns, GraphKind
from roundelay.speech.decode.lm.ngram import Arpa
from roundelay.speech.hmm.topology import Tying
from roundelay.speech.lexicon.lexicon import Lexicon


@dataclass(frozen=True)
class HmmGraph(GraphKind):
    """Hidden Markov models of phones in context: columns are the tied states of the alignment."""

    name: Literal["hmm"] = field(default="hmm", kw_only=True)
    tied_states: ClassVar[bool] = True

    def columns(self, tying: Tying) -> "TiedStates":
        return TiedStates(tying)


@dataclass(frozen=True, eq=False)
class TiedStates(Columns):
    """One column a tied state."""

    tying: Tying

    @property
    def phones(self) -> tuple[str, ...]:
        return self.tying.phones

    def identity(self) -> tuple[list[Any], bytes]:
        return list(self.tying.phones), self.tying.table.tobytes()

    def compile(self, lexicon: Lexicon, model: Arpa, config: GraphConfig) -> Graph:
        return build_graph(lexicon, model, self.tying, config)
