"""A grid of trainings by the command line: what is printed and written, and that going on repeats nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.minibatch import recorded_text
from roundelay.core.progress import Silent
from roundelay.core.records import Results, RunStarted, of_kind, read_events
from roundelay.grids.grid import Contenders, Grid, directory_label
from roundelay.grids.results import CellOutcome, CellState
from roundelay.grids.running import run_grid
from roundelay.grids.summary import summarise
from roundelay.job import Interrupt
from roundelay.reports.headline import counted_split
from roundelay.strategies import make_strategy
from roundelay_speech.grids import running
from roundelay_speech.grids.grid import plan
from support.runs import StopAt

SIM = ["--runtime", "sim", "--seeds", "1"]


def compare(exp: str, *arguments: str) -> int:
    quick = ["schedule.max_epochs=1", "training.minibatch=256"]
    return main(["compare", "recipe.yaml", "--exp", exp, *arguments, *quick])


def cells_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {cell["directory"]: cell for cell in read_json(folder / "compare.json")["cells"]}


def test_a_grid_comes_to_a_table_a_file_and_a_page(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--strategies", "ssgd", "--learners", "1,2", "--straggler", "1:3x", *SIM]
    assert compare("grid", *grid, "--no-decode") == 0
    printed = capsys.readouterr().out
    assert list(cells_of(inside / "grid")) == ["sgd-1-seed0", "ssgd-2-seed0", "ssgd-2-straggler-seed0"]
    assert "3 trainings in grid; virtual seconds, 0.1 for a gradient of 256 frames" in printed
    assert "3/3 ssgd, 2 learners, straggler 1:3x, seed 0: dev loss" in printed
    rows = [line.split("  ")[0] for line in printed.split("\n\n")[1].splitlines()]
    assert rows == ["strategy", "sgd, 1 learner", "ssgd, 2 learners", "… straggler 1:3x"]
    # A round of 256 frames: 0.1 s on one learner; 0.05 s and 0.03 s for an allreduce on two; 0.15 + 0.03 with one slow.
    aggregates = read_json(inside / "grid" / "compare.json")["aggregates"]
    speedups = {(a["name"], a["figures"]["speedup"]["n"]): a["figures"]["speedup"]["mean"] for a in aggregates}
    assert speedups == {
        ("sgd, 1 learner", 1): 1.0,
        ("ssgd, 2 learners", 1): pytest.approx(0.1 / 0.08, rel=0.02),
        ("ssgd, 2 learners, straggler 1:3x", 1): pytest.approx(0.1 / 0.18, rel=0.02),
    }
    slow = cells_of(inside / "grid")["ssgd-2-straggler-seed0"]
    assert slow["share_of_undisturbed_speed"] == pytest.approx(0.08 / 0.18, rel=0.02)
    assert "ssgd, 2 learners, straggler 1:3x" in (inside / "grid" / "compare.html").read_text()


def test_no_splits_are_decoded_where_none_are_named(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--strategies", "ssgd", "--learners", "1", *SIM, "decode.splits=[]"]
    assert compare("undecoded", *grid) == 0
    assert "failed" not in capsys.readouterr().out
    with pytest.raises(UserError, match="splits is empty"):
        counted_split(())


def test_with_a_minibatch_for_every_learner_the_baseline_keeps_its_own(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds of 64 and of 128 frames; each gradient takes the 0.1 s of 64, and a mean of two 0.03 s."""
    grid = ["--strategies", "ssgd", "--learners", "1,2", *SIM, "--no-decode", "schedule.max_epochs=1"]
    assert main(["compare", "recipe.yaml", "--exp", "each", *grid, "training.minibatch_per_learner=64"]) == 0
    assert "0.1 for a gradient of 64 frames; minibatch: 64 frames for every learner" in capsys.readouterr().out
    runs = [Results.from_json(read_json(path)) for path in sorted((inside / "each").glob("*/results.json"))]
    assert [run.minibatch_frames for run in runs] == [64, 128]
    assert recorded_text(runs[1]) == "64 frames a learner (128 a round)"
    written = read_json(inside / "each" / "compare.json")
    assert written["minibatch"] == {"number": 64, "unit": "frames", "per_learner": True}
    assert cells_of(inside / "each")["ssgd-2-seed0"]["speedup"] == pytest.approx(2 * 0.1 / 0.13, rel=0.02)
    assert "64 frames a learner (128 a round)" in (inside / "each" / "compare.html").read_text()


