"""Grids with axes and tuning by the command line: tables, choices, divergence, and that going on repeats nothing."""

from pathlib import Path
from typing import Any

import pytest

from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Silent
from roundelay.grids.grid import Contenders, Grid
from roundelay.grids.results import CellState, cell_records, tunings
from roundelay.grids.running import run_grid
from roundelay.grids.summary import summarise
from roundelay.job import Interrupt
from roundelay.training import train
from roundelay_speech.grids import running
from roundelay_speech.grids.grid import plan
from support.runs import StopAt

QUICK = ["--learners", "2", "--runtime", "sim", "--seeds", "1", "--no-decode", "schedule.max_epochs=1"]
RATES = "schedule.learning_rate=0.0,0.01,0.05"


def compare(exp: str, *arguments: str) -> int:
    return main(["compare", "recipe.yaml", "--exp", exp, "--strategies", *arguments, *QUICK])


def table(printed: str) -> list[list[str]]:
    """Titles and rows of the table of means, cells apart by two blanks; the table is the last but one paragraph."""
    block = next(part for part in reversed(printed.split("\n\n")) if part.lstrip().startswith("strategy"))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in block.splitlines()]


def test_axes_are_columns(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("axes", "bsp", "training.minibatch=256,512", "strategy.period=1,5") == 0
    printed = capsys.readouterr().out
    assert "6 trainings in axes" in printed
    rows = table(printed)
    assert rows[0][:4] == ["strategy", "minibatch", "period", "seeds"]
    assert [row[:3] for row in rows[1:]] == [
        ["sgd, 1 learner", "256", "–"],
        ["sgd, 1 learner", "512", "–"],
        ["bsp period 1, 2 learners", "256", "1"],
        ["bsp period 5, 2 learners", "256", "5"],
        ["bsp period 1, 2 learners", "512", "1"],
        ["bsp period 5, 2 learners", "512", "5"],
    ]
    assert "Minibatch: 256 or 512 frames a round, over all learners." in printed
    kept = read_json(inside / "axes" / "compare.json")
    assert kept["axes"] == ["training.minibatch", "strategy.period"]
    assert [cell["axes"] for cell in kept["cells"]][3] == {"training.minibatch": 256, "strategy.period": 5}
    # Each is held against the one-learner run of its own minibatch: half the rounds, and half the means.
    speedup = {row[0] + row[1]: float(row[rows[0].index("speedup")]) for row in rows[1:]}
    assert speedup["sgd, 1 learner256"] == speedup["sgd, 1 learner512"] == 1.0
    assert speedup["bsp period 1, 2 learners256"] < speedup["bsp period 1, 2 learners512"] < 2
    page = (inside / "axes" / "compare.html").read_text()
    assert page.count("<th") > 0
    assert ">period<" in page.replace("\n", "")


def test_a_rate_is_chosen_on_dev_and_judged_by_other_seeds(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("tuned", "ssgd", "--tune", RATES) == 0
    printed = capsys.readouterr().out
    kept = read_json(inside / "tuned" / "compare.json")
    for choice in kept["tuning"]:
        assert choice["seed"] == 0
        losses = {one["values"]["schedule.learning_rate"]: one["dev_cross_entropy"] for one in choice["tried"]}
        assert list(losses) == [0.0, 0.01, 0.05]
        assert choice["chosen"] == {"schedule.learning_rate": min(losses, key=losses.__getitem__)}
        assert choice["tried"][0]["diverged"]  # a rate of 0 learns nothing
        assert choice["at_the_edge"] == ["schedule.learning_rate"]
    assert [choice["label"] for choice in kept["tuning"]] == ["sgd", "ssgd"]
    assert [(cell["seed"], cell["axes"]) for cell in kept["cells"]] == [(1, {"schedule.learning_rate": 0.05})] * 2
    assert "ssgd, 2 learners: the best schedule.learning_rate, 0.05, is the largest tried" in printed
    assert "8/8 ssgd, 2 learners, schedule.learning_rate 0.05, seed 1: dev loss" in printed
    assert "chosen, at the edge" in printed
    page = (inside / "tuned" / "compare.html").read_text()
    assert "is the largest tried" in page
    assert "Values tried on dev" in page
    # Again: nothing is trained. Without the tuning the cell under seed 1 is there, and the tried one under seed 0.
    assert compare("tuned", "ssgd", "--tune", RATES) == 0
    again = capsys.readouterr().out
    assert "8 trainings in tuned, 6 of them trained before;" in again
    assert again.count("there already") == 8
    assert compare("tuned", "ssgd", "schedule.learning_rate=0.01,0.05") == 0
    assert capsys.readouterr().out.count("there already") == 4


def small(folder: str, tune: str, *overrides: str) -> Grid:
    quick = ["training.runtime=sim", "schedule.max_epochs=1", *overrides]
    return plan("recipe.yaml", quick, Contenders(["ssgd"], [2], 1, tune=[tune]), Path(folder))


def test_what_is_not_tried_yet_is_not_judged(inside: Path) -> None:
    grid, interrupt = small("half", "schedule.learning_rate=0.01,0.05"), Interrupt()
    outcomes = run_grid(grid, False, StopAt(interrupt, "2/6"), lambda _: None, interrupt)
    assert [record.state for record in cell_records(grid, outcomes)] == [CellState.WAITING] * 2
    assert [choice.chosen for choice in tunings(grid, outcomes)] == [None, None]
    summary = summarise(grid, outcomes, None, 200).table
    assert [row[:3] for row in table(summary)[1:]] == [
        ["sgd, 1 learner", "–", "not begun"],
        ["ssgd, 2 learners", "–", "not begun"],
    ]
    outcomes = run_grid(grid, False, Silent(), lambda _: None, Interrupt())
    records = cell_records(grid, outcomes)
    assert [(record.state, record.seed, record.diverged) for record in records] == [(CellState.FINISHED, 1, False)] * 2
    assert all(choice.chosen for choice in tunings(grid, outcomes))


def test_a_cell_that_diverges_is_a_row_that_says_so(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At an absurd rate, with no epoch taken back, weights are soon no numbers; nothing is decoded with them."""
    absurd = ["schedule.learning_rate=0.02,1e30", "schedule.reject_worse=false"]
    assert (
        main(["compare", "recipe.yaml", "--exp", "wild", "--strategies", "ssgd", *absurd, *QUICK[:6], *QUICK[7:]]) == 0
    )
    rows = table(printed := capsys.readouterr().out)
    assert [row[2] for row in rows[1:]] == ["0", "0 (1 diverged)", "0", "0 (1 diverged)"]
    assert "4/4 ssgd, 2 learners, schedule.learning_rate 1e+30, seed 0: diverged" in printed
    cells = read_json(inside / "wild" / "compare.json")["cells"]
    assert [(cell["diverged"], bool(cell["wer"])) for cell in cells] == [(False, True), (True, False)] * 2


def test_no_value_that_learns_fails_the_configuration_alone(inside: Path) -> None:
    grid = small("hopeless", "schedule.learning_rate=0.0,1e30", "schedule.reject_worse=false")
    outcomes = run_grid(grid, False, Silent(), lambda _: None, Interrupt())
    records = cell_records(grid, outcomes)
    assert [record.state for record in records] == [CellState.FAILED] * 2
    assert "no value learned (schedule.learning_rate 0.0: diverged" in records[0].error
    assert "no value learned" in "".join(summarise(grid, outcomes, None, 200).failed)


def test_a_crash_in_one_cell_leaves_the_others(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def crash_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return train(*arguments)

    monkeypatch.setattr(running, "train", crash_once)
    quick = ["training.runtime=sim", "schedule.max_epochs=1"]
    grid = plan("recipe.yaml", quick, Contenders(["ssgd"], [2], 1), Path("crash"))
    said: list[str] = []
    records = cell_records(grid, run_grid(grid, False, Silent(), said.append, Interrupt()))
    assert [record.state for record in records] == [CellState.FAILED, CellState.FINISHED]
    assert records[0].error == "RuntimeError: out of memory"
    assert said[0] == "1/2 sgd, 1 learner, seed 0: failed. RuntimeError: out of memory; 1 left, 1 failed"
    assert said[1].endswith("; 1 failed")
    # The same call again repeats what failed alone.
    records = cell_records(grid, run_grid(grid, False, Silent(), said.append, Interrupt()))
    assert [record.state for record in records] == [CellState.FINISHED] * 2
    assert said[3].endswith("there already")


def test_a_signal_that_ends_workers_too_is_an_interruption(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers send it to every process of a job: workers of decoding break before the grid is asked to stop."""
    interrupt = Interrupt()

    def broken(*arguments: Any) -> Any:
        interrupt.asked = True
        raise UserError("A worker process was killed")

    monkeypatch.setattr(running, "recognise", broken)
    quick = ["training.runtime=sim", "schedule.max_epochs=1"]
    grid = plan("recipe.yaml", quick, Contenders(["ssgd"], [2], 1), Path("signal"))
    outcomes = run_grid(grid, True, Silent(), print, interrupt)
    assert [outcome.state for outcome in outcomes] == [CellState.INTERRUPTED, CellState.WAITING]
