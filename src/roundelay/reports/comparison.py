"""Runs set against each other: means and spread, speedup, time to a loss, the cost of a straggler.

Everything is paired by seed: a run is compared with the one-learner run of its own seed, and with its own seed's run
without stragglers. A figure that needs a partner which is not there is no figure.
Settings that all runs of a page share are said once, and left out of the names of their series.

The use of training together is the ratio of seconds of one alone to those of several, to the held-out loss that one
alone ends with, or its word error rate. Neither side's settings need be the other's: each
may have its own learning rate and minibatch, and of several configurations of one learner the best counts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from roundelay.reports.numbers import MISSING, plain
from roundelay.reports.runs import Run, State
from roundelay.reports.series import Series, configuration_name, learners_text, named, series_of, straggler_text


@dataclass(frozen=True)
class Spread:
    """A figure over seeds. `values` are finite; `broken` counts those that were not."""

    values: tuple[float, ...]
    broken: int = 0

    @property
    def n(self) -> int:
        """Number of seeds with a value."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean of the values; not a number without values."""
        return fmean(self.values) if self.values else math.nan

    @property
    def sd(self) -> float | None:
        """Standard deviation of one run, estimated from the sample (n - 1); None from fewer than two."""
        return stdev(self.values) if self.n > 1 else None

    def written(self, digits: int, of: int) -> str:
        """Return mean and standard deviation, `5.95 ± 0.66`; the number of seeds is added if it is not `of`."""
        if not self.values:
            return f"{self.broken} not finite" if self.broken else MISSING
        text = plain(self.mean, digits) + (f" ± {plain(self.sd, digits)}" if self.sd is not None else "")
        if self.broken:
            text += f", {self.broken} not finite"
        return text if self.n + self.broken == of else f"{text} (n {self.n})"


def spread(values: Iterable[float | None]) -> Spread:
    """Return the spread of the values that are not None."""
    there = [value for value in values if value is not None]
    kept = tuple(value for value in there if math.isfinite(value))
    return Spread(kept, len(there) - len(kept))


@dataclass(frozen=True)
class Figures:
    """Figures of a run compared with its partners; None if a partner is missing, or the loss was not reached."""

    speedup: float | None = None  # frames per second over the one-learner run's
    seconds_to_target: float | None = None  # virtual where simulated
    sooner: float | None = None  # the one-learner run's seconds to the target over its own
    undisturbed: float | None = None  # frames per second over the same run's without its stragglers


@dataclass(frozen=True)
class Comparison:
    """Several runs and what was computed of them, for tables, charts and files."""

    series: tuple[Series, ...]
    target: float | None  # held-out loss, nats per frame
    given: bool  # the target was asked for, not chosen
    behind: tuple[Run, ...]  # left out in choosing the target: they learned too little
    figures: tuple[tuple[Run, Figures], ...]

    def of(self, run: Run) -> Figures:
        """Return the figures of a run."""
        return next(figures for other, figures in self.figures if other is run)

    def over_seeds(self, series: Series, figure: Callable[[Figures], float | None]) -> Spread:
        """Return one figure of all runs of a series, over its seeds."""
        return spread(figure(self.of(run)) for run in series.runs)

    def without(self) -> str:
        """Return the names of series, then of single runs, that were left out when the target loss was chosen."""
        behind = {id(run) for run in self.behind}
        whole = [s for s in self.series if all(id(run) in behind for run in s.runs)]
        rest = [run.name for s in self.series if s not in whole for run in s.runs if id(run) in behind]
        return "; ".join([named(whole, self.series)] * bool(whole) + rest)

    @property
    def one_clock(self) -> bool:
        """True if all seconds are of one kind, real or virtual."""
        return len({run.simulated for run, _ in self.figures}) == 1


def compare_runs(runs: Sequence[Run], target: float | None = None) -> Comparison:
    """Compare runs with each other, by seconds to the held-out loss `target`; None: one that all finished runs
    reached."""
    finished = [run for run in runs if run.state is State.FINISHED]
    chosen, behind = (target, ()) if target is not None else common_target(finished or runs)
    figures = tuple((run, _figures(run, runs, chosen)) for run in runs)
    return Comparison(tuple(series_of(runs)), chosen, target is not None, tuple(behind), figures)


