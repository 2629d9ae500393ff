"""The report's timeline, and the trace of it."""

import json
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.records import EVENTS, SPAN_KINDS, Timeline, to_line
from roundelay.reports import load_runs, render_html
from support.fake_runs import Fake, write_run

GRADIENT, MEAN = SPAN_KINDS.index("gradient"), SPAN_KINDS.index("mean")


def with_lanes(folder: Path, label: str, waits: bool) -> Path:
    """A run of two learners, of which the second takes three times as long; the first waits for it, or does not."""
    path = write_run(folder, Fake(name=label, label=label, learners=2))
    slow = [[GRADIENT, 0.3 * n, 0.3 * n + 0.3] for n in range(4)]
    fast = [[GRADIENT, 0.1 * n, 0.1 * n + 0.1] for n in range(12)]
    if waits:
        steps = [0.3 * n for n in range(4)]
        fast = [span for at in steps for span in ([GRADIENT, at, at + 0.1], [MEAN, at + 0.1, at + 0.3])]
    with (path / EVENTS).open("a", encoding="utf-8") as file:
        for epoch in range(2):
            print(to_line(Timeline(wall_s=1.0, epoch=epoch, kinds=[*SPAN_KINDS], lanes=[fast, slow])), file=file)
        replaced = Timeline(wall_s=1.0, epoch=7, kinds=[*SPAN_KINDS], lanes=[[], slow])
        print(to_line(replaced), file=file)
    return path


def test_the_page_shows_who_waits(tmp_path: Path) -> None:
    page = render_html(load_runs([with_lanes(tmp_path, "ssgd", True), with_lanes(tmp_path, "adpsgd", False)]))
    assert "The first 1.2 s of an epoch, a lane for each learner." in page
    assert "ssgd: learner 0 waits 66.7\u00a0% of it; adpsgd: no learner waits." in page
    assert page.count("learner 0: mean, 0.2 s") == 2 * 4  # once wide, once narrow


def test_a_run_of_an_earlier_version_has_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, Fake())
    assert "Who works and who waits" not in render_html(load_runs([run]))
    assert main(["report", str(run), "--out", str(tmp_path / "r.html"), "--trace", str(tmp_path / "t.json")]) == 2
    assert "none of these runs has a timeline" in " ".join(capsys.readouterr().err.split())


def test_a_trace_has_every_span_of_every_learner(tmp_path: Path) -> None:
    out, run = tmp_path / "trace.json", with_lanes(tmp_path, "ssgd", True)
    assert main(["report", str(run), "--out", str(tmp_path / "r.html"), "--trace", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["ssgd: ssgd, epoch 1", "ssgd: ssgd, epoch 2", "ssgd: ssgd, epoch 8"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 2 * (8 + 4) + 4
    first = [event for event in spans if (event["pid"], event["tid"]) == (1, 0)]
    told = [(event["name"], round(event["ts"]), round(event["dur"])) for event in first[:2]]
    assert told == [("gradient", 0, 100_000), ("mean", 100_000, 200_000)]
