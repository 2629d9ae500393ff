"""Seconds of several learners and of one alone, to the held-out loss that one alone ends with, or its word error rate.

Whatever else is measured of training together, its use is this ratio. Neither side's settings need be the other's: each
may have its own learning rate and minibatch, and of several configurations of one learner the best counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from roundelay.reports.comparison import Points, Spread, kept_losses, seconds_to, spread
from roundelay.reports.runs import Run
from roundelay.reports.series import Series

LEVEL = 0.02
"""Ratios nearer to 1 are told as level."""


@dataclass(frozen=True)
class Together:
    """A series of several learners beside one alone.

    Attributes:
        seconds: to the loss, of the runs that reached it.
        sooner: the mean seconds of one alone over its own; None: not all of its runs reached the loss.
        ratios: the same seed by seed, of the runs that reached it.
    """

    series: Series
    seconds: Spread
    sooner: float | None
    ratios: Spread

    @property
    def learners(self) -> int:
        """Number of learners."""
        return self.series.runs[0].results.learners

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Learners slowed down on purpose."""
        return self.series.runs[0].stragglers


@dataclass(frozen=True)
class Alone:
    """One learner alone, and those beside it.

    Attributes:
        loss: held-out, that seconds are counted to: all runs of the best series of one learner end with it or less. Or
            the word error rate, in percent.
        seconds: of the series of one learner that was there first.
        others: those of several learners, the fastest first, and last those that did not reach the loss.
    """

    loss: float
    seconds: Spread
    others: tuple[Together, ...]


def beside_alone(series: Sequence[Series], loss: float | None = None, points: Points = kept_losses) -> Alone | None:
    """Set series of several learners beside those of one learner; None: there are not both, or they are not of one
    corpus, network and clock.

    Args:
        loss: held-out, that seconds are counted to; None: the one that one learner ends with (the worst of its seeds,
            rounded up to three digits; of several series of one learner, that of the lowest mean).
        points: of each run; others than those of losses make `loss` another measure.
    """
    ended = [s for s in series if all(math.isfinite(at_end(run, points)) for run in s.runs)]
    single = [s for s in ended if s.runs[0].results.learners == 1 and not s.runs[0].stragglers]
    several = [s for s in series if s.runs[0].results.learners > 1]
    if not single or not several or len({_kind(run) for s in (*single, *several) for run in s.runs}) > 1:
        return None
    if loss is None:
        ends = [[at_end(run, points) for run in s.runs] for s in single]
        worst = max(min(ends, key=fmean))
        loss = max(math.ceil(worst * 1000) / 1000, worst)
    times = [([seconds_to(run, loss, points) for run in s.runs], s) for s in single]
    there = [(spread(found), s) for found, s in times if None not in found]
    if not there:
        return None
    alone, best = min(there, key=lambda pair: pair[0].mean)
    by_seed = {run.results.seed: seconds for run, seconds in zip(best.runs, alone.values, strict=True)}
    others = [_together(s, [seconds_to(run, loss, points) for run in s.runs], alone.mean, by_seed) for s in several]
    return Alone(loss, alone, tuple(sorted(others, key=lambda one: -(one.sooner or 0.0))))


def _together(series: Series, times: Sequence[float | None], alone: float, by_seed: Mapping[int, float]) -> Together:
    found = spread(times)
    ratios = spread(
        by_seed.get(run.results.seed, alone) / own for run, own in zip(series.runs, times, strict=True) if own
    )
    there = found.n == len(series.runs) and found.mean > 0
    return Together(series, found, alone / found.mean if there else None, ratios)


def at_end(run: Run, points: Points = kept_losses) -> float:
    """Return held-out loss, or another value, of the model kept at the end; not a number before the first."""
    found = points(run)
    return found[-1][1] if found else math.nan


def _kind(run: Run) -> tuple[object, ...]:
    """Return facts that runs must share to be measured by one loss and one clock."""
    return run.results.corpus, run.results.parameters, run.simulated, run.wording