def _figures(run: Run, runs: Sequence[Run], target: float | None) -> Figures:
    baseline, calm = baseline_of(run, runs), undisturbed_of(run, runs)
    speed, own = run.frames_per_second, seconds_to(run, target)
    return Figures(
        speedup=_ratio(speed, baseline.frames_per_second) if baseline else None,
        seconds_to_target=own,
        sooner=_ratio(seconds_to(baseline, target), own) if baseline else None,
        undisturbed=_ratio(speed, calm.frames_per_second) if calm else None,
    )


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


# Partners -------------------------------------------------------------------------------------------------------------


def baseline_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the undisturbed one-learner run of the same seed and clock; of several, the one whose recipe differs
    least, then with the nearest minibatch, `sgd` first."""
    alone = [other for other in _alike(run, runs) if other.results.learners == 1]
    return min(alone, key=lambda other: _distance(other, run), default=None)


def _alike(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return those of `runs` without stragglers that have the same seed, corpus, network and clock as `run`."""

    def kind(one: Run) -> tuple[object, ...]:
        return one.results.seed, one.results.corpus, one.results.parameters, one.simulated

    return [other for other in runs if not other.stragglers and kind(other) == kind(run)]


def _distance(baseline: Run, run: Run) -> tuple[int, float, bool]:
    here, there = baseline.settings, run.settings
    differing = sum(here.get(key) != there.get(key) for key in {*here, *there})
    mine = run.results.minibatch_frames // (run.results.learners if run.results.minibatch_per_learner else 1)
    return differing, abs(baseline.results.minibatch_frames - mine), baseline.results.strategy != "sgd"


