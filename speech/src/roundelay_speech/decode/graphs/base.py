"""The seam between a decoding graph and the meaning of the columns of log-likelihoods.

Words, their pronunciations and the language model are the same for every kind of graph, and so are decoder, lattices
and scoring. A kind gives the columns their meaning, and compiles them with the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import Arpa


class Columns(ABC):
    """The columns of a model's log-likelihoods. Picklable, so that another process can compile the graph."""

    @property
    @abstractmethod
    def phones(self) -> tuple[str, ...]:
        """Units of which pronunciations may consist, silence first."""

    @abstractmethod
    def identity(self) -> tuple[list[Any], bytes]:
        """Return values for JSON, and bytes, that are equal only for columns that make equal graphs."""

    @abstractmethod
    def compile(self, lexicon: Lexicon, model: Arpa, config: GraphConfig) -> Graph:
        """Return the graph of these words and this language model.

        Raises:
            UserError: lexicon, language model and columns do not fit together.
        """

    def read_off(self, scores: Float32) -> tuple[str, ...] | None:
        """Return the units that log-likelihoods (T, S) give without lexicon and language model; None if columns are no
        units."""
        del scores
        return None

    def searched(self, scores: Float32) -> Float32:
        """Return log-likelihoods (T, S) in the form for a search, before scaling."""
        return scores

    def told(self) -> dict[str, Any]:
        """Return the settings of `searched`, for decode.json."""
        return {}

    def spelled(self, words: Iterable[str]) -> Lexicon | None:
        """Return pronunciations that follow from the spelling of words; None if they are taken from dictionaries."""
        del words
        return None


class GraphKind(ABC):
    """A kind of graph: the section `decode.graph` of a recipe, a frozen dataclass whose first field is `name`."""

    # whether the columns are the tied states of an alignment, which the models trained here give.
    tied_states: ClassVar[bool] = False

    @abstractmethod
    def columns(self, tying: Tying) -> Columns:
        """Return the columns, for an alignment with these tied states.

        Raises:
            UserError: a file that the section names cannot be used.
        """
