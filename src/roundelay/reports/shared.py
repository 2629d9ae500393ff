"""Settings that all runs of a page share: they are said once, and left out of the names of their series."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from roundelay.reports.comparison import Comparison
from roundelay.reports.runs import Run
from roundelay.reports.series import Series, configuration_name, learners_text, straggler_text


@dataclass(frozen=True)
class Shared:
    """Words for what runs share, empty for what they do not."""

    learners: str = ""
    stragglers: str = ""
    seeds: str = ""

    @property
    def sentence(self) -> str:
        """All of it; empty where nothing is shared."""
        parts = [part for part in (self.learners, self.stragglers, self.seeds) if part]
        return f"All runs: {', '.join(parts)}." if parts else ""


def shared(series: Sequence[Series]) -> Shared:
    """Find what these series have in common; nothing of a single run, which is told by its own name."""
    runs = [run for s in series for run in s.runs]
    if len(runs) < 2:
        return Shared()
    several = len(series) > 1  # one series is told by its whole name
    seeds = {tuple(run.results.seed for run in s.runs) for s in series}
    return Shared(
        _of_all(runs, lambda run: learners_text(run.results.learners)) if several else "",
        _of_all(runs, lambda run: straggler_text(run.stragglers)) if several else "",
        _seeds_text(seeds.pop()) if len(seeds) == 1 else "",
    )


def _of_all(runs: Sequence[Run], said: Callable[[Run], str]) -> str:
    found = {said(run) for run in runs}
    return found.pop() if len(found) == 1 else ""


def _seeds_text(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def briefly(comparison: Comparison, common: Shared) -> Comparison:
    """The comparison, its series under names without what is common."""
    return replace(comparison, series=tuple(replace(s, name=_brief(s, common)) for s in comparison.series))


def _brief(series: Series, common: Shared) -> str:
    run = series.runs[0]
    label, learners, stragglers = run.results.label, run.results.learners, run.stragglers
    parts = [label, "" if common.learners else learners_text(learners)]
    parts.append("" if common.stragglers else straggler_text(stragglers))
    rest = series.name.removeprefix(configuration_name(label, learners, stragglers))
    return ", ".join(part for part in parts if part) + rest