def undisturbed_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run that is as `run` but without stragglers; None if `run` has no stragglers."""

    def kind(one: Run) -> tuple[object, ...]:
        settings = {key: value for key, value in one.settings.items() if key not in ("training.stragglers", "name")}
        return one.results.label, one.results.learners, settings

    return next((o for o in _alike(run, runs) if run.stragglers and kind(o) == kind(run)), None)


# Time to a loss, or to a word error rate ------------------------------------------------------------------------------

Points = Callable[[Run], list[tuple[float, float]]]
"""Function from a run to (seconds, value of the model kept then), in order; lower values are better."""


def kept_losses(run: Run) -> list[tuple[float, float]]:
    """Return (seconds, held-out loss of the model kept then), from before training to the end; in order.

    An epoch that the schedule took back leaves the loss where it was.
    """
    found: list[tuple[float, float]] = []
    for e in run.evaluations:
        loss = e.cross_entropy if e.accepted or not found else found[-1][1]
        found.append((run.clock(e), loss))
    return found


def kept_word_errors(split: str) -> Points:
    """Return the function from a run, whose epochs are decoded, to points of its word error rate on a split, in
    percent. There is no point before training; the last one is of the model that the run has left."""

    def points(run: Run) -> list[tuple[float, float]]:
        known = {one.epoch: one.wer for one in run.epochs_decoded if one.split == split}
        found: list[tuple[float, float]] = []
        for e in run.evaluations:
            if e.accepted and e.epoch in known:
                found.append((run.clock(e), known[e.epoch]))
            elif found and not e.accepted:
                found.append((run.clock(e), found[-1][1]))
        if found and (left := run.results.wer.get(split)):
            found.append((found[-1][0], left.wer))
        return found

    return points


def seconds_to(run: Run, target: float | None, points: Points = kept_losses) -> float | None:
    """Return the seconds until the model kept first had a value of `target` or less, usually the held-out loss; None if
    never.

    Linear between evaluations. Losses fall ever more slowly, so this is a little late, for all runs alike.
    """
    if target is None:
        return None
    before: tuple[float, float] | None = None
    for at, loss in points(run):
        if loss <= target:
            if before is None or not math.isfinite(before[1]):
                return at
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (at - before[0])
        before = at, loss
    return None


def common_target(runs: Sequence[Run]) -> tuple[float | None, list[Run]]:
    """Return a held-out loss that all runs reached (the worst of their best, rounded up to three digits), and the runs
    left out.

    A run that came less than half the way down from the untrained model to the best of all is left out: with it the
    target would be one that says nothing of the rest.
    """
    best = {place: min(losses) for place, run in enumerate(runs) if (losses := _finite_losses(run))}
    if not best:
        return None, []
    untrained = max(_finite_losses(runs[place])[0] for place in best)
    enough = (untrained + min(best.values())) / 2
    reached = [loss for loss in best.values() if loss <= enough]
    behind = [run for place, run in enumerate(runs) if run.evaluations and best.get(place, math.inf) > enough]
    return max(math.ceil(max(reached) * 1000) / 1000, *reached), behind


def _finite_losses(run: Run) -> list[float]:
    return [loss for _, loss in kept_losses(run) if math.isfinite(loss)]


@dataclass(frozen=True)
class Shared:
    """Words on the settings that runs share; "" for settings that differ."""

    learners: str = ""
    stragglers: str = ""
    seeds: str = ""

    @property
    def sentence(self) -> str:
        """One sentence with all shared settings; "" if there are none."""
        parts = [part for part in (self.learners, self.stragglers, self.seeds) if part]
        return f"All runs: {', '.join(parts)}." if parts else ""


def shared(series: Sequence[Series]) -> Shared:
    """Return the settings that `series` have in common; none for a single run, which has its own name."""
    runs = [run for s in series for run in s.runs]
    if len(runs) < 2:
        return Shared()

    def one(words: Iterable[str]) -> str:
        found = set(words)
        return found.pop() if len(found) == 1 else ""

    seeds = one(", ".join(str(run.results.seed) for run in s.runs) for s in series)
    seeds = f"seed{'s' * (',' in seeds)} {seeds}" if seeds else ""
    if len(series) == 1:  # told by its whole name
        return Shared(seeds=seeds)
    learners = one(learners_text(run.results.learners) for run in runs)
    return Shared(learners, one(straggler_text(run.stragglers) for run in runs), seeds)


def briefly(comparison: Comparison, common: Shared) -> Comparison:
    """Return the comparison with shorter names of series, without the `common` settings."""
    return replace(comparison, series=tuple(replace(s, name=_brief(s, common)) for s in comparison.series))


def _brief(series: Series, common: Shared) -> str:
    run = series.runs[0]
    label, learners, stragglers = run.results.label, run.results.learners, run.stragglers
    parts = [label, "" if common.learners else learners_text(learners)]
    parts.append("" if common.stragglers else straggler_text(stragglers))
    rest = series.name.removeprefix(configuration_name(label, learners, stragglers))
    return ", ".join(part for part in parts if part) + rest


LEVEL = 0.02
"""Ratios nearer to 1 than this are called level."""


@dataclass(frozen=True)
class Together:
    """A series of several learners compared with one learner alone."""

    series: Series
    seconds: Spread  # to the loss, of the runs that reached it
    sooner: float | None  # the mean seconds of one alone over its own; None: not all of its runs reached the loss
    ratios: Spread  # the same seed by seed, of the runs that reached it

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
    """Seconds to a loss of one learner alone, and of series of several learners."""

    # held-out, that seconds are counted to: all runs of the best series of one learner end with it or less. Or the word
    # error rate, in percent.
    loss: float
    seconds: Spread  # of the series of one learner that was there first
    # those of several learners, the fastest first, and last those that did not reach the loss.
    others: tuple[Together, ...]


def beside_alone(series: Sequence[Series], loss: float | None = None, points: Points = kept_losses) -> Alone | None:
    """Compare series of several learners with those of one learner; return None where there are not both, or they are
    not of one corpus, network and clock.

    Args:
        loss: held-out loss to which seconds are counted; None: the one that one learner ends with (the worst of its
            seeds, rounded up to three digits; of several series of one learner, that of the lowest mean).
        points: finds the points of each run; if they are not losses, `loss` is of their measure.
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
    """Return the held-out loss, or other value of `points`, of the model kept at the end; NaN without any point."""
    found = points(run)
    return found[-1][1] if found else math.nan


def _kind(run: Run) -> tuple[object, ...]:
    """Return the facts that runs must share so that their losses and seconds can be compared."""
    return run.results.corpus, run.results.parameters, run.simulated, run.wording
