"""A damaged checkpoint costs what was trained since the one before, and nothing else; a full disk costs nothing."""

import errno
import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from roundelay import checkpoint
from roundelay.checkpoint import checkpoints, load_checkpoint
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json
from roundelay.core.progress import Silent
from roundelay.core.records import (
    CheckpointDamaged,
    CheckpointWritten,
    Evaluation,
    Finished,
    Interrupted,
    LearnerLost,
    Results,
    RunStarted,
    Segment,
    of_kind,
    read_events,
    to_line,
)
from roundelay.job import Interrupt, Job
from roundelay.learner.quadratic import Quadratic
from roundelay.run_directory import append
from roundelay.runtime.base import SegmentPlan, Watch
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.schedule import Anneal, Newbob
from roundelay.training import train
from support.clusters import MINIBATCH
from support.runs import comparable, cut, job
from support.said import Said

TASK = Quadratic(parameters=50, examples=20 * MINIBATCH)
FOLDER = "checkpoints"


def interrupted(exp: Path, monkeypatch: pytest.MonkeyPatch, name: str = "ssgd", **options: object) -> Job:
    """A run that was stopped in the middle of its third epoch."""
    made = job(name, TASK, **options)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        cut(patch, segment=3, rounds=7)
        assert train(made, exp, Silent(), Interrupt()) is None
    assert [path.stem for path in checkpoints(exp / FOLDER)] == ["epoch-0002", "epoch-0002-at-000000007"]
    return made


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lost(path: Path) -> None:
    path.unlink()


def lead_elsewhere(path: Path) -> None:
    write_json(path, {**read_json(path), "tensors": "../../../etc/passwd"})


def another_kind(path: Path) -> None:
    path.write_text("[]")


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    *((".json", damage) for damage in (empty, cut_short, flip, lead_elsewhere, another_kind)),
    *((".safetensors", damage) for damage in (empty, cut_short, flip, lost)),
]


@pytest.mark.parametrize(("suffix", "damage"), DAMAGES)
def test_a_run_goes_back_to_the_newest_whole_checkpoint_and_says_so(
    suffix: str, damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(job("ssgd", TASK), tmp_path / "whole", Silent(), Interrupt())
    made = interrupted(tmp_path / "exp", monkeypatch)
    newest = tmp_path / "exp" / FOLDER / "epoch-0002-at-000000007.json"
    damage(newest.with_suffix(suffix))
    said = Said()
    results = train(made, tmp_path / "exp", said, Interrupt())
    assert comparable(results) == comparable(whole)
    events = read_events(tmp_path / "exp" / "events.jsonl")
    (record,) = of_kind(events, CheckpointDamaged)
    assert (record.file, record.instead) == (f"{FOLDER}/{newest.name}", f"{FOLDER}/epoch-0002.json")
    assert newest.stem in record.reason
    assert any(newest.stem in line and "going on from checkpoints/epoch-0002.json" in line for line in said.lines)
    assert [segment.epoch for segment in of_kind(events, Segment)] == [0, 1, 2, 3]
    assert newest.with_name(newest.name + ".damaged").exists(), "nothing is thrown away"


def test_without_a_whole_checkpoint_nothing_is_begun_or_deleted_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = tmp_path / "exp"
    made = interrupted(exp, monkeypatch)
    with pytest.raises(UserError, match=r"epoch-0002-at-000000007\.json is whole: leave --begin-anew out"):
        train(made, exp, Silent(), Interrupt(), begin_anew=True)
    for path in checkpoints(exp / FOLDER):
        flip(path.with_suffix(".safetensors"))
    before = (exp / "events.jsonl").read_bytes()
    named = r"no checkpoint is whole\. .*epoch-0002-at-000000007\.safetensors: damaged.*epoch-0002\.safetensors.*anew"
    for resume_only in (False, True):
        with pytest.raises(UserError, match=named):
            train(made, exp, Silent(), Interrupt(), resume_only=resume_only)
    assert (exp / "events.jsonl").read_bytes() == before
    said = Said()
    assert train(made, exp, said, Interrupt(), begin_anew=True) is not None
    assert (exp / "events.before-1.jsonl").read_bytes() == before
    assert "begun anew" in said.lines[0]
    assert "events.before-1.jsonl" in said.lines[0]
    events = read_events(exp / "events.jsonl")
    assert [start.resumed for start in of_kind(events, RunStarted)] == [False]
    assert isinstance(events[-1], Finished)


def test_a_log_whose_checkpoints_were_removed_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exp = tmp_path / "exp"
    made = interrupted(exp, monkeypatch)
    before = (exp / "events.jsonl").read_bytes()
    for path in (exp / FOLDER).iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"has trained, says its events\.jsonl, but .* has no checkpoint"):
        train(made, exp, Silent(), Interrupt())
    assert (exp / "events.jsonl").read_bytes() == before
    assert train(made, exp, Silent(), Interrupt(), begin_anew=True) is not None
    assert (exp / "events.before-1.jsonl").read_bytes() == before


