"""Checkpoints inside an epoch change nothing, and a run goes on from them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import roundelay.runtime.sim.driver as sim_driver
from roundelay import saving
from roundelay.checkpoint import checkpoints
from roundelay.core.progress import Silent
from roundelay.core.records import (
    CheckpointWritten,
    Segment,
    of_kind,
    read_events,
)
from roundelay.job import Interrupt, Job
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.schedule import Newbob
from roundelay.training import train
from support.broken import Waiting
from support.clusters import MINIBATCH
from support.runs import comparable, job

TASK = Quadratic(parameters=50, examples=20 * MINIBATCH)
FOLDER = "checkpoints"


def inside(exp: Path) -> list[str]:
    """The files of the checkpoints that were written inside an epoch."""
    written = of_kind(read_events(exp / "events.jsonl"), CheckpointWritten)
    return [record.file for record in written if "-at-" in record.file]


@pytest.mark.parametrize(
    "name",
    ["sgd", "ssgd codec=1bit", "delay-by-one", "delayed-gradient", "dpsgd", "diloco period=3", "easgd-sync period=2"],
)
def test_checkpoints_inside_epochs_change_no_bit_of_a_synchronous_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_driver, "GLANCE_SECONDS", 0.0)
    monkeypatch.setattr(sim_driver, "LOOK_TICKS", 8)
    whole = train(job(name, TASK), tmp_path / "whole", Silent(), Interrupt())
    often = replace(job(name, TASK), checkpoint_seconds=0.0)
    results = train(often, tmp_path / "often", Silent(), Interrupt())
    assert len(inside(tmp_path / "often")) >= 4, "else this shows nothing"
    found, wanted = comparable(results), comparable(whole)
    for value in (found, wanted):
        del value["virtual_seconds"]  # learners that overlap rounds wait for each other at a cut
    assert found == wanted
    ends = [load_file(tmp_path / exp / "model.safetensors")["x"] for exp in ("whole", "often")]
    assert torch.equal(*ends)
    assert len(checkpoints(tmp_path / "often" / FOLDER)) <= 3, "the last two and the best"


@pytest.mark.parametrize("runtime", ["sim", "procs"])
def test_a_run_killed_in_an_epoch_goes_on_from_the_checkpoint_inside_it(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_driver, "GLANCE_SECONDS", 0.0)
    task, stop = TASK, ProcsRuntime._stop
    if runtime == "procs":  # the second epoch does not end before a checkpoint is asked for
        file = tmp_path / "asked"
        task = Waiting(TASK.parameters, TASK.examples, epoch=1, index=3 * 10, file=str(file))

        def note(self: ProcsRuntime) -> None:
            stop(self)
            if self._orders["epoch"]["epoch"]:
                file.touch()

        monkeypatch.setattr(ProcsRuntime, "_stop", note)
    made = replace(job("ssgd", task, runtime=runtime), checkpoint_seconds=0.0)
    whole = train(job("ssgd", TASK, runtime=runtime), tmp_path / "whole", Silent(), Interrupt())
    written: list[str] = []
    write = saving.Saves.write

    def die(self: saving.Saves, name: str, *state: Any) -> None:
        write(self, name, *state)
        written.append(name)
        if name.startswith("epoch-0001-at-"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(saving.Saves, "write", die)
        with pytest.raises(KeyboardInterrupt):
            train(made, tmp_path / "cut", Silent(), Interrupt())
    results = train(made, tmp_path / "cut", Silent(), Interrupt())
    same = ("frame_cross_entropy", "frames_seen", "epochs")
    assert {key: comparable(results)[key] for key in same} == {key: comparable(whole)[key] for key in same}
    assert torch.equal(*(load_file(tmp_path / exp / "model.safetensors")["x"] for exp in ("whole", "cut")))
    done = int(written[-1].rpartition("-")[2])
    assert 0 < done < 20
    seconds = [s for s in of_kind(read_events(tmp_path / "cut" / "events.jsonl"), Segment) if s.epoch == 1]
    assert sum(seconds[0].learner_frames) == done * MINIBATCH, "the first part of the epoch was not trained again"
    assert sum(sum(segment.learner_frames) for segment in seconds) == TASK.examples


def test_an_asynchronous_run_with_checkpoints_inside_epochs_trains_every_frame_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_driver, "GLANCE_SECONDS", 0.0)
    for name in ("adpsgd", "easgd", "hadpsgd"):
        results = train(replace(job(name, TASK), checkpoint_seconds=0.0), tmp_path / name, Silent(), Interrupt())
        assert inside(tmp_path / name)
        assert comparable(results)["frames_seen"] == 4 * TASK.examples


@pytest.mark.parametrize(
    "evaluation", [1, 2, 4, 5, 6], ids=["the first", "an epoch's", "the last epoch's", "dev", "test"]
)
def test_a_signal_while_the_model_is_evaluated_is_heard_at_once_and_costs_nothing(
    evaluation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation of a large held-out split takes longer than a scheduler waits before it kills."""

    def make() -> Job:
        return replace(
            job("ssgd", TASK, schedule=Newbob(0.05, stop_below=None, max_epochs=3)), final_splits=("dev", "test")
        )

    whole = train(make(), tmp_path / "whole", Silent(), Interrupt())
    interrupt, evaluations, may_stop = Interrupt(), 0, QuadraticLearner.may_stop

    def ask(self: QuadraticLearner) -> None:
        nonlocal evaluations
        evaluations += 1
        interrupt.asked = interrupt.asked or evaluations == evaluation
        may_stop(self)

    with monkeypatch.context() as patch:
        patch.setattr(QuadraticLearner, "may_stop", ask)
        assert train(make(), tmp_path / "exp", Silent(), interrupt) is None
    assert evaluations == evaluation, "it was not brought to its end, and nothing began after it"
    assert comparable(train(make(), tmp_path / "exp", Silent(), Interrupt())) == comparable(whole)
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert [segment.epoch for segment in of_kind(events, Segment)] == [0, 1, 2], "nothing was trained again"
