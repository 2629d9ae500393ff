"""Runs that differ in nothing but the seed are one series: one colour, one name, one mean and its spread."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from roundelay.core.records import WordErrors
from roundelay.report.runs import Run

# Lines of a recipe in which reruns differ although nothing that matters does.
_RERUN = re.compile(r'^[\s",]*"?(seed|exp|name|resume|progress)"?\s*:')

_Z = 1.96  # two-sided 95 %


@dataclass(frozen=True)
class Series:
    """Reruns of one configuration under different seeds; `index` chooses the colour and the mark in every chart."""

    index: int
    name: str
    runs: tuple[Run, ...]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """Group runs, in the order given.

    Two runs with the same seed are no reruns of each other (one would count twice in a spread), so each then stands
    alone.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_configuration(run), []).append(run)
    apart: list[list[Run]] = []
    for group in groups.values():
        seeds = [run.results.seed for run in group]
        apart += [group] if len(set(seeds)) == len(seeds) else [[run] for run in group]
    names = [_name(group[0]) for group in apart]
    return [
        Series(index, name if names.count(name) == 1 else f"{name} ({', '.join(r.name for r in group)})", tuple(group))
        for index, (name, group) in enumerate(zip(names, apart, strict=True))
    ]


def interval(errors: float, words: int) -> tuple[float, float]:
    """95 % interval of an error rate in percent, from the count alone (score interval of a Poisson count).

    It takes word errors as independent. They cluster in utterances, so the true interval is a little wider.
    """
    middle, half = errors + _Z**2 / 2, _Z * math.sqrt(errors + _Z**2 / 4)
    return 100 * max(0.0, middle - half) / words, 100 * (middle + half) / words


def wrong(errors: WordErrors) -> int:
    """Insertions, deletions and substitutions."""
    return errors.ins + errors.del_ + errors.sub


def scored(series: Series, split: str) -> list[WordErrors]:
    """The word errors of its runs on a split, where it was decoded and has any words."""
    return [errors for run in series.runs if (errors := words(run, split))]


def words(run: Run, split: str) -> WordErrors | None:
    """The word errors of one run on a split, if it was decoded and has any words."""
    errors = run.results.wer.get(split)
    return errors if errors and errors.ref > 0 and math.isfinite(errors.wer) else None


def series_interval(scores: Sequence[WordErrors]) -> tuple[float, float]:
    """The interval of the mean error rate, as if it were one pass over the test set.

    All seeds decode the same utterances, so their errors go together: more seeds do not make the set larger.
    """
    return interval(fmean(wrong(e) for e in scores), max(e.ref for e in scores))


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _configuration(run: Run) -> tuple[object, ...]:
    recipe = "\n".join(line for line in run.recipe.splitlines() if not _RERUN.match(line))
    r = run.results
    return r.label, r.learners, r.runtime, r.corpus, r.minibatch_frames, r.parameters, recipe


def _name(run: Run) -> str:
    learners = "1 learner" if run.results.learners == 1 else f"{run.results.learners} learners"
    return f"{run.results.label}, {learners}" + (", simulated" if run.simulated else "")
