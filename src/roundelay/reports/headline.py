"""The results in a few sentences, with no more certainty than the counts allow."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from roundelay.core.errors import UserError
from roundelay.core.records import WordErrors
from roundelay.reports.comparison import LEVEL, Alone, Comparison, Together, beside_alone, spread
from roundelay.reports.numbers import plain, seconds, short
from roundelay.reports.runs import Run, State, worded
from roundelay.reports.series import Series, finite, named, scored, series_interval, straggler_text
from roundelay.reports.words import difference, errors_by_utterance, recognised

SURE = 0.05
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
MOST_TEAMS = 4
"""Most comparisons with one learner alone in the headline, by number of learners and stragglers."""


def scored_split(runs: Sequence[Run]) -> str | None:
    """Return the split whose word errors to show: test, else dev, else any."""
    splits = [split for run in runs for split, errors in run.results.wer.items() if errors.ref > 0]
    return counted_split(splits) if splits else None


def counted_split(splits: Sequence[str]) -> str:
    """Return the one of these decoded splits whose word errors are shown.

    Raises:
        UserError: there is none.
    """
    if not splits:
        raise UserError("decode.splits is empty, so no word errors are counted. Name splits, such as [dev,test].")
    return next(s for s in ("test", "dev", *splits) if s in splits)


def headline(comparison: Comparison) -> list[str]:
    """Return a few sentences: how much sooner than one learner alone, error rates and whether chance explains them,
    loss, time, speed, and the runs that are not finished.

    Runs that are not finished are compared only if no run is.
    """
    runs = [run for run, _ in comparison.figures]
    series = _judged(comparison)
    judged = [run for s in series for run in s.runs]
    found = [
        sooner(comparison) or _race(series, comparison),
        _word_errors(series, scored_split(judged)),
        _loss(series),
        _unaligned(runs),
        _speed(series),
        _stragglers(series, comparison),
        _unfinished(runs),
    ]
    return [sentence for sentence in found if sentence]


def _judged(comparison: Comparison) -> list[Series]:
    """Return the series of finished runs; of all runs, if none is finished."""
    finished = any(run.state is State.FINISHED for run, _ in comparison.figures)
    parts = (
        replace(s, runs=tuple(run for run in s.runs if not finished or run.state is State.FINISHED))
        for s in comparison.series
    )
    return [s for s in parts if s.runs]


def sooner(comparison: Comparison) -> str:
    """Return sentences on how much sooner several learners reached the loss than one alone, those without stragglers
    first; "" if there is no run of one learner."""
    series = _judged(comparison)
    alone = beside_alone(series, comparison.target if comparison.given else None)
    return "" if alone is None else _beside(alone, virtual=series[0].runs[0].simulated)


def _beside(alone: Alone, *, virtual: bool) -> str:
    groups: dict[tuple[tuple[str, ...], int], list[Together]] = {}
    for one in alone.others:
        groups.setdefault((one.stragglers, one.learners), []).append(one)
    ordered = [found for _, found in sorted(groups.items(), key=lambda item: (bool(item[0][0]), item[0][1]))]
    best, clock, loss = ordered[0][0], " (virtual)" * virtual, f"a held-out loss of {alone.loss:.4g}"
    who, label, its = _learners(best), best.series.runs[0].results.label, seconds(alone.seconds.mean)
    if best.sooner is None:
        first = f"{who} did not reach {loss}{_in_some(best)} ({label}), which one alone reached in {its}{clock}."
    else:
        own, ratio = seconds(best.seconds.mean), times_sooner(best.sooner)
        first = f"{who} reached {loss} in {own}{clock}, one alone in {its}: {ratio} ({label})."
    rest = [f"{_learners(found[0])}: {'; '.join(map(_there, found))}." for found in ordered[1:MOST_TEAMS]]
    return " ".join([first, *rest])


def _learners(some: Together) -> str:
    """Return `Two learners`, `Two learners, straggler 1:3x`."""
    number = NUMBERS[some.learners] if some.learners < len(NUMBERS) else str(some.learners)
    return ", ".join(part for part in (f"{number} learners", straggler_text(some.stragglers)) if part)


def _there(one: Together) -> str:
    label = one.series.runs[0].results.label
    if one.sooner is None:
        return f"{label} did not reach it{_in_some(one)}"
    return f"{label} in {seconds(one.seconds.mean)}, {times_sooner(one.sooner)}"


def _in_some(one: Together) -> str:
    """Return a sentence if some seeds reached the loss and others did not; else ""."""
    runs = len(one.series.runs)
    return f" under {runs - one.seconds.n} of {runs} seeds" if one.seconds.n else ""


def times_sooner(ratio: float) -> str:
    """Return a ratio of seconds as words: `1.62 times sooner`; how much later if below 1; level if about 1."""
    if abs(ratio - 1) < LEVEL:
        return "level"
    return f"{ratio:.2f} times sooner" if ratio > 1 else f"{1 / ratio:.2f} times as long"


def _race(series: Sequence[Series], comparison: Comparison) -> str:
    """Return a sentence on which series reached the target loss first, and when one learner with the same seeds did."""
    if len(series) < 2 or not comparison.one_clock or comparison.target is None:
        return ""
    times = {s.name: spread(comparison.of(run).seconds_to_target for run in s.runs) for s in series}
    whole = sorted((times[s.name].mean, s.name) for s in series if times[s.name].n == len(s.runs))
    if not whole:
        return ""
    (fast, first), (slow, last) = whole[0], whole[-1]
    virtual = " (virtual)" * series[0].runs[0].simulated
    never = [s for s in series if not times[s.name].values]
    if len(whole) == 1 and never:
        return f"Only {first} came to a held-out loss of {comparison.target:.4g}, after {seconds(fast)}{virtual}."
    if len(series) == 2 and 0 < fast < slow:
        both = f"{first} in {seconds(fast)}{virtual}; {last} in {seconds(slow)}, {slow / fast:.1f} times as long"
        return f"To a held-out loss of {comparison.target:.4g}: {both}."
    return (
        f"First at a held-out loss of {comparison.target:.4g}: {first}, after {seconds(fast)}{virtual}; "
        f"last: {last}, after {seconds(slow)}{f'; never: {named(never, series)}' if never else ''}."
    )


def _stragglers(series: Sequence[Series], comparison: Comparison) -> str:
    """Return a sentence on the share of its speed that each strategy keeps with a straggler."""
    kept = {s.name: spread(comparison.of(run).undisturbed for run in s.runs) for s in series}
    known = [(found.mean, name) for name, found in kept.items() if found.values]
    if not known:
        return ""
    (least, worst), (most, best) = min(known), max(known)
    if len(known) == 1:
        return f"{best}, keeps {100 * most:.0f} % of its speed."
    return f"Of their undisturbed speed {best}, keeps {100 * most:.0f} %; {worst}, {100 * least:.0f} %."


def _word_errors(series: Sequence[Series], split: str | None) -> str:
    if split is None:
        return ""
    scores = {s.name: scored(s, split) for s in series}
    rates = sorted((fmean(e.wer for e in errors), name) for name, errors in scores.items() if errors)
    if not rates:
        return ""
    (low, best), (high, worst) = rates[0], rates[-1]
    if len(rates) == 1:
        return f"Word error rate on {split}: {plain(low, 1)} % ({best})."
    doubt = _paired(series, split, best, worst) or _by_intervals(scores)
    range_ = f"lie between {plain(low, 1)} % ({best}) and {plain(high, 1)} % ({worst})"
    if plain(low, 1) == plain(high, 1):
        range_ = f"are all {plain(low, 1)} %"
    return f"Word error rates on {split} {range_}; {doubt}."


def _paired(series: Sequence[Series], split: str, best: str, worst: str) -> str:
    """Return a sentence that compares best and worst series utterance by utterance; "" if decoding did not note
    utterances. Best and worst of several differ by chance more than any two: p is multiplied by the number of pairs."""
    ends = [errors_by_utterance(recognised(s, split)) for name in (worst, best) for s in series if s.name == name]
    apart = difference(*ends) if len(ends) == 2 and all(ends) else None
    if apart is None:
        return ""
    low, high = apart.interval
    p = min(1.0, apart.p * math.comb(len(series), 2))
    corrected = f", corrected for {len(series)} series" if len(series) > 2 else ""
    so = "more than chance explains" if p < SURE else "chance explains that"
    return (
        f"on the same utterances the two differ by {plain(apart.wer, 2)} % (95 % interval {plain(low, 2)} to "
        f"{plain(high, 2)}, p {small(p)}{corrected}): {so}"
    )


def small(p: float) -> str:
    """Return a probability as text, with three digits after the point."""
    return f"{p:.3f}" if p >= 0.001 else "below 0.001"


def _by_intervals(scores: Mapping[str, Sequence[WordErrors]]) -> str:
    intervals = [series_interval(errors) for errors in scores.values() if errors]
    if max(low for low, _ in intervals) > min(high for _, high in intervals):
        return "the 95 % intervals of some do not touch"
    return "all 95 % intervals overlap, so these counts alone do not tell them apart"


def _loss(series: Sequence[Series]) -> str:
    runs = [run for s in series for run in s.runs]
    words, means = worded(runs), _means(series, lambda run: run.cross_entropy)
    if not means or (len(means) > 1 and len({run.wording for run in runs}) > 1):  # they cannot be compared
        return ""
    (low, best), (high, worst) = means[0], means[-1]
    if len(means) == 1:
        return f"Held-out {words.loss}: {plain(low)} {words.unit}."
    apart = f", {100 * (high / low - 1):.1f} % more" if low > 0 and math.isfinite(high / low) else ""
    return f"Held-out {words.loss}: from {plain(low)} ({best}) to {plain(high)} ({worst}){apart}."


def _means(series: Sequence[Series], figure: Callable[[Run], float | None]) -> list[tuple[float, str]]:
    """Return the mean figure and the name of each series that has finite ones, the smallest first."""
    known = [(finite(map(figure, s.runs)), s.name) for s in series]
    return sorted((fmean(values), name) for values, name in known if values)


def _unaligned(runs: Sequence[Run]) -> str:
    """Return a sentence on runs whose losses and counts are not of frames."""
    some = [run for run in runs if not run.wording.of_frames]
    if not some:
        return ""
    words = worded(some)
    others = ", which cannot be compared with those of other runs" * (len(some) < len(runs))
    return (
        f"Trained without an alignment: {', '.join(run.name for run in some)}. Losses there are {words.unit}{others}; "
        f"accuracy is the share of {words.right}."
    )


def _speed(series: Sequence[Series]) -> str:
    """Return a sentence on speed, among runs with one kind of clock and of examples."""
    runs = [run for s in series for run in s.runs]
    examples = worded(runs).examples
    if len({(run.simulated, run.wording.examples) for run in runs}) != 1:
        return ""
    speeds = _means(series, lambda run: run.frames_per_second)
    if not speeds:
        return ""
    virtual = " virtual" if runs[0].simulated else ""
    (slow, last), (fast, first) = speeds[0], speeds[-1]
    if len(speeds) == 1:
        return f"Training speed: {short(fast)} {examples} per{virtual} second, {seconds(runs[0].seconds)} in all."
    if fast < 1.05 * slow:
        return f"All trained at about the same speed, {short(fast)} {examples} per{virtual} second."
    return (
        f"The fastest, {first}, trained {short(fast)} {examples} per{virtual} second, "
        f"{fast / slow:.1f} times as many as {last}.{shared_cores(runs)}"
    )


def shared_cores(runs: Sequence[Run]) -> str:
    """Return a warning if there were more learners than cores: then they wait for each other under any strategy."""
    found: dict[str, set[int]] = {}
    for run in runs:
        cores = re.search(r"\b(\d+) cores?\b", run.results.machine)
        if cores and not run.simulated and int(cores[1]) < run.results.learners:
            found.setdefault(cores[0], set()).add(run.results.learners)
    return "".join(f" {_and(sorted(learners))} learners shared {cores}." for cores, learners in found.items())


def _and(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _unfinished(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs if run.state is not State.FINISHED]
    if not names:
        return ""
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"Not finished, so not to be judged yet: {shown}."