def test_a_minibatch_of_sequences_has_the_frames_of_so_many_pieces(inside: Path) -> None:
    model = "model={name: blstm, layers: 1, cells: 8, context: 4}"
    size = ["training.minibatch_unit=sequences", "training.minibatch=10", "schedule.max_epochs=1"]
    grid = ["--strategies", "ssgd", "--learners", "1,2", *SIM, "--no-decode", model, *size]
    assert main(["compare", "recipe.yaml", "--exp", "pieces", *grid]) == 0
    alone = Results.from_json(read_json(inside / "pieces" / "sgd-1-seed0" / "results.json"))
    frames = alone.frames_seen  # of 60 utterances, each a piece
    assert (alone.minibatch_frames, alone.minibatch_sequences) == (-(-10 * frames // 60), 10)
    assert alone.virtual_seconds == pytest.approx(6 * 0.1, rel=0.01), "a gradient is priced for 10 sequences"
    assert cells_of(inside / "pieces")["ssgd-2-seed0"]["speedup"] == pytest.approx(0.1 / 0.08, rel=0.02)


def test_a_virtual_cluster_lends_each_cell_its_first_learners(inside: Path) -> None:
    (inside / "cluster.yaml").write_text(
        "nodes: [{learners: 1, count: 4}]\ncompute: {seconds: 0, seconds_per_frame: 0.001}\n"
        "exchange: 0.0\nallreduce: {seconds: {2: 0.0}}\n"
    )
    grid = ["--strategies", "ssgd", "--learners", "1,2,4", *SIM, "--no-decode", "cost.cluster=cluster.yaml"]
    assert compare("lent", *grid) == 0
    speedups = {name: cell["speedup"] for name, cell in cells_of(inside / "lent").items()}
    assert speedups == {
        "sgd-1-seed0": 1.0,
        "ssgd-2-seed0": pytest.approx(2.0, rel=0.02),
        "ssgd-4-seed0": pytest.approx(4.0, rel=0.04),
    }
    assert compare("lent", "--strategies", "ssgd", "--learners", "5", *SIM, "cost.cluster=cluster.yaml") == 1


def two_by_two(folder: Path) -> Grid:
    overrides = ["training.runtime=sim", "schedule.max_epochs=2", "training.minibatch=256"]
    return plan("recipe.yaml", overrides, Contenders(["ssgd", "bmuf,period=5"], [2], 1), folder)


def states(outcomes: list[CellOutcome]) -> list[CellState]:
    return [outcome.state for outcome in outcomes]


def test_a_half_done_grid_goes_on_where_it_stood(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = two_by_two(Path("whole")), two_by_two(Path("cut"))
    whole = dataclasses.replace(whole, cells=whole.cells[1:2])
    run_grid(whole, False, Silent(), lambda _: None, Interrupt())
    interrupt = Interrupt()
    stop = StopAt(interrupt, "2/3 ssgd, 2 learners, seed 0: epoch 2")
    outcomes = run_grid(cut, False, stop, lambda _: None, interrupt)
    assert states(outcomes) == [CellState.FINISHED, CellState.INTERRUPTED, CellState.WAITING]
    half = summarise(cut, outcomes, None, 200)
    assert "ssgd, 2 learners           interrupted  " in half.table
    assert "bmuf period 5, 2 learners    not begun  " in half.table
    assert "2 of 3 trainings are not finished." in (inside / "cut" / "compare.html").read_text()

    done = cut.cells[0].exp / "events.jsonl"
    before = done.read_bytes()
    said: list[str] = []
    outcomes = run_grid(cut, False, Silent(), said.append, Interrupt())
    assert states(outcomes) == [CellState.FINISHED] * 3
    assert [line.endswith("there already") for line in said] == [True, False, False]
    assert done.read_bytes() == before
    starts = of_kind(read_events(cut.cells[1].exp / "events.jsonl"), RunStarted)
    assert [start.resumed for start in starts] == [False, True]
    summarise(cut, outcomes, None, 200)
    summarise(whole, [CellOutcome(cell, CellState.FINISHED, trained=True) for cell in whole.cells], None, 200)
    again, once = (cells_of(inside / name)["ssgd-2-seed0"] for name in ("cut", "whole"))
    for key in ("held_out_loss", "held_out_accuracy", "frames", "staleness_mean", "epochs"):
        assert again[key] == once[key]
    assert again["seconds"] == pytest.approx(once["seconds"])  # virtual; the last digits may differ in the adding

    # All is there: nothing is trained, and what was left undecoded is decoded.
    def refuse(*_: object) -> None:
        raise AssertionError("a finished cell was trained again")

    monkeypatch.setattr(running, "train", refuse)
    cut = dataclasses.replace(cut, cells=cut.cells[1:2])
    outcomes = run_grid(cut, True, Silent(), lambda _: None, Interrupt())
    assert states(outcomes) == [CellState.FINISHED]
    table = summarise(cut, outcomes, None, 200).table
    assert "test WER %" in table
    assert cells_of(inside / "cut")["ssgd-2-seed0"]["wer"]["test"]["ref"] > 0
    # What cannot be read is a failed cell, not the end.
    (cut.cells[0].exp / "events.jsonl").write_text("{}\nbroken\n{}\n")
    broken = summarise(cut, outcomes, None, 200)
    assert "events.jsonl:2: damaged, not a record" in broken.failed[0]
    assert broken.table.splitlines()[1].startswith("ssgd, 2 learners  failed")
    monkeypatch.setattr(running, "recognise", refuse)
    monkeypatch.setattr(running, "make_job", refuse)
    assert states(run_grid(cut, True, Silent(), lambda _: None, Interrupt())) == [CellState.FINISHED]


def test_a_cell_that_fails_is_named_and_stops_nothing(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Learner 2 cannot be slow where there are two."""
    grid = ["--strategies", "ssgd", "delay-by-one", "--learners", "2", "--straggler", "2:3x", *SIM, "--no-decode"]
    assert compare("failing", *grid) == 1
    streams = capsys.readouterr()
    row = next(line for line in streams.out.split("\n\n")[1].splitlines() if line.startswith("… straggler"))
    assert row.split() == ["…", "straggler", "2:3x", "failed", *["–"] * (len(row.split()) - 4)]
    assert "ssgd, 2 learners, straggler 2:3x, seed 0, failed: stragglers [2] do not exist" in streams.err
    cells = cells_of(inside / "failing")
    assert {name: cell["state"] for name, cell in cells.items()} == {
        "sgd-1-seed0": "finished",
        "ssgd-2-seed0": "finished",
        "ssgd-2-straggler-seed0": "failed",
        "delay-by-one-2-seed0": "finished",
        "delay-by-one-2-straggler-seed0": "failed",
    }
    assert "learners are 0 to 1" in cells["ssgd-2-straggler-seed0"]["error"]
    assert "stragglers [2] do not exist" in (inside / "failing" / "compare.html").read_text()
    # The same directory under other options: every cell is refused, none is taken for what it is not.
    assert compare("failing", *grid, "optimizer.momentum=0.5") == 1
    assert "optimizer.momentum was 0.9, now 0.5" in capsys.readouterr().err
    assert {cell["state"] for cell in cells_of(inside / "failing").values()} == {"failed"}
    assert read_json(inside / "failing" / "compare.json")["aggregates"] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--strategies", "ssgd,period=3"], "ssgd has no option period"),
        (["--strategies", "sgd"], "give --strategies"),
        (["--strategies", "ssgd", "training.learners=3"], "use --strategies, --learners"),
        (["--strategies", "ssgd", "--learners", "two"], "for example 1,4"),
    ],
)
def test_what_is_no_grid_is_named_before_anything_is_trained(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert main(["compare", "recipe.yaml", "--exp", "none", *arguments]) == 2
    assert named in capsys.readouterr().err
    assert not (inside / "none").exists()


@pytest.mark.parametrize("missing", ["corpus", "alignment"])
def test_missing_data_is_said_once_and_nothing_is_begun(
    inside: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    grid = ["--strategies", "ssgd", "--learners", "1,2", "--seeds", "3", "--runtime", "sim", f"{missing}=nowhere"]
    assert compare("undecoded", *grid) == 2
    assert capsys.readouterr().err.count("nowhere") == 1
    assert not (inside / "none").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ssgd", "ssgd"),
        ("adpsgd", "adpsgd-random-ring"),
        ("adpsgd:fixed-ring", "adpsgd-fixed-ring"),
        ("bmuf,period=5", "bmuf-period-5"),
        ("bmuf,nesterov=true", "bmuf-period-20-nesterov"),
        ("bmuf,momentum=0.5,rate=20", "bmuf-period-20-momentum-0.5-rate-20.0"),
    ],
)
def test_a_directory_is_named_after_all_that_was_chosen(text: str, name: str) -> None:
    assert directory_label(make_strategy(text)) == name


def test_two_ways_to_write_a_strategy_are_one_cell(inside: Path) -> None:
    written = ["adpsgd", "adpsgd:random-ring", "adpsgd,topology=random-ring", "sgd"]
    cells = plan("recipe.yaml", [], Contenders(written, [1, 4, 4], 2)).cells
    assert [cell.exp.as_posix() for cell in cells] == [
        f"exp/beeps/compare/{name}-seed{seed}" for seed in (0, 1) for name in ("sgd-1", "adpsgd-random-ring-4")
    ]
