"""Word error rate: the names most users need, from the rooms of `scoring`.

`scoring` has one module for each matter: marks (alternatives, optional words), align, counts; the file formats trn,
ctm, stm, glm; groups (speakers, subsets, sclite's table), resample (intervals, comparisons), shown (for people).
"""

from roundelay_speech.scoring.alignment.align import Pair, align_words
from roundelay_speech.scoring.alignment.counts import (
    ErrorCounts,
    Score,
    Texts,
    UtteranceScore,
    confusions,
    count_errors,
    score,
)
from roundelay_speech.scoring.formats.ctm import TimedWord, read_ctm, write_ctm
from roundelay_speech.scoring.formats.stm import read_stm, write_stm
from roundelay_speech.scoring.formats.trn import read_trn, write_trn
from roundelay_speech.scoring.output import alignment_text

__all__ = [
    "ErrorCounts",
    "Pair",
    "Score",
    "Texts",
    "TimedWord",
    "UtteranceScore",
    "align_words",
    "alignment_text",
    "confusions",
    "count_errors",
    "read_ctm",
    "read_stm",
    "read_trn",
    "score",
    "write_ctm",
    "write_stm",
    "write_trn",
]