@pytest.mark.parametrize(("keep", "left"), [(1, {4}), (2, {3, 4}), (3, {2, 3, 4}), (9, {0, 1, 2, 3, 4})])
def test_the_last_so_many_checkpoints_stay(keep: int, left: set[int], tmp_path: Path) -> None:
    train(replace(job("ssgd", TASK), keep_checkpoints=keep), tmp_path, Silent(), Interrupt())
    assert {path.stem for path in checkpoints(tmp_path / FOLDER)} == {f"epoch-{number:04d}" for number in left}


def test_the_best_checkpoint_stays_however_old_it_is(tmp_path: Path) -> None:
    """At a rate that is too large the loss rises in every epoch, and the schedule takes none back."""
    wild = Anneal(4.5, max_epochs=5, factor=1.0)
    train(job("sgd", Quadratic(parameters=5, examples=640, noise=0.0), schedule=wild), tmp_path, Silent(), Interrupt())
    losses = [e.cross_entropy for e in of_kind(read_events(tmp_path / "events.jsonl"), Evaluation)]
    best = losses.index(min(losses))
    assert best < 3, "else this shows nothing"
    kept = [path.stem for path in checkpoints(tmp_path / FOLDER)]
    assert kept == [f"epoch-{number:04d}" for number in (best, 4, 5)]


def test_deaths_stay_in_the_log_when_the_training_since_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = tmp_path / "exp"
    made = interrupted(exp, monkeypatch, "adpsgd")
    death = LearnerLost(wall_s=1.0, rank=1, reason="killed by signal 9 (SIGKILL)", replaced=True)
    with open(exp / "events.jsonl", "a") as file:
        for record in (
            Interrupted(wall_s=0.5, epoch=2, frames=1),
            death,
            CheckpointWritten(wall_s=2.0, epoch=2, file=""),
        ):
            file.write(to_line(record) + "\n")
        file.write('{"kind":"learner_lost","wall_s":')  # killed in the middle of a line
    with monkeypatch.context() as patch:
        cut(patch, segment=1, rounds=2)
        assert train(made, exp, Silent(), Interrupt()) is None
    assert train(made, exp, Silent(), Interrupt()) is not None
    events = read_events(exp / "events.jsonl")
    assert of_kind(events, LearnerLost) == [death], "once, though the run was resumed twice"
    assert len(of_kind(events, Interrupted)) == 2
    assert "" not in [written.file for written in of_kind(events, CheckpointWritten)]


WILD = Newbob(18.0, max_epochs=8, stop_below=None)
STEEP = Quadratic(parameters=5, examples=640, noise=0.0)
"""Under it, epochs are taken back."""


@pytest.mark.parametrize("older", [True, False])
def test_an_epoch_that_cannot_be_taken_back_ends_no_run(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(job("sgd", STEEP, schedule=WILD), tmp_path / "whole", Silent(), Interrupt())
    evaluations = of_kind(read_events(tmp_path / "whole" / "events.jsonl"), Evaluation)
    assert not evaluations[1].accepted
    assert not evaluations[2].accepted, "the second epoch; it begins with a copy of the first checkpoint"
    original, done = SimRuntime.segment, False

    def segment(self: SimRuntime, plan: SegmentPlan, watch: Watch) -> object:
        nonlocal done
        if plan.epoch.epoch == 1 and not done:
            done = True
            flip(tmp_path / "exp" / FOLDER / "epoch-0001.safetensors")
            if not older:
                flip(tmp_path / "exp" / FOLDER / "epoch-0000.safetensors")
        return original(self, plan, watch)

    monkeypatch.setattr(SimRuntime, "segment", segment)
    results = train(job("sgd", STEEP, schedule=WILD), tmp_path / "exp", Silent(), Interrupt())
    assert results is not None
    if older:
        assert comparable(results) == comparable(whole)
    damaged = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), CheckpointDamaged)
    instead = f"{FOLDER}/epoch-0000.json" if older else ""
    assert [(one.file, one.instead) for one in damaged] == [(f"{FOLDER}/epoch-0001.json", instead)]


