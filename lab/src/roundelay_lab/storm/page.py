"""One HTML page about a storm: the numbers, a film of the run, and the effect of every fault."""

import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from roundelay.core.files import write_text
from roundelay.reports.charts import axis, figure, table
from roundelay.reports.markup import draw, page
from roundelay_lab.storm.both import StormOptions, StormResult
from roundelay_lab.storm.faults import FAULTS
from roundelay_lab.storm.story import Story
from roundelay_speech.data.problems import counted

FILM_WIDTH, LANES_LEFT, LANES_TOP, LANE = 1100.0, 96.0, 34.0, 26.0


def write_page(found: StormResult, options: StormOptions, out: Path) -> Path:
    """Write the page about a storm to `out`; return its path.

    Raises:
        UserError: the page cannot be written.
    """
    write_text(out, render_page(found, options))
    return out


def render_page(found: StormResult, options: StormOptions) -> str:
    """Return the page about a storm. Equal results give an equal page."""
    title = f"{found.results[1].label}, {options.hosts} hosts of {options.learners}: {_share(found)} in a storm"
    note = (
        f"Bars: learners that live. Below: {found.counted} trained and counted, in the storm and, dashed, undisturbed."
    )
    return page(
        "roundelay_lab.storm/storm.html",
        title,
        script=files("roundelay_lab.storm").joinpath("film.js").read_text(encoding="utf-8"),
        kind="storm",
        lead=_sentences(found, options),
        film=figure(f"Learners and {found.counted} over time", note, _film(found)),
        faults=_faults(found.storm.since_training()),
    )


def _share(found: StormResult) -> str:
    return f"{100 * found.share:.1f} %"


def _sentences(found: StormResult, options: StormOptions) -> list[str]:
    calm, storm = found.results
    struck, digits = len(found.storm.struck), 0 if found.counted == "frames" else 1
    sentences = [
        f"In the storm, {_share(found)} of the minibatches counted that the same learners train undisturbed in the "
        f"same time: {found.storm.frames_per_second:,.{digits}f} {found.counted} a second, against "
        f"{found.undisturbed.frames_per_second:,.{digits}f} before it and {found.after.frames_per_second:,.{digits}f} "
        "after it, undisturbed.",
        f"{found.whole}.",
        f"{counted(struck, 'fault')} in {found.storm.since_training().seconds:.0f} s, one every {options.every:g} s on "
        f"average; the run was started {counted(found.storm.starts, 'time')}. {found.counted.capitalize()} trained and "
        f"counted: {storm.counted:,}, undisturbed {calm.counted:,}.",
    ]
    if (calmed := found.storm.since_training().calmed) is not None:
        sentences.append(
            f"With more faults the run would not have ended: there were none after {calmed:.0f} s, so the share is at "
            "most that."
        )
    losses = [
        f"{split} {stormy:.4f} nats per frame against {calm.losses[split]:.4f}"
        for split, stormy in storm.losses.items()
        if split in calm.losses
    ]
    errors = [
        f"{split} {storm.wer[split].wer:.2f} % of words wrong against {calm.wer[split].wer:.2f} %"
        for split in storm.wer
        if split in calm.wer
    ]
    if losses or errors:
        sentences.append("In the end: " + ", ".join([*losses, *errors]) + ".")
    if found.storm.left:
        sentences.append(f"{found.storm.left} processes outlived the run.")
    return sentences


def _film(found: StormResult) -> Markup:
    """Return a drawing of learners and trained frames over time, and of the faults that struck."""
    story, undisturbed = found.storm.since_training(), found.undisturbed.since_training()
    top = LANES_TOP + LANE * story.learners + 40
    x = axis([0.0, story.seconds], LANES_LEFT, FILM_WIDTH - 14, from_zero=True)
    most = max((frames for one in (story, undisturbed) for _, frames in one.progress), default=1)
    y = axis([0.0, float(most)], top + 220, top, from_zero=True)
    lives = list(pairwise([*story.living, (story.seconds, ())]))
    lanes = [
        (LANES_TOP + LANE * rank, [(at, until) for (at, ranks), (until, _) in lives if rank in ranks])
        for rank in range(story.learners)
    ]
    curves = [
        (colour, [(x.place(at), y.place(float(frames))) for at, frames in _thinned(one.progress)])
        for one, colour in ((undisturbed, "d1 c5"), (story, "c0"))
    ]
    faults = [(one.at, one.kind, f"{one.at:.1f} s: {FAULTS[one.kind]}, host {one.host}") for one in story.struck]
    label = (
        f"Learners that live and {found.counted} trained over {story.seconds:.0f} seconds, with {len(story.struck)} "
        "faults"
    )
    seconds = round(story.seconds, 2)
    data = {
        "left": LANES_LEFT,
        "right": x.place(story.seconds),
        "seconds": seconds,
        "learners": story.learners,
        "unit": found.counted,
        "progress": _thinned([(round(at, 2), count) for at, count in story.progress]),
        "living": [(round(at, 2), len(ranks)) for at, ranks in story.living],
        "struck": [(round(one.at, 2), f"{one.kind}, host {one.host}") for one in story.struck],
    }
    drawn = (FILM_WIDTH, top + 268, x, y, lanes, curves, faults, found.counted)
    return draw("film", json.dumps(data), seconds, label, *drawn, template="roundelay_lab.storm/film.svg")


def _thinned(points: Sequence[tuple[float, int]], most: int = 1000) -> list[tuple[float, int]]:
    """Return at most `most` of the points, the last among them."""
    step = max(1, -(-len(points) // most))
    return [*points[:-1:step], *points[-1:]]


def _faults(story: Story) -> Markup:
    rows = []
    for one in story.recoveries():
        struck = one.struck
        row = [f"{struck.at:.1f}", struck.kind, f"{struck.host}", f"{struck.until - struck.at:.1f}"]
        rows.append([*row, *("" if value is None else f"{value:.1f}" for value in (one.others, one.victim))])
    titles = ["at, s", "fault", "host", "lasted, s", "others went on after, s", "all were back after, s"]
    meanings = [
        "seconds of training",
        "; ".join(f"{kind}: {meaning}" for kind, meaning in FAULTS.items()),
        "from 0, which leads",
        "until what was done was undone",
        "until the next minibatches were counted",
        "until all learners lived again, where one was lost",
    ]
    return table("Faults in order", titles, rows, meanings, words=(1,))
