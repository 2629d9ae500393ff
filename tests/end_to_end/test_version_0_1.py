"""Runs of version 0.1 are still read, repeated bit for bit, and gone on with. tests/data/version_0_1 holds them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from roundelay.checkpoint import latest, load_checkpoint
from roundelay.cli import main
from roundelay.core.progress import Silent
from roundelay.core.records import Results, RunStarted, Segment, of_kind, read_events
from roundelay.job import Interrupt
from roundelay.runtime.replay.whole import Replayed, replay
from roundelay.training import train
from support.version_0_1 import FOLDER, arithmetic, exact_job

EPOCHS, FRAMES = 2, 792
"""Of the run of speech."""


@pytest.fixture
def speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The corpus, its alignment and the runs on it; commands run inside the folder."""
    monkeypatch.chdir(shutil.copytree(FOLDER / "speech", tmp_path / "speech"))
    return tmp_path / "speech"


@pytest.fixture
def exact(tmp_path: Path) -> Path:
    """The run that was interrupted in its second epoch, of a task whose numbers are the same everywhere."""
    return shutil.copytree(FOLDER / "exact", tmp_path / "exact")


@pytest.fixture
def rounds_alike() -> None:
    """Only where a network's sums are rounded as they were."""
    if arithmetic() != (FOLDER / "arithmetic.txt").read_text().strip():
        pytest.skip("this processor, or this torch, rounds a network's sums otherwise than the one that recorded it")


def answer(capsys: pytest.CaptureFixture[str], *command: str, status: int = 0) -> Any:
    capsys.readouterr()
    assert main([*command, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The run of speech ----------------------------------------------------------------------------------------------------


def test_every_file_is_verified(speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, "verify", ".")
    assert told["whole"]
    names = {Path(one["file"]).name for one in told["files"]}
    assert {"features.npy", "gmm.npz", "model.safetensors", "epoch-0001-at-000000004.safetensors"} <= names


def test_checkpoints_are_listed(speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, expected in (
        ("finished", [("epoch-0001", 1, FRAMES, False), ("epoch-0002", 2, 2 * FRAMES, True)]),
        ("stopped", [("epoch-0001", 1, FRAMES, False), ("epoch-0001-at-000000004", 1, FRAMES + 4 * 64, True)]),
    ):
        found = answer(capsys, "checkpoints", f"exp/{run}")["checkpoints"]
        assert [(one["name"], one["epochs"], one["frames"], one["next"]) for one in found] == expected
        assert [(one["learners"], one["fault"]) for one in found] == [(2, "")] * 2


def test_the_report_and_the_status_say_what_became_of_it(speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "exp/finished", "exp/stopped", "--out", "report.html"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("adpsgd random-ring", "25.00 % (1/4)", "50.00 % (2/4)"):
        assert said in shown
    assert "all 2 epochs done" in shown
    assert answer(capsys, "status", "exp/finished")["life"] == "finished"
    assert answer(capsys, "status", "exp/stopped", status=1)["life"] == "interrupted"


def test_its_model_recognises_the_same_words(speech: Path) -> None:
    assert main(["decode", "exp/finished", "--out", "again"]) == 0
    for split in ("dev", "test"):
        hypotheses = f"{split}/hyp.trn"
        assert Path("again/decode", hypotheses).read_text() == Path("exp/finished/decode", hypotheses).read_text()


def test_a_finished_run_is_only_read(speech: Path) -> None:
    before = files(speech)
    assert main(["train", "recipe.yaml", "--exp", "exp/finished"]) == 0
    assert files(speech) == before


@pytest.mark.usefixtures("rounds_alike")
@pytest.mark.parametrize("run", ["finished", "stopped"])
def test_a_network_is_replayed_bit_for_bit(run: str, speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"exp/{run}"]) == 0
    assert "in 2 stretches, repeated to the same weights, bit for bit" in " ".join(capsys.readouterr().out.split())


def test_a_stopped_run_goes_on_to_its_end(speech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exp = speech / "exp/stopped"
    old = (exp / "events.jsonl").read_bytes()
    assert main(["train", "recipe.yaml", "--exp", "exp/stopped", "--resume"]) == 0
    results = json.loads((exp / Results.FILE).read_text())
    assert results["frames_seen"] == EPOCHS * FRAMES
    assert (exp / "events.jsonl").read_bytes().startswith(old)
    events = read_events(exp / "events.jsonl")
    assert [start.resumed for start in of_kind(events, RunStarted)] == [False, True]
    assert answer(capsys, "verify", "exp/stopped")["whole"]
    assert main(["decode", "exp/stopped"]) == 0


# The run of a task that is the same on every machine ------------------------------------------------------------------


def again(exp: Path) -> Replayed:
    return replay(exp / "trace", exact_job(exp / "trace").cluster, Silent())


def assert_ends_as_kept(found: Replayed, exp: Path) -> None:
    """The replay ends at the state of the newest checkpoint."""
    path = latest(exp / "checkpoints")
    assert path is not None
    kept = load_checkpoint(path).state
    assert found.difference == ""
    assert found.state.integers == kept.integers
    assert set(kept.vectors) >= {"row", "momentum", "centre"}
    for name, value in kept.vectors.items():
        assert value.equal(found.state.vectors[name]), name


def test_it_is_replayed_bit_for_bit(exact: Path) -> None:
    found = again(exact)
    assert (found.commands, found.minibatches) == (2, 58)
    assert_ends_as_kept(found, exact)


def test_a_replay_of_something_else_differs(exact: Path) -> None:
    """That a replay is the same means something only if it could be another."""
    trace = exact / "trace/rank-0.bin"
    data = bytearray(trace.read_bytes())
    size = 32
    number = next(n for n in range(len(data) // size) if data[n * size] == 4)  # its first gradient
    data[number * size + size - 1] ^= 1  # of its loss
    trace.write_bytes(data)
    assert "gradient of minibatch" in again(exact).difference


def test_it_goes_on_and_all_of_it_is_replayed_bit_for_bit(exact: Path) -> None:
    results = train(exact_job(exact / "trace"), exact, Silent(), Interrupt(), resume_only=True)
    assert results is not None
    assert results.frames_seen == 2 * 1280
    events = read_events(exact / "events.jsonl")
    assert [segment.epoch for segment in of_kind(events, Segment)] == [0, 1, 1]
    found = again(exact)
    assert (found.commands, found.minibatches) == (3, 80)
    assert_ends_as_kept(found, exact)
