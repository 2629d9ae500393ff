"""Runs that differ in nothing but the seed are one series: one colour, one name, one mean and its spread."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from roundelay.core.records import WordErrors
from roundelay.reports.runs import Run

# Lines of a recipe in which reruns differ although nothing that matters does.
_RERUN_KEYS = ("seed", "exp", "name", "resume", "progress")
_RERUN = re.compile(rf'^[\s",]*"?({"|".join(_RERUN_KEYS)})"?\s*:')

COLOURS = 8
MOST_SETTINGS = 4
"""Most settings in a name; series that differ in more are distinguished by the names of their runs."""

_Z = 1.96  # two-sided 95 %


@dataclass(frozen=True)
class Series:
    """Reruns of one configuration under different seeds.

    `index` chooses colour, mark and dashes in every chart: colour and mark by strategy, dashes by other differences
    (learners, stragglers), as long as there are no more strategies than colours.
    """

    index: int
    name: str
    runs: tuple[Run, ...]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """Group runs into series, in the order given.

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
    mixed = len({run.simulated for run in runs}) > 1
    names = _told_apart([_name(group[0], mixed=mixed) for group in apart], apart)
    indices = _indices([group[0].results.label for group in apart])
    return [Series(index, name, tuple(group)) for index, name, group in zip(indices, names, apart, strict=True)]


def _told_apart(names: Sequence[str], groups: Sequence[Sequence[Run]]) -> list[str]:
    """Make equal names different: append settings in which their runs' recipes differ, or else the names of the
    runs."""
    found = list(names)
    for name in dict.fromkeys(names):
        places = [place for place, other in enumerate(names) if other == name]
        settings = [groups[place][0].settings for place in places]
        keys = [
            key
            for key in dict.fromkeys(key for one in settings for key in one)
            if key.split(".")[-1] not in _RERUN_KEYS and any(one.get(key) != settings[0].get(key) for one in settings)
        ]
        if 0 < len(keys) <= MOST_SETTINGS:
            for place, one in zip(places, settings, strict=True):
                found[place] = ", ".join([name, *(f"{key} {one[key]}" for key in keys if key in one)])
    return [
        name if found.count(name) == 1 else f"{name} ({', '.join(run.name for run in group)})"
        for name, group in zip(found, groups, strict=True)
    ]


def _indices(labels: Sequence[str]) -> list[int]:
    families = list(dict.fromkeys(labels))
    if len(families) > COLOURS:
        return list(range(len(labels)))
    return [COLOURS * labels[:place].count(label) + families.index(label) for place, label in enumerate(labels)]


def shortened(names: Sequence[str]) -> list[str]:
    """Shorten names that stand below each other: one that begins with the whole of a name above keeps only its
    addition."""
    found, above = [], "\n"
    for name in names:
        if name.startswith(f"{above}, "):
            found.append(f"… {name.removeprefix(above)[2:]}")
        else:
            above = name
            found.append(name)
    return found


def named(some: Sequence[Series], all_: Sequence[Series]) -> str:
    """Return the names of some series for a sentence; a strategy all of whose series are among them appears as its
    label alone."""
    chosen = {s.index for s in some}
    found: dict[str, None] = {}  # in order, each once
    for s in some:
        label = s.runs[0].results.label
        family = [other for other in all_ if other.runs[0].results.label == label]
        found[label if len(family) > 1 and all(other.index in chosen for other in family) else s.name] = None
    return "; ".join(found)


def interval(errors: float, words: int) -> tuple[float, float]:
    """Return the 95 % interval of an error rate in percent, from the count alone (score interval of a Poisson count).

    The interval takes word errors as independent. They cluster in utterances, so the true one is a little wider.
    """
    middle, half = errors + _Z**2 / 2, _Z * math.sqrt(errors + _Z**2 / 4)
    return 100 * max(0.0, middle - half) / words, 100 * (middle + half) / words


def errors_interval(errors: WordErrors) -> tuple[float, float]:
    """Return the 95 % interval of an error rate in percent: by the recorded bootstrap, else by the count alone."""
    if errors.interval is not None:
        low, high = errors.interval
        return low, high
    return interval(wrong(errors), errors.ref)


def wrong(errors: WordErrors) -> int:
    """Return the sum of insertions, deletions and substitutions."""
    return errors.ins + errors.del_ + errors.sub


def scored(series: Series, split: str) -> list[WordErrors]:
    """Return the word errors on a split of those runs of a series that were decoded, if the split has any words."""
    return [errors for run in series.runs if (errors := words(run, split))]


def words(run: Run, split: str) -> WordErrors | None:
    """Return the word errors of one run on a split, if it was decoded and has any words."""
    errors = run.results.wer.get(split)
    return errors if errors and errors.ref > 0 and math.isfinite(errors.wer) else None


def series_interval(scores: Sequence[WordErrors]) -> tuple[float, float]:
    """Return the interval of the mean error rate, as if it were one pass over the test set.

    All seeds decode the same utterances, so their errors go together: more seeds do not make the set larger. If every
    seed has a bootstrap interval, the result is the mean of their ends; else the interval of the mean count.
    """
    if bootstrapped(scores):
        ends = [errors_interval(errors) for errors in scores]
        return fmean(low for low, _ in ends), fmean(high for _, high in ends)
    return interval(fmean(wrong(e) for e in scores), max(e.ref for e in scores))


def bootstrapped(scores: Iterable[WordErrors]) -> bool:
    """Return True if all `scores` have the interval of a bootstrap."""
    return all(errors.interval is not None for errors in scores)


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are finite numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _configuration(run: Run) -> tuple[object, ...]:
    recipe = "\n".join(line for line in run.recipe.splitlines() if not _RERUN.match(line))
    r = run.results
    return r.label, r.learners, r.runtime, r.corpus, r.minibatch_frames, r.parameters, recipe


def _name(run: Run, *, mixed: bool) -> str:
    name = configuration_name(run.results.label, run.results.learners, run.stragglers)
    return f"{name}, simulated" if mixed and run.simulated else name


def configuration_name(label: str, learners: int, stragglers: Sequence[str] = ()) -> str:
    """Return the name of a configuration: `adpsgd random-ring, 4 learners, straggler 1:3x`."""
    return ", ".join(part for part in (label, learners_text(learners), straggler_text(stragglers)) if part)


def learners_text(number: int) -> str:
    """Return a number of learners in words: `1 learner`, `4 learners`."""
    return "1 learner" if number == 1 else f"{number} learners"


def straggler_text(stragglers: Sequence[str]) -> str:
    """Return stragglers in words, `straggler 1:3x`; "" without any."""
    return f"straggler{'s' * (len(stragglers) > 1)} {' '.join(stragglers)}" if stragglers else ""
