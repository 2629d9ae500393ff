"""The page: whole, self-contained, escaped, with words for every picture, and drawn whatever the numbers are."""

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.records import Evaluation, LearnersChanged, Segment, Staleness, to_line
from roundelay.reports import load_run, load_runs, render_html, text_table, write_report
from roundelay.reports.charts import (
    ChartAxes,
    ColumnBar,
    DotRow,
    Line,
    Point,
    axis,
    column_chart,
    dot_chart,
    heat_map,
    line_chart,
)
from roundelay.reports.markup import draw
from roundelay.reports.runs import Run
from support.decoded_runs import two
from support.fake_runs import Fake, fake_records, write_run
from support.outline import Outline


@pytest.fixture(scope="module")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    fakes = [
        Fake(name="sgd-1", label="sgd", learners=1, speed=24_000),
        Fake(name="four-1", seed=1, straggler=2, lost=1),
        Fake(name="four-2", seed=2),
        Fake(name="simulated", runtime="sim", learners=200, straggler=150),
        Fake(name="interrupted", end="interrupted", epochs=1),
        Fake(name="begun", end="killed", epochs=0),
        Fake(name="results", end="no events"),
    ]
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder, fake) for fake in fakes]


@pytest.fixture(scope="module")
def page(some_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of these runs."""
    return write_report(some_runs, tmp_path_factory.mktemp("report") / "in" / "index.html").read_text(encoding="utf-8")


def test_the_page_asks_nobody_for_anything(page: str) -> None:
    assert not re.search(r"https?://|//[a-z]|url\(|@import|@font-face", page)
    for tag, attributes in Outline(page).found:
        assert tag not in ("img", "iframe", "object", "embed", "audio", "video", "source", "use", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#") or attributes["href"] == "data:,"
    assert "default-src 'none'" in page  # the browser holds it to that


def test_every_picture_and_table_has_words_for_it(page: str) -> None:
    outline = Outline(page)
    for tag, attributes in outline.found:
        if tag == "svg" and "chart" in (attributes.get("class") or ""):
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
    tags = [tag for tag, _ in outline.found]
    assert tags.count("table") == tags.count("caption") > 2
    assert tags.count("h1") == 1
    assert tags.count("figure") == tags.count("figcaption")
    assert ("html", {"lang": "en"}) in outline.found


def test_equal_runs_give_an_equal_page(page: str, some_runs: list[Path]) -> None:
    assert render_html(load_runs(some_runs)) == page


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&\u2028\x00\ud800"  # a lone surrogate is what no encoding can write
    folder = write_run(tmp_path, Fake(name="x", recipe="{{seed}}: </pre><script>1</script>\n"))
    run = load_run(folder)
    run = dataclasses.replace(
        run, name=evil, stopped=evil, results=dataclasses.replace(run.results, label=evil, machine=evil)
    )
    page = render_html([run])
    assert page.encode("utf-8")
    assert page.count("<script") == 1  # ours
    assert "\x00" not in page
    assert any("<script>alert(1)</script>\"'&" in words for words in Outline(page).words)


def test_verdict_curves_errors_and_talking_follow_each_other(tmp_path: Path) -> None:
    """And the list of contents leads to each."""
    outline = Outline(render_html(load_runs(two(tmp_path, 2))))
    sections = [attributes["id"] for tag, attributes in outline.found if tag == "section"]
    assert sections == ["result", "learning", "errors", "speed", "talking", "runs"]
    links = [attributes["href"] for tag, attributes in outline.found if tag == "a"]
    assert links == [f"#{name}" for name in sections]


def test_what_runs_share_is_said_once(tmp_path: Path) -> None:
    """A page of one learner has nothing to be twice as fast as; one with several seeds names them once."""
    recipe = "training: {{learners: 2, stragglers: ['1:3x']}}\nseed: {seed}\n"
    fakes = [Fake(name=n, label=n, learners=2, recipe=recipe) for n in ("ssgd", "adpsgd")]
    runs = load_runs([write_run(tmp_path, fake) for fake in fakes])
    page = render_html(runs)
    assert page.count("straggler 1:3x") == 1
    assert "All runs: 2 learners, straggler 1:3x, seed 1." in page
    assert text_table(runs).startswith("All runs: 2 learners, straggler 1:3x, seed 1.\n")
    assert "one-learner run" not in page
    words = Outline(page).words
    assert not {"seeds", "seed", "learners"} & set(words)
    third = write_run(tmp_path, Fake(name="other", label="adpsgd", learners=4, seed=2, recipe=recipe))
    assert "All runs: straggler 1:3x." in render_html([*runs, load_run(third)])
    alone = write_run(tmp_path, Fake(name="alone", label="sgd", learners=1))
    page = render_html([*runs, load_run(alone)])
    assert "All runs: seed 1." in page
    assert "2 x: in half the one-learner run&#39;s time." in page


def test_it_is_shown_how_far_a_run_came(page: str) -> None:
    words = " ".join(Outline(page).words)
    assert "interrupted in epoch 2" in words
    assert "not finished in the first epoch: still running, or killed" in words
    assert "Learner 1 was lost after" in words
    assert "Not finished, so not to be judged yet: interrupted, begun." in words


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e300, 0.0, -1.0, 1e-300])
def test_strange_losses_are_drawn_or_named(tmp_path: Path, loss: float) -> None:
    fake = Fake()
    folder = write_run(tmp_path, fake)
    records = [
        dataclasses.replace(r, cross_entropy=loss)
        if isinstance(r, Evaluation) and r.epoch >= 4
        else dataclasses.replace(r, loss=loss)
        if isinstance(r, Segment)
        else r
        for r in fake_records(fake)
    ]
    write_text(folder / "events.jsonl", "".join(to_line(r) + "\n" for r in records))
    page = render_html([load_run(folder)])
    assert 'NaN"' not in page
    assert 'nan"' not in page
    assert 'inf"' not in page
    if not math.isfinite(loss):
        assert "5 values are not a finite number and not drawn" in page


@pytest.mark.parametrize(
    ("histogram", "largest", "said", "not_said"),
    [
        ([90, 5, 5], 17, "staleness 2+: 5.0 %, 5 of 100 gradients", "staleness 3"),
        ([600, 399] + [0] * 38 + [1], 40, "The oldest 0.5\u00a0% or less of each are not drawn", "staleness 3"),
    ],
)
def test_what_is_above_the_last_bin_is_said_and_a_long_thin_tail_is_not_drawn(
    tmp_path: Path, histogram: list[int], largest: int, said: str, not_said: str
) -> None:
    fake = Fake(epochs=1)
    folder = write_run(tmp_path, fake)
    records = [
        dataclasses.replace(r, histogram=histogram, largest=largest) if isinstance(r, Staleness) else r
        for r in fake_records(fake)
    ]
    write_text(folder / "events.jsonl", "".join(to_line(r) + "\n" for r in records))
    page = render_html([load_run(folder)])
    assert said in page
    assert not_said not in page


def test_a_straggler_is_pointed_out(tmp_path: Path) -> None:
    page = render_html([load_run(write_run(tmp_path, Fake(straggler=2)))])
    assert re.search(r"Behind the median learner: 2 \(33.%\)", page)
    assert page.count('class="bar low"') == 1


def test_no_page_is_written_over_a_mistake(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(UserError, match="no such folder"):
        write_report([tmp_path / "absent"], out)
    assert not out.exists()


def seeds(folder: Path, *numbers: int, **changes: object) -> list[Path]:
    return [write_run(folder, Fake(name=f"s{n}", seed=n, **changes)) for n in numbers]  # type: ignore[arg-type]


def test_several_seeds_are_a_mean_in_a_band(tmp_path: Path) -> None:
    page = render_html(load_runs(seeds(tmp_path, 1, 2, 3)))
    assert 'class="band"' in page
    assert page.count('class="line quiet"') == 3 * 3 * 2  # seeds, charts over epochs, widths
    runs = load_runs(seeds(tmp_path / "b", 1, 2, 3))
    losses = [run.evaluations[1].cross_entropy for run in runs]
    assert f"epoch 1: {sum(losses) / 3:.3f} nats per frame, mean of 3 seeds" in page
    assert f"({min(losses):.3f} to {max(losses):.3f})" in page


def test_a_seed_that_stopped_early_shortens_the_mean_and_keeps_its_curve(tmp_path: Path) -> None:
    folders = [*seeds(tmp_path, 1, epochs=3), *seeds(tmp_path, 2, epochs=6)]
    page = render_html(load_runs(folders))
    assert "epoch 3: " in page
    assert "epoch 4: " not in page.split("Each run")[0]  # no mean of two there, and one alone has no mark
    assert page.count('class="line quiet"') == 2 * 3 * 2


def test_one_seed_alone_has_no_band(tmp_path: Path) -> None:
    page = render_html(load_runs(seeds(tmp_path, 1)))
    assert 'class="band"' not in page
    assert "Several seeds" not in page


def test_exchanges_of_a_series_are_shown_with_their_gap(tmp_path: Path) -> None:
    folders = [*seeds(tmp_path, 1, 2), write_run(tmp_path, Fake(name="one", label="sgd", learners=1))]
    page = render_html(load_runs(folders))
    assert "Who exchanged with whom" in page
    assert re.search(r"exchanges\. Spectral gap 0\.3\d\d an exchange, 0\.[78]\d\d a round of 4\. 2 seeds\.", page)
    assert "λ₂(W)" in page
    alone = render_html(load_runs(folders[-1:]))
    assert "Who exchanged" not in alone


def test_warnings_stand_under_the_headline(tmp_path: Path) -> None:
    page = render_html(load_runs(seeds(tmp_path, 1)), warnings=["<b> failed & was left out"])
    assert '<p class="warning">&lt;b&gt; failed &amp; was left out</p>' in page


def said(runs: Sequence[Run]) -> str:
    """Words of the page, style and script left out."""
    body = render_html(runs).partition("<body>")[2].partition("<script>")[0]
    return " ".join(Outline(body).words)


def test_what_is_counted_and_measured_has_its_name(tmp_path: Path) -> None:
    """Frames are named nowhere on a page of runs that count utterances. Where runs of both kinds stand on one, no loss
    is set against another."""
    own = [load_run(write_run(tmp_path, Fake(name="units", decoded=False, examples="utterances", straggler=1)))]
    alone = said(own)
    for words in ("Held-out CTC loss over utterances", "nats an utterance", "utterances/s", "Utterances by learner"):
        assert words in alone
    assert not re.search("frame|cross-entropy", alone, re.IGNORECASE)
    other = load_run(write_run(tmp_path, Fake(name="states", decoded=False)))
    assert "utterance" not in said([other])
    both = said([*own, other])
    assert "Trained without an alignment: units." in both
    assert "utterances or frames" in both
    assert "Held-out cross-entropy: from" not in both
    assert "times as many as" not in both


def test_runs_that_did_not_say_what_they_count_are_known_by_their_recipe(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake(decoded=False, recipe="training: {{objective: ctc}}\n")))
    page = said([run])
    assert "nats an utterance" in page
    assert "nats per frame" not in page


def test_one_learner_went_on(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake()))
    changed = LearnersChanged(wall_s=40.0, before=2, after=1, what="rows were averaged")
    page = said([dataclasses.replace(run, changed=(changed,))])
    assert "1 learner went on after 40.0 s where 2 stopped: rows were averaged." in page


def test_a_target_may_be_given(tmp_path: Path) -> None:
    runs = load_runs([*seeds(tmp_path, 1), write_run(tmp_path, Fake(name="one", label="sgd", learners=1))])
    assert "Time to a held-out loss of 1.9<" in render_html(runs, target=1.9)
    lowest = min(e.cross_entropy for run in runs for e in run.evaluations)
    assert "did not reach a held-out loss of" in render_html(runs, target=lowest)
    two = [dataclasses.replace(run, results=dataclasses.replace(run.results, learners=2)) for run in runs]
    assert "Only " in render_html(two, target=lowest)
    assert "Time to a held-out loss" not in render_html(runs, target=0.1).split("Runs")[0]


NUMBERS = st.one_of(
    st.floats(), st.floats(0, 10), st.sampled_from([0.0, 1.0, -1.0, 1e300, -1e300, 1.7e308, 5e-324, math.nan, math.inf])
)
COUNTS = st.integers(0, 10**30)


def drawn(svg: str) -> ET.Element:
    """The picture, parsed; no coordinate in it is anything but a finite number of reasonable size."""
    root = ET.fromstring(svg)
    for part in root.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"):
            if name in part.attrib:
                assert abs(float(part.attrib[name])) < 1e5
        for number in re.findall(r"[^ ,MLZ]+", part.attrib.get("points", "") + " " + part.attrib.get("d", "")):
            assert abs(float(number)) < 1e5
    return root


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), max_size=4), NUMBERS)
def test_lines_are_drawn_whatever_the_numbers(lines: list[list[tuple[float, float]]], ceiling: float) -> None:
    made = [Line(i, tuple(Point(x, y, "<&>", i % 2 == 1) for x, y in line)) for i, line in enumerate(lines)]
    banded = [dataclasses.replace(line, band=tuple((p.y - 1, ceiling) for p in line.points)) for line in made]
    for width in (330.0, 560.0):
        drawn(line_chart(made, width, 'a "label" & <more>', ChartAxes("x", "y")))
        drawn(line_chart(made, width, "label", ChartAxes("x", "y", ceiling=ceiling)))
        drawn(line_chart(banded, width, "label", ChartAxes("x", "y", ceiling=ceiling, from_zero=True)))
        ideal = ((1.0, 1.0), (8.0, 8.0))
        drawn(line_chart(made, width, "label", ChartAxes("x", "y", x_ticks=(1.0, 2.0, 8.0), reference=ideal)))


@given(st.lists(st.tuples(st.lists(NUMBERS, max_size=3), NUMBERS, NUMBERS, NUMBERS), max_size=4), st.booleans())
def test_dots_are_drawn_whatever_the_numbers(
    rows: list[tuple[list[float], float, float, float]], from_zero: bool
) -> None:
    made = [
        DotRow(i, "name" * 20, "note", tuple((v, "hover") for v in values), middle, (low, high), "counts")
        for i, (values, middle, low, high) in enumerate(rows)
    ]
    drawn(dot_chart(made, 330, "label", "x", from_zero=from_zero, stems=from_zero))


@given(st.lists(NUMBERS, max_size=200))
def test_columns_are_drawn_whatever_the_numbers(values: list[float]) -> None:
    drawn(column_chart([ColumnBar(str(i), v, "hover") for i, v in enumerate(values)], 0, "label", "x", "y"))


@given(st.integers(0, 6).flatmap(lambda n: st.lists(st.lists(COUNTS, min_size=n, max_size=n), min_size=n, max_size=n)))
def test_matrices_are_drawn_whatever_the_numbers(matrix: list[list[int]]) -> None:
    drawn(heat_map(matrix, [str(i) for i in range(len(matrix))], 0, "label"))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.booleans())
def test_axes_are_round_hold_all_values_and_are_not_crowded(values: list[float], from_zero: bool) -> None:
    scale = axis(values, 0.0, 100.0, from_zero=from_zero)
    room = 1e-6 * (scale.high - scale.low)
    assert scale.low <= min(values) + room
    assert scale.high >= max(values) - room
    assert 2 <= len(scale.ticks) <= 12
    if from_zero:
        assert any(abs(tick) < 1e-12 for tick in scale.ticks)


@given(st.text())
def test_any_text_survives_in_an_attribute(text: str) -> None:
    assert ET.fromstring(draw("empty", 100.0, text)).attrib["aria-label"] is not None
