"""Certainty of word error rates: bootstrap intervals, and tests whether two systems differ.

The unit of chance is the utterance (errors within one go together), or the speaker (so do a speaker's utterances, and
the next test set will have other speakers): whole units are drawn with replacement, never words.

Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004: interval,
difference of two systems on the same draws, probability of improvement. Gillick and Cox, "Some statistical issues in
the comparison of speech recognition algorithms", ICASSP 1989: matched pairs of segments.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.data.problems import named
from roundelay_speech.scoring.alignment.counts import Score, UtteranceScore
from roundelay_speech.scoring.alignment.groups import Groups, by_speaker

Unit = Literal["utterances", "speakers"]

SAMPLES = 10_000
LEVEL = 0.95
BUFFER = 2  # words that both systems must have right between two segments of the matched pairs
_CELLS = 1 << 22  # indices drawn at a time: bounds memory

Counts = NDArray[np.int64]
"""Errors and reference words of each of U units, (U, 2)."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """The interval that holds a share `level` of the resampled error rates, in percent."""

    low: float
    high: float
    unit: Unit
    units: int
    level: float = LEVEL

    def __str__(self) -> str:
        """Return `95 % interval 4.41 to 7.62 (bootstrap over 130 utterances)`."""
        return f"{100 * self.level:g} % interval {self.low:.2f} to {self.high:.2f} (bootstrap over {self._units})"

    @property
    def _units(self) -> str:
        return f"{self.units} {self.unit}"


def bootstrap(
    result: Score, groups: Groups | None = None, unit: Unit = "utterances", samples: int = SAMPLES, seed: int = 0
) -> ConfidenceInterval:
    """Return the bootstrap interval of the word error rate (percentile method).

    Raises:
        UserError: fewer than two units.
    """
    counts = unit_counts(result, groups or {}, unit)
    _enough(len(counts), unit)
    rates = np.concatenate([_rates(counts, draws) for draws in _draws(len(counts), samples, seed)])
    return _interval(rates, unit, len(counts))


def gap(
    a: Score, b: Score, groups: Groups, unit: Unit = "utterances", samples: int = SAMPLES, seed: int = 0
) -> ConfidenceInterval:
    """Return the bootstrap interval of A's word error rate minus B's, for one system on two sets of speech, whose units
    are drawn separately.

    Raises:
        UserError: fewer than two units of either.
    """
    found = []
    for number, result in enumerate((a, b)):
        counts = unit_counts(result, groups, unit)
        _enough(len(counts), unit)
        found.append((np.concatenate([_rates(counts, d) for d in _draws(len(counts), samples, seed + number)]), counts))
    (ours, some), (theirs, others) = found
    return _interval(ours - theirs, unit, len(some) + len(others))


@dataclass(frozen=True)
class Comparison:
    """A comparison of systems A and B on the same utterances; differences are A minus B: below 0, A is better."""

    difference: float  # of the word error rates, percent absolute
    interval: ConfidenceInterval  # of the difference
    improvement: float  # share of the draws in which A has the lower rate: the probability of improvement
    segments: int  # of the matched pairs: stretches with an error of either system
    z: float | None  # None where the test is not defined: fewer than two segments, or no spread
    p: float | None  # two-sided

    def __str__(self) -> str:
        """Return two lines: the bootstrap's difference, and the matched pairs."""
        i = self.interval
        test = (
            f"not defined on {self.segments} segments"
            if self.z is None or self.p is None
            else f"{self.segments} segments, z {self.z:+.2f}, two-sided p {self.p:.4f}"
        )
        return (
            f"difference {self.difference:+.2f}, {100 * i.level:g} % interval {i.low:+.2f} to {i.high:+.2f} "
            f"(bootstrap over {i.units} {i.unit}), probability of improvement {100 * self.improvement:.1f} %\n"
            f"matched pairs: {test}"
        )