def full_for(monkeypatch: pytest.MonkeyPatch, failures: int, since: int = 5) -> list[int]:
    """From call number `since` on the disk is full `failures` times."""
    calls, real = [0], os.fsync

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if since <= calls[0] < since + failures:  # the tensors of the checkpoint after the first epoch
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(checkpoint, "RETRY_SECONDS", 0.0)
    return calls


def test_a_full_disk_is_waited_for_and_the_epoch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(job("ssgd", TASK), tmp_path / "whole", Silent(), Interrupt())
    said = Said()
    with monkeypatch.context() as patch:
        full_for(patch, failures=3)
        results = train(replace(job("ssgd", TASK), disk_patience=1e6), tmp_path / "exp", said, Interrupt())
    assert comparable(results) == comparable(whole)
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert [segment.epoch for segment in of_kind(events, Segment)] == [0, 1, 2, 3], "none was trained again"
    assert len(of_kind(events, RunStarted)) == 1
    (complaint,) = [line for line in said.lines if "the disk is full" in line]
    assert "about 0.0 MB are needed" in complaint
    assert "are free" in complaint


def test_who_waits_for_room_hears_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Interrupt()

    class Ask(Silent):
        def start(self, what: str, total: int | None = None) -> None:
            interrupt.asked = interrupt.asked or "the disk is full" in what

    with monkeypatch.context() as patch:
        full_for(patch, failures=1000)
        with pytest.raises(UserError, match="the disk is full"):
            train(replace(job("ssgd", TASK), disk_patience=1e6), tmp_path / "exp", Ask(), interrupt)
    assert interrupt.asked
    assert not list(tmp_path.rglob("*.part"))
    whole = train(job("ssgd", TASK), tmp_path / "whole", Silent(), Interrupt())
    assert comparable(train(job("ssgd", TASK), tmp_path / "exp", Silent(), Interrupt())) == comparable(whole)


def test_a_line_of_the_log_that_did_not_fit_leaves_no_half(tmp_path: Path) -> None:
    append(tmp_path, Finished(wall_s=1.0, frames=1, reason="short"))
    size = (tmp_path / "events.jsonl").stat().st_size
    child = os.fork()
    if not child:  # a limit cannot be taken back
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))
        try:
            append(tmp_path, Finished(wall_s=2.0, frames=2, reason="longer"))
        except UserError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "events.jsonl").stat().st_size == size


def no_constant(text: str) -> float:
    raise AssertionError(f"{text} is no JSON")


def test_a_run_that_diverges_writes_json_that_everybody_reads(tmp_path: Path) -> None:
    wild = Anneal(1e30, max_epochs=2)
    results = train(job("adpsgd", TASK, schedule=wild), tmp_path, Silent(), Interrupt())
    assert results is not None
    for path in (*tmp_path.glob("*.json"), *(tmp_path / FOLDER).glob("*.json")):
        json.loads(path.read_text(), parse_constant=no_constant)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=no_constant) for line in lines]
    assert any(value["kind"] == "segment" and value["loss"] is None for value in values), "else this shows nothing"
    segments = of_kind(read_events(tmp_path / "events.jsonl"), Segment)
    assert any(segment.loss != segment.loss for segment in segments), "read as NaN"
    back = Results.from_json(read_json(tmp_path / "results.json"))
    assert back.frame_cross_entropy["dev"] != back.frame_cross_entropy["dev"]
    assert load_checkpoint(tmp_path / FOLDER / "epoch-0002.json").position["frames"] == results.frames_seen
