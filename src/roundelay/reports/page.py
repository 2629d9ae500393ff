"""One HTML page of any number of runs."""

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from roundelay.core.files import write_text
from roundelay.reports.charts import table
from roundelay.reports.comparison import Comparison, briefly, compare_runs, shared
from roundelay.reports.curves import consensus, curves
from roundelay.reports.details import run_section
from roundelay.reports.headline import headline, scored_split
from roundelay.reports.markup import page
from roundelay.reports.mistakes import Listen, Part, mistakes
from roundelay.reports.panels import speed, speedup, time_to_target, word_errors
from roundelay.reports.runs import Run, load_runs
from roundelay.reports.series import Series, finite
from roundelay.reports.table import columns, means, means_table, summary_table
from roundelay.reports.talking import exchanges, staleness
from roundelay.reports.timeline import timeline

UNFOLDED = 4  # runs whose details stand open
MANY_SERIES = 8  # above it curves show those that are ticked
FIRST_SHOWN = 5


def write_report(
    folders: Sequence[Path],
    out: Path,
    target: float | None = None,
    warnings: Sequence[str] = (),
    listen: Listen | None = None,
) -> Path:
    """Read run directories and write the page; returns its path.

    Args:
        target: the held-out loss, nats per frame, that runs race to; None: one that all of them reached.
        warnings: what else a reader must know, each a sentence under the headline.
        listen: finds the sound of an utterance, which then is in the page; None: no sound.

    Raises:
        UserError: a folder is no run directory (all such are named), or the page cannot be written.
    """
    write_text(out, render_html(load_runs(folders), target, warnings, listen=listen))
    return out


def render_html(
    runs: Sequence[Run],
    target: float | None = None,
    warnings: Sequence[str] = (),
    tables: Sequence[Markup] = (),
    listen: Listen | None = None,
) -> str:
    """Return the page; with `tables`, they stand in place of the means over seeds. Equal runs give an equal page, byte
    for byte."""
    whole = compare_runs(runs, target)
    common = shared(whole.series)
    comparison = briefly(whole, common)
    series = comparison.series
    corpora = list(dict.fromkeys(run.results.corpus for run in runs if run.results.corpus))
    race, over_seconds, over_frames = time_to_target(comparison), curves(series, "seconds"), curves(series, "frames")
    scaling = [panel for panel in (speed(series), speedup(comparison)) if panel]
    if race:
        first, learning = [race, word_errors(series)], [over_seconds, over_frames]
    else:
        first, learning, scaling = [word_errors(series), over_seconds], [over_frames, *scaling[:1]], scaling[1:]
    talking = [panel for panel in (staleness(series), consensus(series)) if panel]
    if len(runs) == 1:  # its own section shows the same
        talking = []
    shown, titles = columns(runs), summary_table(runs)
    words = [place for place, column in enumerate(shown) if not column.number]
    every = table("All runs", titles[0], titles[1:], [column.meaning for column in shown], words)
    sections: dict[str, list[Part | None]] = {
        "Result": [timeline(series), first, *(tables or _over_seeds(comparison))],
        "Learning": [learning],
        "Errors": [*mistakes(series, scored_split(runs), listen)],
        "Speed": [scaling],
        "Talking": [talking, exchanges(series)] if talking else [],
        "Runs": [every, *(run_section(s, run, unfolded=len(runs) <= UNFOLDED) for s in series for run in s.runs)],
    }
    kept = {name: [part for part in parts if part] for name, parts in sections.items()}
    return page(
        "report.html",
        f"{', '.join(corpora) or 'Roundelay'}: {len(runs)} run{'s' if len(runs) > 1 else ''}",
        sound=listen is not None,
        kind="report",
        lead=headline(comparison),
        warnings=warnings,
        common=common.sentence,
        choice=_choice(series),
        sections={name: parts for name, parts in kept.items() if parts},
    )


def _choice(series: Sequence[Series]) -> list[tuple[str, int, bool]]:
    """Return boxes to choose series by, where there are many: names, indices, and which are ticked at first."""
    if len(series) <= MANY_SERIES:
        return []
    losses = [(min(finite(run.cross_entropy for run in s.runs), default=math.inf), s.index) for s in series]
    first = {index for _, index in sorted(losses)[:FIRST_SHOWN]}
    return [(s.name, s.index, s.index in first or s.runs[0].results.learners == 1) for s in series]


def _over_seeds(comparison: Comparison) -> list[Markup]:
    rows = means_table(comparison)
    if not rows:
        return []
    meanings = ["who talks to whom, and when", *(column.meaning for column in means(comparison))]
    several = any(len(s.runs) > 1 for s in comparison.series)
    caption = "Means over seeds ± standard deviation of one run" if several else "Beside each other"
    return [table(caption, rows[0], rows[1:], meanings)]
