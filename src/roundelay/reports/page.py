"""One HTML page of any number of runs.

It asks nobody for anything: style, script and charts are in it, and the letters are the reader's own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.files import write_text
from roundelay.reports.comparison import Comparison, briefly, compare_runs, shared
from roundelay.reports.curves import consensus, curves
from roundelay.reports.details import run_section, table
from roundelay.reports.document import document, footer
from roundelay.reports.headline import headline, scored_split
from roundelay.reports.mistakes import Listen, mistakes
from roundelay.reports.panels import joined, speed, speedup, time_to_target, word_errors
from roundelay.reports.runs import Run, load_runs
from roundelay.reports.series import Series, finite
from roundelay.reports.svg import element, esc
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


@dataclass(frozen=True)
class PageTable:
    """A table for the page: titles and rows of equally many cells, and the meaning of each column."""

    caption: str
    rows: Sequence[Sequence[str]]  # the first are the titles
    meanings: Sequence[str]


def render_html(
    runs: Sequence[Run],
    target: float | None = None,
    warnings: Sequence[str] = (),
    tables: Sequence[PageTable] = (),
    listen: Listen | None = None,
) -> str:
    """Return the page; with `tables`, they stand in place of the means over seeds. Equal runs give an equal page, byte
    for byte."""
    whole = compare_runs(runs, target)
    common = shared(whole.series)
    comparison = briefly(whole, common)
    series = comparison.series
    corpora = list(dict.fromkeys(run.results.corpus for run in runs if run.results.corpus))
    title = f"{', '.join(corpora) or 'Roundelay'}: {len(runs)} run{'s' if len(runs) > 1 else ''}"
    said = [element("p", esc(joined(sentence))) for sentence in headline(comparison)]
    said += [element("p", esc(w), class_="warning") for w in warnings]
    said += [element("p", esc(common.sentence), class_="note")] if common.sentence else []
    race, over_seconds, over_frames = time_to_target(comparison), curves(series, "seconds"), curves(series, "frames")
    scaling = [panel for panel in (speed(series), speedup(comparison)) if panel]
    if race:
        first, learning = [race, word_errors(series)], [over_seconds, over_frames]
    else:
        first, learning, scaling = [word_errors(series), over_seconds], [over_frames, *scaling[:1]], scaling[1:]
    talking = [panel for panel in (staleness(series), consensus(series)) if panel]
    alone = len(runs) == 1  # its own section shows the same
    who = "" if alone else exchanges(series)
    each = [run_section(s, run, unfolded=len(runs) <= UNFOLDED) for s in series for run in s.runs]
    sections = {
        "Result": [timeline(series), _two(first), *map(_shown, tables or _over_seeds(comparison))],
        "Learning": [_two(learning)],
        "Errors": mistakes(series, scored_split(runs), listen),
        "Speed": [_two(scaling)] if scaling else [],
        "Talking": [_two(talking), who] if talking and not alone else [],
        "Runs": [_all_runs(runs), *each],
    }
    kept = {name: body for name, body in sections.items() if body}
    header = element(
        "header",
        element("p", "Roundelay report", class_="eyebrow"),
        element("h1", esc(title)),
        element("div", *said, class_="lead"),
        _contents(kept),
    )
    main = element("main", header, _choice(series), *(_section(*section) for section in kept.items()), footer())
    return document(title, main, sound=listen is not None)


def _contents(names: Iterable[str]) -> str:
    """Return links to the sections."""
    links = [element("li", element("a", esc(name), href=f"#{name.lower()}")) for name in names]
    return element("nav", element("ul", *links), aria_label="Contents", class_="contents")


def _choice(series: Sequence[Series]) -> str:
    """Return boxes to choose series by, where there are many; page.js shows them and obeys them."""
    if len(series) <= MANY_SERIES:
        return ""
    losses = [(min(finite(run.cross_entropy for run in s.runs), default=math.inf), s.index) for s in series]
    first = {index for _, index in sorted(losses)[:FIRST_SHOWN]}
    first |= {s.index for s in series if s.runs[0].results.learners == 1}
    boxes = []
    for s in series:
        ticked = {"checked": "checked"} if s.index in first else {}
        box = element("input", type="checkbox", value=s.index, **ticked).removesuffix("</input>")
        boxes.append(element("label", box, esc(s.name)))
    buttons = [element("button", name, type="button", data_all=name.lower()) for name in ("All", "None")]
    note = element(
        "p", esc(f"Of {len(series)} series, those with the lowest held-out loss and one learner are ticked.")
    )
    return element(
        "fieldset", element("legend", "Series in the curves"), note, *boxes, *buttons, hidden="hidden", class_="choice"
    )


def _two(panels: Sequence[str]) -> str:
    return element("div", *panels, class_="two")


def _section(title: str, body: Sequence[str]) -> str:
    return element("section", element("h2", esc(title)), *body, id=title.lower())


def _all_runs(runs: Sequence[Run]) -> str:
    titles, *rows = summary_table(runs)
    shown = columns(runs)
    return table("All runs", titles, rows, [c.number for c in shown], [c.meaning for c in shown])


def _shown(one: PageTable) -> str:
    return table(one.caption, one.rows[0], one.rows[1:], [False] + [True] * (len(one.meanings) - 1), one.meanings)


def _over_seeds(comparison: Comparison) -> list[PageTable]:
    rows = means_table(comparison)
    if not rows:
        return []
    meanings = ["who talks to whom, and when", *(column.meaning for column in means(comparison))]
    several = any(len(s.runs) > 1 for s in comparison.series)
    caption = "Means over seeds ± standard deviation of one run" if several else "Beside each other"
    return [PageTable(caption, rows, meanings)]
