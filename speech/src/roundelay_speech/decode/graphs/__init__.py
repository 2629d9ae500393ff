"""Kinds of decoding graphs by name, chosen in a recipe by `decode.graph`. The union is the registry: a new kind is
a file beside these, and its class here."""

from roundelay_speech.decode.graphs.chain import ChainGraph
from roundelay_speech.decode.graphs.ctc import CtcGraph
from roundelay_speech.decode.graphs.hmm import HmmGraph

AnyGraph = HmmGraph | CtcGraph | ChainGraph

__all__ = ["AnyGraph", "ChainGraph", "CtcGraph", "HmmGraph"]
