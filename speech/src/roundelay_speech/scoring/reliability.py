"""Reliability of confidences: of words with confidence c, a share c should be right.

    normalised cross-entropy   1 - H(c) / H(p), H(c) the mean of -log2 of the probability that was given to the
                               outcome, H(p) the same of a constant, the share p of right words (NIST, as in sclite).
                               1: certain and true; 0: no better than the constant, which knows p; below 0: worse
    area under the curve       of the receiver operating characteristic: the probability that of a right and a wrong
                               word the right one has the higher confidence; 0.5 by chance

Legend: W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Bools, Float64
from roundelay_speech.scoring.alignment.align import align_words
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.scoring.resample import LEVEL

_HELD = 1e-4  # confidences are this far from 0 and 1 at least
_SAMPLES = 2000
_BINS = 8


@dataclass(frozen=True)
class Bin:
    """A bin of words with similar confidence: mean confidence, number of words, and of right ones."""

    confidence: float
    right: int
    words: int


@dataclass(frozen=True)
class Reliability:
    """The agreement of confidences with the share of right words."""

    # words, right: how many have a confidence, and are right.
    words: int
    right: int
    nce: float | None  # normalised cross-entropy; None where all words are right, or all wrong
    # the middle 95 % of it over draws of whole utterances; None where it cannot be said.
    interval: tuple[float, float] | None
    auc: float | None  # area under the curve; None as `nce`
    bins: tuple[Bin, ...] = ()  # words by rising confidence, about as many in each

    def __str__(self) -> str:
        """Return `normalised cross-entropy 0.31, 95 % interval 0.20 to 0.41; area under the curve 0.87 (773 words)`."""
        if self.nce is None or self.auc is None:
            return f"nothing can be said of {self.words} words, {self.right} of which are right"
        between = "" if self.interval is None else f", 95 % interval {self.interval[0]:.2f} to {self.interval[1]:.2f}"
        area = f"area under the curve {self.auc:.2f} ({self.words} words)"
        return f"normalised cross-entropy {self.nce:.2f}{between}; {area}"


Judged = tuple[Float64, Bools]
"""Confidences (W,) of the words of an utterance, and True for those that are right (W,)."""


def judged(said: Sequence[str], found: Sequence[TimedWord]) -> Judged:
    """Return the confidences of recognised words, those that have one, and True for words that were said: those that an
    alignment of fewest errors puts beside the same word."""
    pairs = align_words(said, [word.word for word in found])
    right = [ours == theirs for ours, theirs in pairs if theirs is not None]
    sure = [word.confidence for word in found]
    known = np.array([one is not None for one in sure], bool)
    return np.array([one or 0.0 for one in sure])[known], np.array(right, bool)[known]


def reliability(utterances: Sequence[Judged]) -> Reliability:
    """Measure the reliability of confidences, given by utterance."""
    sure = np.concatenate([np.zeros(0), *(one for one, _ in utterances)])
    right = np.concatenate([np.zeros(0, bool), *(one for _, one in utterances)])
    nce = normalised_cross_entropy(sure, right)
    if nce is None:
        return Reliability(len(sure), int(right.sum()), None, None, None)
    return Reliability(len(sure), int(right.sum()), nce, _interval(utterances), _auc(sure, right), _bins(sure, right))


def normalised_cross_entropy(sure: Float64, right: Bools) -> float | None:
    """Return the normalised cross-entropy 1 - H(c) / H(p) of confidences (W,); None if all words are right, or all
    wrong."""
    share = float(right.mean()) if len(right) else 0.0
    if not 0 < share < 1:
        return None
    held = np.clip(sure, _HELD, 1 - _HELD)
    given = -np.log2(np.where(right, held, 1 - held)).mean()
    constant = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return float(1 - given / constant)


def _interval(utterances: Sequence[Judged]) -> tuple[float, float] | None:
    """Return the interval of the normalised cross-entropy, by bootstrap over utterances."""
    with_words = [one for one in utterances if len(one[0])]
    if len(with_words) < 2:
        return None
    # Of each utterance: words, right ones, bits.
    counts = np.array(
        [
            (len(c), r.sum(), -np.log2(np.where(r, np.clip(c, _HELD, 1), np.clip(1 - c, _HELD, 1))).sum())
            for c, r in with_words
        ]
    )
    drawn = stream(0, "bootstrap").integers(0, len(counts), (_SAMPLES, len(counts)))
    words, right, bits = counts[drawn].sum(1).T
    share = np.clip(right / words, 1e-9, 1 - 1e-9)
    found = 1 - bits / words / (-share * np.log2(share) - (1 - share) * np.log2(1 - share))
    low, high = np.quantile(found[(right > 0) & (right < words)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _auc(sure: Float64, right: Bools) -> float:
    """Return the area under the curve: the share of pairs of a right and a wrong word in which the right one has the
    higher confidence; equal ones count half."""
    wrong = np.sort(sure[~right])
    below, upto = np.searchsorted(wrong, sure[right], "left"), np.searchsorted(wrong, sure[right], "right")
    return float((below + upto).mean() / 2 / len(wrong))


def _bins(sure: Float64, right: Bools) -> tuple[Bin, ...]:
    order = np.argsort(sure, kind="stable")
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    return tuple(Bin(float(sure[part].mean()), int(right[part].sum()), len(part)) for part in parts)
