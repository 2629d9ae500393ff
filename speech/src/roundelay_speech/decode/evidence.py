"""Evidence that words are in the sound at all. A search finds the best words of its grammar, in noise too.

Two measures of the frames that a word was found in:

    support    mean of log p(s_t | x_t): how sure the network is of the states of the word's path
    likeness   mean of log p(y_t | speech) - log p(y_t | noise), two mixtures of Gaussians, of training speech and of
               made noise; y_t are cepstra without loudness, of the bands of a telephone, and their slopes.
               To each band ROOM dB below its mean power in the piece is added: a synthesised voice has deeper valleys
               between its formants than speech in any room

Both of the word alone, and of the words around it that follow each other within half a second: noise is doubtful
from beginning to end, a word among others may be. Their weighted sum

    b + sum_i w_i min(m_i, u_i),        u_i the usual measure of words that were said,

is fitted at packing (logistic regression) to tell words that were said in held-out speech from words found in made
noise, and is too low below `least`. Beside this a word's likeness is not far below that of any that was said, and no
phone lasts much longer than any did in training.

The confidence c of a word that stays becomes

    1 / (1 + exp(-z)),    z = a_1 ln(c / (1 - c)) + a_2 (sum - least) + a_3 q + a_4 n + a_5 Q + d

    q    support of the word's phones, each of which counts the same: a wrong phone shows however short it is
    n    its phones
    Q    support of all phones of the piece: where the others are doubtful this one is

fitted likewise to words of held-out speech that were right or wrong. No a is below 0, and no measure counts as lower
than its lowest among the right words: how wrong a word is beyond that, in strange sound, was never seen.

Legend: T frames, S columns, B bands, M measures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Bools, Float32, Float64
from roundelay_speech.hmm.alignment import Alignment
from roundelay_speech.hmm.gmm import Mixtures, cepstral_matrix, deltas, reestimate, single_gaussians, split
from roundelay_speech.hmm.topology import SILENCE, phone_bounds
from roundelay_speech.scoring.formats.ctm import TimedWord

MEASURES = ("support", "likeness", "support around", "likeness around")
OF_CONFIDENCE = ("support of phones", "phones", "support of all phones")
"""Measures that confidences are made true by; `measured` returns them after `MEASURES`."""
_LIKENESS = MEASURES.index("likeness")
USUAL_LONGEST = 0.8
"""Most seconds of a phone of which nothing was learnt."""
_AROUND = 0.5  # s between words that are judged together
_COMPONENTS, _ROUNDS = 64, 6
_MOST_FRAMES = 60_000  # that the mixture is estimated of
_LONGEST, _RARE, _LONGER = 0.999, 0.995, 1.5
_MOST_LIKE = 20.0  # nats that a frame may say for speech, or for noise
ROOM = 15.0
"""dB below the mean power of a band in a piece, of the sound of a room that is added before likeness is measured."""
_SURE = 1e-4  # confidences are this far from 0 and 1 at least
_FAR = 30.0  # log odds of a confidence that is all but 0 or 1


@dataclass(frozen=True)
class Likeness:
    """A mixture of Gaussians of speech, or of noise, as lists for JSON."""

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    variances: tuple[tuple[float, ...], ...]

    @cached_property
    def mixtures(self) -> Mixtures:
        """The mixture as arrays."""
        means, variances = np.array(self.means), np.array(self.variances)
        return Mixtures(np.array(self.weights), means, variances, np.array([0, len(means)]), np.zeros(means.shape[1]))


@dataclass(frozen=True)
class Evidence:
    """Evidence of words that were said, in a packed model.

    Attributes:
        usual, weights: usual value and weight of each of `MEASURES`.
    """

    longest: Mapping[str, float]  # seconds that a phone lasts at most, by name
    likeness: Likeness  # of speech
    usual: tuple[float, ...]
    weights: tuple[float, ...]
    offset: float  # added to the weighted sum
    least: float  # a word whose sum is below it was not said
    least_likeness: float  # nor was one that is less like speech than this
    confidence: tuple[float, ...] = (1.0, 0.0, 0.0)
    """a_1 to a_5 and d of the map that makes confidences true; a_1, a_2 and d if an earlier version packed the model.
    """
    noise: Likeness | None = None  # the other side of `likeness`; None where an earlier version packed it
    room: float | None = None  # ROOM; None where an earlier version packed it
    floors: tuple[float, ...] = ()
    """Lower bounds of the numbers that a_1 to a_5 weigh; empty if an earlier version packed the model."""

    def __post_init__(self) -> None:
        mixtures = [self.likeness] if self.noise is None else [self.likeness, self.noise]
        sizes = {len(self.usual), len(self.weights)}
        width = {len(row) for one in mixtures for row in (*one.means, *one.variances)}
        numbers = [
            *self.usual,
            *self.weights,
            self.offset,
            self.least,
            self.least_likeness,
            *self.confidence,
            *self.floors,
        ]
        numbers += [value for one in mixtures for row in (one.weights, *one.means, *one.variances) for value in row]
        whole = (
            sizes == {len(MEASURES)}
            and len(self.confidence) in (3, 3 + len(OF_CONFIDENCE))
            and len(self.floors) in (0, len(self.confidence) - 1)
            and len(width) == 1
            and all(len(one.means) == len(one.variances) == len(one.weights) for one in mixtures)
        )
        positive = all(value > 0 for one in mixtures for row in (*one.variances, one.weights) for value in row)
        if not whole or not positive or not all(map(math.isfinite, numbers)):
            raise UserError("evidence: measures, mixtures and weights do not fit together. Pack the model again.")

    def likenesses(self, frames: Float32) -> Float64:
        """Measure how much frames (T, D), as of `cepstra`, are like speech: (T,)."""
        found: Float64 = self.likeness.mixtures.loglikes(frames)[:, 0].astype(np.float64)
        if self.noise is not None:
            found = np.clip(found - self.noise.mixtures.loglikes(frames)[:, 0], -_MOST_LIKE, _MOST_LIKE)
        return found

    def sums(self, measures: Float64) -> Float64:
        """Return the weighted sums of (words, M) measures."""
        told = measures[:, : len(MEASURES)]
        found: Float64 = self.offset + np.minimum(told, self.usual) @ np.array(self.weights)
        return found

    def believed(self, measures: Float64) -> Bools:
        """Return (words,), True for words that can have been said, given their measures (words, M)."""
        found: Bools = (self.sums(measures) >= self.least) & (measures[:, _LIKENESS] >= self.least_likeness)
        return found

    def signs(self, confidences: Sequence[float | None], measures: Float64) -> Float64:
        """Return the numbers (words, 5) that a_1 to a_5 weigh."""
        own = np.array([log_odds(one or 0.0) for one in confidences])
        return np.column_stack([own, self.sums(measures) - self.least, measures[:, len(MEASURES) :]])

    def made_true(self, timed: Sequence[TimedWord], measures: Float64) -> tuple[TimedWord, ...]:
        """Return words with true confidences, as far as they have any.

        Args:
            measures: (words, M) from `measured`.
        """
        if not timed:
            return ()
        *weights, offset = self.confidence
        signs = self.signs([word.confidence for word in timed], measures)[:, : len(weights)]
        signs = np.maximum(signs, self.floors or -np.inf)
        sure = 1 / (1 + np.exp(-np.clip(signs @ np.array(weights) + offset, -_FAR, _FAR)))
        return tuple(
            word if word.confidence is None else replace(word, confidence=one)
            for word, one in zip(timed, sure.tolist(), strict=True)
        )


@dataclass(frozen=True, eq=False)
class FoundWord:
    """The place of a found word."""

    rows: npt.NDArray[np.int64]  # of the scores that are its own
    path: npt.NDArray[np.integer]  # the column of each of these rows on the best path
    # name and number of rows of each of its phones; empty where nothing says when they begin.
    phones: tuple[tuple[str, int], ...] = ()


def cepstra(bands: Float32, room: float | None) -> Float32:
    """Return (T, D) of log mel energies (T, B), in a room that is so many dB below their mean power, if any: cepstra
    without loudness, and slopes of all."""
    if room is not None and len(bands):
        loudest = bands.max(0)
        mean = loudest + np.log(np.exp(bands - loudest).mean(0))
        bands = np.logaddexp(bands, mean - np.float32(room * np.log(10) / 10))
    found = bands @ cepstral_matrix(bands.shape[1])
    return np.concatenate([found[:, 1:], deltas(found)], axis=1)


def mixture_of(frames: Float32, rng: np.random.Generator) -> Likeness:
    """Estimate a mixture for frames (T, D)."""
    some = frames[rng.permutation(len(frames))[:_MOST_FRAMES]]
    one = np.zeros(len(some), np.int64)
    found = single_gaussians(some, one, 1)
    for step in range(1, _ROUNDS + 1):
        found = reestimate(split(found, np.array([len(some)]), 2**step, rng), some, one)
    # A packed model is small: seven digits say as much as the frames do.
    weights, *rows = [[*map(_rounded, row)] for row in (found.weights, *found.means, *found.variances)]
    return Likeness(
        tuple(weights), tuple(map(tuple, rows[: len(rows) // 2])), tuple(map(tuple, rows[len(rows) // 2 :]))
    )


def _rounded(number: float) -> float:
    return float(f"{number:.7g}")


def longest_phones(alignment: Alignment, frame_seconds: float) -> dict[str, float]:
    """Return seconds that each phone lasts at most, by name: half as long again as all but one in a thousand of it, or,
    where it is rare, as all but one in 200 of all phones."""
    bounds = phone_bounds(alignment.phones, alignment.states)
    lasting, which = np.diff(bounds), alignment.phones[bounds[:-1]]
    spoken = lasting[which > SILENCE]
    every = float(np.quantile(spoken, _RARE)) if len(spoken) else 0.0
    found = {}
    for number, name in enumerate(alignment.tying.phones, 1):
        own = lasting[which == number]
        most = max(every, float(np.quantile(own, _LONGEST)) if len(own) else 0.0)
        found[name] = round(_LONGER * most * frame_seconds, 3)
    return found


def measured(words: Sequence[FoundWord], posteriors: Float32, likeness: Float64, frame_seconds: float) -> Float64:
    """Measure the evidence for words: (words, M), columns `MEASURES` and `OF_CONFIDENCE`.

    Args:
        words: words of one piece, in order.
        posteriors: (T, S) log p(s | x).
        likeness: (T,) from `Evidence.likenesses`.
        frame_seconds: seconds from one row to the next.
    """
    own = np.array(
        [[posteriors[word.rows, word.path].mean(), likeness[word.rows].mean()] for word in words], np.float64
    ).reshape(-1, 2)
    frames = np.array([len(word.rows) for word in words])
    around = np.empty_like(own)
    first = 0
    for last in range(1, len(words) + 1):
        if last < len(words) and (words[last].rows[0] - words[last - 1].rows[-1]) * frame_seconds <= _AROUND:
            continue
        around[first:last] = np.average(own[first:last], axis=0, weights=frames[first:last])
        first = last
    return np.concatenate([own, around, _of_phones(words, posteriors)], axis=1)


def _of_phones(words: Sequence[FoundWord], posteriors: Float32) -> Float64:
    """Measure `OF_CONFIDENCE`, (words, 3); a word without known phones counts as one phone."""
    found = np.empty((len(words), len(OF_CONFIDENCE)))
    for word, row in zip(words, found, strict=True):
        lasting = np.array([rows for _, rows in word.phones] or [len(word.rows)])
        by_phone = np.add.reduceat(posteriors[word.rows, word.path], np.cumsum(lasting) - lasting) / lasting
        row[:2] = by_phone.mean(), len(lasting)
    found[:, 2] = np.average(found[:, 0], weights=found[:, 1])
    return found


def log_odds(confidence: float) -> float:
    """Return the log odds ln(c / (1 - c)) of a confidence, bounded on both sides."""
    held = min(max(confidence, _SURE), 1 - _SURE)
    return math.log(held / (1 - held))


def too_long(word: FoundWord, longest: Mapping[str, float], frame_seconds: float) -> bool:
    """Return True if a phone of the word lasts longer than `longest` allows."""
    return any(rows * frame_seconds > longest.get(name, USUAL_LONGEST) for name, rows in word.phones)