def compare(
    a: Score, b: Score, groups: Groups | None = None, unit: Unit = "utterances", samples: int = SAMPLES, seed: int = 0
) -> Comparison:
    """Test whether A and B differ, and which is better.

    Raises:
        UserError: A and B were not scored on the same utterances with the same references; fewer than two units.
    """
    _same_test(a, b)
    counts_a, counts_b = (unit_counts(result, groups or {}, unit) for result in (a, b))
    _enough(len(counts_a), unit)
    differences = np.concatenate(
        [_rates(counts_a, draws) - _rates(counts_b, draws) for draws in _draws(len(counts_a), samples, seed)]
    )
    z, p, segments = matched_pairs(a, b)
    return Comparison(
        difference=a.errors.wer - b.errors.wer,
        interval=_interval(differences, unit, len(counts_a)),
        improvement=float((differences < 0).mean()),
        segments=segments,
        z=z,
        p=p,
    )


def unit_counts(result: Score, groups: Groups, unit: Unit) -> Counts:
    """Return errors and reference words, unit by unit."""
    parts = [u.errors for u in result.utterances]
    if unit == "speakers":
        parts = [part.errors for part in by_speaker(result, groups).values()]
    return np.array([(errors.total, errors.ref) for errors in parts], dtype=np.int64).reshape(-1, 2)


def _draws(units: int, samples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    rng, at_once = stream(seed, "bootstrap"), max(1, _CELLS // units)
    for done in range(0, samples, at_once):
        yield rng.integers(0, units, size=(min(at_once, samples - done), units))


def _rates(counts: Counts, draws: NDArray[np.int64]) -> NDArray[np.float64]:
    errors, words = (counts[:, column][draws].sum(axis=1) for column in (0, 1))
    return np.asarray(100.0 * errors / np.maximum(words, 1))


def _interval(values: NDArray[np.float64], unit: Unit, units: int) -> ConfidenceInterval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return ConfidenceInterval(float(low), float(high), unit, units)


def _enough(units: int, unit: Unit) -> None:
    if units < 2:
        raise UserError(f"An interval over {unit} needs at least two of them; here is {units}.")


def _same_test(a: Score, b: Score) -> None:
    there = {u.id: u for u in b.utterances}
    strange = [u.id for u in a.utterances if u.id not in there] + sorted(there.keys() - {u.id for u in a.utterances})
    if strange:
        raise UserError(f"Only one of the two systems was scored on {named(strange)}. Score both on the same split.")


def matched_pairs(a: Score, b: Score) -> tuple[float | None, float | None, int]:
    """Return (z, two-sided p, segments) of the matched-pairs test on segments.

    A segment is a stretch of an utterance with an error of A or B, bounded by its ends or by two words that both have
    right: errors of different segments are taken as independent. z is the mean difference of errors per segment over
    its standard error; the normal distribution fits with some tens of segments.
    """
    there = {u.id: u for u in b.utterances}
    pairs = [pair for one in a.utterances for pair in error_segments(one, there[one.id])]
    differences = np.array([x - y for x, y in pairs], dtype=np.float64)
    if len(differences) < 2 or (spread := differences.std(ddof=1)) == 0:
        return None, None, len(differences)
    z = float(differences.mean() / (spread / math.sqrt(len(differences))))
    return z, math.erfc(abs(z) / math.sqrt(2)), len(differences)


def error_segments(a: UtteranceScore, b: UtteranceScore) -> list[tuple[int, int]]:
    """Return the errors of A and of B in each segment of an utterance.

    Where the two took different readings of the reference, the utterance is one segment.
    """
    if [r for r, _ in a.pairs if r is not None] != [r for r, _ in b.pairs if r is not None]:
        return [(a.errors.total, b.errors.total)] if a.errors.total or b.errors.total else []
    errors = [*zip(_errors_by_place(a), _errors_by_place(b), strict=True)]
    found, run = [(0, 0)], 0
    # Places go gap, word, gap, word, ..., gap: even places hold insertions, odd places reference words.
    for place, (x, y) in enumerate(errors):
        run = 0 if x or y else run + place % 2
        if run == BUFFER:
            found.append((0, 0))
        found[-1] = found[-1][0] + x, found[-1][1] + y
    return [(x, y) for x, y in found if x or y]


def _errors_by_place(utterance: UtteranceScore) -> Sequence[int]:
    """Return the number of errors before the first reference word, at it, between it and the next, ..., after
    the last."""
    errors = [0]
    for place, (ref, hyp) in enumerate(utterance.pairs):
        wrong = ref != hyp and place not in utterance.forgiven
        if ref is None:
            errors[-1] += wrong
        else:
            errors += [int(wrong), 0]
    return errors
