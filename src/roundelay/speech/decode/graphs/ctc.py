"""Graphs for models with a blank (connectionist temporal classification, Graves et al. 2006): T o L o G.

Such a model gives, for every frame, log-probabilities of U units (phones, characters, pieces of words) and of a blank.
A row of units is written as any row of frames that becomes it when repetitions are made one and blanks are left out. T
is that rule as a transducer (Miao et al. 2015): one state per unit that was just read, one for a blank. It stands where
H and C stand in a graph of hidden Markov models; L, G, decoder, lattices and scoring are the same.

Legend: T frames, U units.
"""

from collections.abc import Iterable, Sequence

import kaldifst
import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.speech.decode.graphs.hmm import Graph, GraphConfig, finished, lexicon_and_grammar
from roundelay.speech.decode.graphs.transducers import Symbols
from roundelay.speech.decode.lm.ngram import Arpa, restrict
from roundelay.speech.lexicon.lexicon import Lexicon
from roundelay.speech.search.fst import Fst, map_input, merge_equal_states, to_arrays

BLANK = "<blk>"


def character_lexicon(words: Iterable[str], boundary: str | None = None) -> Lexicon:
    """Every word is said as it is spelled, with the unit `boundary` behind it if the model has one."""
    end = () if boundary is None else (boundary,)
    return Lexicon({word: ((*word, *end),) for word in words})


def build_ctc_graph(
    lexicon: Lexicon, model: Arpa, columns: Sequence[str], blank: str = BLANK, config: GraphConfig | None = None
) -> Graph:
    """Compile lexicon, language model and units into one graph.

    Args:
        lexicon: words as units: their phones or, from `character_lexicon`, their characters.
        columns: what the U + 1 columns of the model's log-probabilities are; one of them is the blank.
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
    said = {unit for variants in lexicon.pronunciations.values() for variant in variants for unit in variant}
    if strange := sorted(said - set(units)):
        raise UserError(
            f"The lexicon has units that the model does not know ({', '.join(strange[:10])}). Leave out their words, "
            "or write them in the units of the model."
        )
    restricted = restrict(model, lexicon.words)
    symbols, lg = lexicon_and_grammar(lexicon, restricted.model, units, config, silence=False)
    tokens = token_transducer(columns, blank, symbols)
    graph = to_arrays(kaldifst.compose(tokens, lg))
    del lg
    keep = np.arange(len(columns) + 1 + len(symbols.disambiguation))
    keep[len(columns) + 1 :] = 0
    arcs = merge_equal_states(map_input(graph, keep))
    info = {"topology": "ctc", "columns": list(columns), "blank": blank, "phones": units}
    return finished(arcs, symbols, len(columns), config, restricted, lexicon, info)


def token_transducer(columns: Sequence[str], blank: str, symbols: Symbols) -> Fst:
    """T: input label = column + 1, output label the unit's id in `symbols`; disambiguation symbols pass through, as
    labels behind those of the columns."""
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
    fst = kaldifst.compile("\n".join([*lines, ""]), acceptor=False)
    kaldifst.arcsort(fst, "olabel")
    return fst


def greedy_units(scores: npt.NDArray[np.float32], columns: Sequence[str], blank: str = BLANK) -> tuple[str, ...]:
    """The units of the best column of each frame: what a model says without lexicon and language model.

    Args:
        scores: (T, U + 1) log-probabilities.
    """
    best = scores.argmax(1)
    changed = best[np.append(True, best[1:] != best[:-1])] if len(best) else best
    return tuple(columns[i] for i in changed if columns[i] != blank)
