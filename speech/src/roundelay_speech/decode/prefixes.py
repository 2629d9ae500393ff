"""Units without lexicon and language model: those of the best columns, or the most probable row of units.

The best column of every frame gives one way to write one row of units. A row has many ways to be written, with
repetitions and blanks in other places; prefix beam search (Graves 2012; Hannun et al. 2014) adds them up. For every
beginning of a row that is kept it knows the probability of all ways to write it that end in a blank, and of those that
end in its last unit: only behind a blank can the same unit come again.

Legend: T frames, U units.
"""

import math
import os
from collections.abc import Iterable
from typing import final

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay_speech.decode.graphs.ctc import CtcGraph, UnitsAndBlank
from roundelay_speech.decode.parallel import Batch, Search
from roundelay_speech.decode.search import Float32, Hypothesis

LEAST_LIKELY = math.log(1e-6)
"""Columns below this log-probability are not looked at: nearly all are, in nearly every frame."""

_NEVER = -math.inf


def most_probable(
    scores: Float32, prefixes: int, blank: int = 0, least: float = LEAST_LIKELY
) -> tuple[tuple[int, ...], float]:
    """Return the most probable row of units, and its log-probability, a sum over all ways to write it that were kept.

    Args:
        scores: (T, U + 1) log-probabilities.
        prefixes: beginnings kept at every frame; with all of them the result is exact.
        blank: its column.
    """
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, _NEVER)}
    for frame in scores:
        columns = [(c, float(frame[c])) for c in np.flatnonzero(frame >= least).tolist()]
        found: dict[tuple[int, ...], list[float]] = {}
        for prefix, (in_blank, in_unit) in kept.items():
            both = _sum(in_blank, in_unit)
            for column, p in columns:
                if column == blank:
                    _add(found, prefix, 0, both + p)
                elif prefix and column == prefix[-1]:
                    _add(found, prefix, 1, in_unit + p)
                    _add(found, (*prefix, column), 1, in_blank + p)
                else:
                    _add(found, (*prefix, column), 1, both + p)
        best = sorted(found.items(), key=lambda item: (-_sum(*item[1]), item[0]))[:prefixes]
        kept = {prefix: (in_blank, in_unit) for prefix, (in_blank, in_unit) in best}
    prefix, ends = next(iter(kept.items()))
    return prefix, _sum(*ends)


def _add(found: dict[tuple[int, ...], list[float]], prefix: tuple[int, ...], end: int, p: float) -> None:
    ends = found.setdefault(prefix, [_NEVER, _NEVER])
    ends[end] = _sum(ends[end], p)


def _sum(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    low, high = (a, b) if a < b else (b, a)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))


@final
class SpelledWords:
    """Words of utterances as their units spell them, in this process; in the place of `Decoders`.

    Args:
        columns: those of the scores.
        kind: greedy, or the most probable units.

    Raises:
        UserError: units spell no words.
    """

    def __init__(self, columns: UnitsAndBlank, kind: CtcGraph) -> None:
        if columns.words_of(()) is None:
            raise UserError(
                f"decode.graph.search is {kind.search}: these units are no pieces of written words, so they spell "
                "none. Give decode.graph.search=words, which needs a lexicon; units.txt beside the words, and the unit "
                "errors in decode.json, say what is read off without one."
            )
        self._columns, self._kind = columns, kind

    def search(
        self, loglikes: Iterable[tuple[str, Float32]], options: Search, progress: Progress | None = None
    ) -> Batch:
        """Return the words of each utterance; nothing in `options` matters here."""
        del options
        batch, begun = Batch(), os.times().user
        for utterance, scores in loglikes:
            units, cost = self._units(scores)
            words = self._columns.words_of(units) or ()
            batch.hypotheses[utterance] = Hypothesis(words, cost, 0.0, cost, True)
            (progress or Silent()).advance(1)
        batch.search_seconds = batch.seconds = os.times().user - begun
        return batch

    def _units(self, scores: Float32) -> tuple[tuple[str, ...], float]:
        if self._kind.search == "greedy":
            return self._columns.read_off(scores), -float(scores.max(1).sum())
        names = self._columns.names
        units, log_p = most_probable(scores, self._kind.prefixes, names.index(self._columns.blank))
        return tuple(names[unit] for unit in units), -log_p
