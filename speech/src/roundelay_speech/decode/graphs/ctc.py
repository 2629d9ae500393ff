"""The kind of graph for models with a blank (connectionist temporal classification, Graves et al. 2006): T o L o G.

Such a model gives, for every frame, log-probabilities of U units (phones, characters, pieces of words) and of a blank.
A row of units is written as any row of frames that becomes it when repetitions are made one and blanks are left out. T
is that rule as a transducer (Miao et al. 2015): one state per unit that was just read, one for a blank. It stands where
H and C stand in a graph of hidden Markov models; L, G, decoder, lattices and scoring are the same.

Legend: T frames, U units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from roundelay.core.bounds import Count
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay_speech.decode.graphs.base import Columns, GraphKind
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig, graph_of_columns
from roundelay_speech.decode.graphs.transducers import Symbols, compiled
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.ngram import Arpa
from roundelay_speech.search.fst import Fst
from roundelay_speech.units.base import BLANK, UnitSet


@dataclass(frozen=True)
class CtcGraph(GraphKind):
    """Units and a blank, without hidden Markov models (connectionist temporal classification).

    A blank has a cost because these models say blank too often for a search that adds a language model.
    """

    name: Literal["ctc"] = field(default="ctc", kw_only=True)
    """Kind of the decoding graph (`roundelay list graphs`, docs/decoding.md)."""
    units: Path | None = None
    """File with the units of the columns, one a line; null for those of the run, or the blank and the phones of the
    alignment."""
    blank: str = BLANK
    """Unit that is the blank."""
    spelled: bool = False
    """Words are said as they are spelled, by characters."""
    boundary: str | None = None
    """Unit behind every word, with decode.graph.spelled; null for none."""
    search: Literal["words", "greedy", "prefixes"] = "words"
    """Words of the lexicon by the language model; or the units' own spelling without either, greedy (best column of
    every frame) or prefixes (most probable row of units)."""
    prefixes: Count = 16
    """Rows of units that the search for the most probable one keeps at every frame."""
    blank_cost: float = 0.0
    """Taken off the log-probability of every blank, in nats, before the scale."""
    blank_costs: tuple[float, ...] = ()
    """Costs of a blank tried on dev; empty for blank_cost."""

    def __post_init__(self) -> None:
        check_values(self, "decode.graph")

    def columns(self, tying: Tying) -> "UnitsAndBlank":
        silence, *phones = tying.phones
        names = (self.blank, *phones) if self.units is None else read_units(self.units)
        return UnitsAndBlank(names, self.blank, silence, self.spelled, self.boundary, blank_cost=self.blank_cost)

    def columns_of(self, units: UnitSet, silence: str) -> "UnitsAndBlank":
        """Return the columns of a model with these units, unless a file says otherwise."""
        if self.units is not None:
            names = read_units(self.units)
            return UnitsAndBlank(names, self.blank, silence, self.spelled, self.boundary, blank_cost=self.blank_cost)
        return UnitsAndBlank(units.columns, BLANK, silence, pieces=units, blank_cost=self.blank_cost)


@dataclass(frozen=True)
class UnitsAndBlank(Columns):
    """The columns of CTC, one a unit, one of them the blank."""

    names: tuple[str, ...]  # of the U + 1 columns
    blank: str
    silence: str  # the name that lexicons have for it; no column
    by_characters: bool = False
    boundary: str | None = None
    pieces: UnitSet | None = None  # the units, where a model trained here has them
    blank_cost: float = 0.0  # of a blank, in nats. It is no part of the graph

    @property
    def phones(self) -> tuple[str, ...]:
        return (self.silence, *(name for name in self.names if name not in (self.blank, self.silence)))

    def identity(self) -> tuple[list[Any], bytes]:
        merges = [] if self.pieces is None or not self.pieces.spelled else [list(self.pieces.merges)]
        return ["ctc", list(self.names), self.blank, self.by_characters, self.boundary, *merges], b""

    def compile(self, lexicon: Lexicon, model: Arpa, config: GraphConfig) -> Graph:
        return build_ctc_graph(lexicon, model, self.names, self.blank, config)

    def read_off(self, scores: npt.NDArray[np.float32]) -> tuple[str, ...]:
        return greedy_units(scores, self.names, self.blank)

    def searched(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if not self.blank_cost or self.blank not in self.names:
            return scores
        charged = scores.copy()
        charged[:, self.names.index(self.blank)] -= np.float32(self.blank_cost)
        return charged

    def told(self) -> dict[str, Any]:
        return {"blank_cost": self.blank_cost}

    def words_of(self, units: Sequence[str]) -> tuple[str, ...] | None:
        """Return the words that units spell; None if they spell none."""
        if self.pieces is not None:
            return self.pieces.words(units) if self.pieces.spelled else None
        if not self.by_characters or self.boundary is None:
            return None
        return tuple("".join(units).replace(self.boundary, " ").split())

    def spelled(self, words: Iterable[str]) -> Lexicon | None:
        if self.pieces is not None:
            return self.pieces.lexicon(words)
        return character_lexicon(words, self.boundary) if self.by_characters else None


def read_units(path: Path) -> tuple[str, ...]:
    """Return the names of columns in a file, one a line; a number behind a name must be that of its column, counted
    from 0.

    Raises:
        UserError: no such file, no units in it, or a line that is something else; names the line.
    """
    names: list[str] = []
    for number, line in enumerate(read_text(path, "decode.graph.units names a file of units").splitlines(), 1):
        if not (words := line.split()):
            continue
        if len(words) > 2 or (len(words) == 2 and words[1] != str(len(names))):
            raise UserError(
                f"{path}:{number}: `{line.strip()[:60]}` is not column {len(names)}: write one unit a line, in the "
                "order of the columns, with nothing behind it or the number of its column, counted from 0."
            )
        names.append(words[0])
    if not names:
        raise UserError(f"{path}: no units in it. Write one a line, in the order of the columns.")
    return tuple(names)


def character_lexicon(words: Iterable[str], boundary: str | None = None) -> Lexicon:
    """Return a lexicon in which every word is said as it is spelled, with the unit `boundary` behind it if the model
    has one."""
    end = () if boundary is None else (boundary,)
    return Lexicon({word: ((*word, *end),) for word in words})


def build_ctc_graph(
    lexicon: Lexicon, model: Arpa, columns: Sequence[str], blank: str = BLANK, config: GraphConfig | None = None
) -> Graph:
    """Compile lexicon, language model and units into one graph.

    Args:
        lexicon: words as units: their phones or, from `character_lexicon`, their characters.
        columns: meanings of the U + 1 columns of the model's log-probabilities; one of them is the blank.
        config: only its word cost matters: a blank is all the silence there is.

    Raises:
        UserError: lexicon and language model share no word; a unit of the lexicon is no column; no blank, or a name
            twice among the columns.
    """
    config = config or GraphConfig()
    if twice := sorted({name for name in columns if list(columns).count(name) > 1}):
        raise UserError(f"The unit {twice[0]} is the name of two columns. Give each its own.")
    if blank not in columns:
        raise UserError(
            f"The blank {blank} is not among the columns ({', '.join(columns[:10])}...). Name the one it is."
        )
    units = [name for name in columns if name != blank]
    info = {"topology": "ctc", "columns": list(columns), "blank": blank, "phones": units}
    return graph_of_columns(lexicon, model, config, info, partial(token_transducer, columns, blank), silence=False)


def token_transducer(columns: Sequence[str], blank: str, symbols: Symbols) -> Fst:
    """Build T: input label = column + 1, output label the unit's id in `symbols`; disambiguation symbols pass through,
    as labels behind those of the columns."""
    ids, label = symbols.phone_ids, {name: i for i, name in enumerate(columns, 1)}
    units = [name for name in columns if name != blank]
    state = {unit: i for i, unit in enumerate(units, 1)}  # that unit was read last; 0: a blank, or nothing yet
    lines = []
    for source, before in [(0, blank), *((state[unit], unit) for unit in units)]:
        lines.append(f"{source} 0 {label[blank]} 0")
        if before != blank:
            lines.append(f"{source} {source} {label[before]} 0")
        lines += [f"{source} {state[unit]} {label[unit]} {ids[unit]}" for unit in units if unit != before]
        for i, name in enumerate(symbols.disambiguation, len(columns) + 1):
            lines.append(f"{source} {source} {i} {ids[name]}")
    lines += [f"{source} 0" for source in range(len(units) + 1)]
    return compiled(lines)


def greedy_units(scores: npt.NDArray[np.float32], columns: Sequence[str], blank: str = BLANK) -> tuple[str, ...]:
    """Return the units of the best column of each frame: the model's output without lexicon and language model.

    Args:
        scores: (T, U + 1) log-probabilities.
    """
    best = scores.argmax(1)
    changed = best[np.append(True, best[1:] != best[:-1])] if len(best) else best
    return tuple(columns[i] for i in changed if columns[i] != blank)
