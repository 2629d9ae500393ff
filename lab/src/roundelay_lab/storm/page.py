"""One HTML page about a storm: the numbers, a film of the run, and what followed from every fault."""

import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from roundelay.core.files import write_text
from roundelay.reports.details import table
from roundelay.reports.document import document, footer
from roundelay.reports.panels import figure, joined
from roundelay.reports.svg import Axis, axis, element, esc, svg, text, x_axis, y_axis
from roundelay_lab.storm.both import StormOptions, StormResult
from roundelay_lab.storm.faults import FAULTS
from roundelay_lab.storm.story import Story
from roundelay_speech.data.problems import counted

FILM_WIDTH, LANE, CURVE = 1100.0, 26.0, 220.0
LANES_LEFT, LANES_TOP = 96.0, 34.0


def write_page(found: StormResult, options: StormOptions, out: Path) -> Path:
    """Write the page; returns its path.

    Raises:
        UserError: it cannot be written.
    """
    write_text(out, render_page(found, options))
    return out


def render_page(found: StormResult, options: StormOptions) -> str:
    """Return the page. Equal results give an equal page."""
    title = f"{found.results[1].label}, {options.hosts} hosts of {options.learners}: {_share(found)} in a storm"
    lead = element(
        "div", *(element("p", esc(joined(sentence))) for sentence in _sentences(found, options)), class_="lead"
    )
    header = element("header", element("p", "Roundelay storm", class_="eyebrow"), element("h1", esc(title)), lead)
    note = (
        f"Bars: learners that live. Below: {found.counted} trained and counted, in the storm and, dashed, undisturbed."
    )
    film = element("h2", "The run", class_="unseen") + figure(
        f"Learners and {found.counted} over time", note, _film(found)
    )
    main = element("main", header, film, element("h2", "Faults"), _faults(found.storm.since_training()), footer())
    return document(title, main, script=files("roundelay_lab.storm").joinpath("film.js").read_text(encoding="utf-8"))


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


def _film(found: StormResult) -> str:
    story, undisturbed = found.storm.since_training(), found.undisturbed.since_training()
    bottom = LANES_TOP + LANE * story.learners
    seconds = axis([0.0, story.seconds], LANES_LEFT, FILM_WIDTH - 14, from_zero=True)
    curve_top, curve_bottom = bottom + 40, bottom + 40 + CURVE
    most = max((frames for one in (story, undisturbed) for _, frames in one.progress), default=1)
    frames = axis([0.0, float(most)], curve_bottom, curve_top, from_zero=True)
    parts = [y_axis(frames, LANES_LEFT, FILM_WIDTH - 14, found.counted)]
    for rank in range(story.learners):
        parts.append(_lane(story, rank, LANES_TOP + LANE * rank, seconds))
    parts += [_curve(undisturbed, seconds, frames, "d1 c5"), _curve(story, seconds, frames, "c0")]
    curtain = element(
        "rect",
        x=FILM_WIDTH,
        y=LANES_TOP - 4,
        width=0,
        height=curve_bottom - LANES_TOP + 3,
        class_="curtain",
        fill="var(--sheet)",
    )
    parts += [curtain, *_marks(story, seconds, curve_bottom), x_axis(seconds, curve_bottom, "seconds of training")]
    label = (
        f"Learners that live and {found.counted} trained over {story.seconds:.0f} seconds, with {len(story.struck)} "
        "faults"
    )
    chart = svg(FILM_WIDTH, curve_bottom + 48, label, *parts, class_="chart whole")
    data = {
        "left": LANES_LEFT,
        "right": seconds.place(story.seconds),
        "seconds": round(story.seconds, 2),
        "learners": story.learners,
        "unit": found.counted,
        "progress": _thinned([(round(at, 2), count) for at, count in story.progress]),
        "living": [(round(at, 2), len(ranks)) for at, ranks in story.living],
        "struck": [(round(one.at, 2), f"{one.kind}, host {one.host}") for one in story.struck],
    }
    slider = element(
        "input", type="range", min=0, max=data["seconds"], step=0.1, value=data["seconds"], aria_label="seconds"
    ).removesuffix("</input>")
    play = element("button", "Play", type="button")
    controls = element("div", play, slider, element("output", "", aria_live="off"), class_="controls", hidden="hidden")
    return element("div", chart, controls, class_="film", data_film=json.dumps(data))


def _lane(story: Story, rank: int, top: float, x: Axis) -> str:
    """Return the times in which a learner lived."""
    ends = [*story.living, (story.seconds, ())]
    bars = [
        element(
            "rect", x=x.place(at), y=top, width=max(0.0, x.place(until) - x.place(at)), height=LANE - 6, class_="bar c2"
        )
        for (at, ranks), (until, _) in pairwise(ends)
        if rank in ranks
    ]
    return text(f"learner {rank}", LANES_LEFT - 10, top + LANE - 11, class_="name", anchor="end") + "".join(bars)


def _curve(story: Story, x: Axis, y: Axis, colour: str) -> str:
    points = _thinned(story.progress)
    line = " ".join(f"{x.place(at):.1f},{y.place(float(frames)):.1f}" for at, frames in points)
    return element("g", element("polyline", points=line, class_="line"), class_=colour)


def _marks(story: Story, x: Axis, bottom: float) -> list[str]:
    """Return marks of faults: a line down the chart, and its kind on top, on two heights in turn."""
    found = []
    for number, one in enumerate(story.struck):
        at = x.place(one.at)
        tip = element("title", esc(f"{one.at:.1f} s: {FAULTS[one.kind]}, host {one.host}"))
        line = element(
            "line", tip, x1=at, x2=at, y1=LANES_TOP - 6, y2=bottom, stroke="var(--warn)", stroke_width=1, opacity=0.55
        )
        found.append(line + text(one.kind, at, LANES_TOP - 10 - 12 * (number % 2), anchor="middle"))
    return found


def _thinned(points: Sequence[tuple[float, int]], most: int = 1000) -> list[tuple[float, int]]:
    """Return at most so many of the points, the last among them."""
    step = max(1, -(-len(points) // most))
    return [*points[:-1:step], *points[-1:]]


def _faults(story: Story) -> str:
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
    numbers = [True, False, True, True, True, True]
    return table("Faults in order", titles, rows, numbers, meanings)
