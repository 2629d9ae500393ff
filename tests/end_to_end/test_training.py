"""The training loop: what it writes, and that stopping and going on changes nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roundelay import loop
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.checkpoint import load_checkpoint
from roundelay.core.configure import read_yaml
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Silent
from roundelay.core.records import (
    Evaluation,
    Finished,
    Interrupted,
    Results,
    RunStarted,
    Segment,
    of_kind,
    read_events,
)
from roundelay.job import Interrupt, Job
from roundelay.learner.quadratic import Quadratic
from roundelay.run_directory import alone
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.schedule import Anneal, Newbob
from roundelay.training import train
from support.clusters import MINIBATCH, SYNCHRONOUS
from support.runs import StopAt, comparable, cut, job
from support.said import Said

TASK = Quadratic(parameters=50, examples=20 * MINIBATCH)


def run(job_: Job, exp: Path) -> Results | None:
    return train(job_, exp, Silent(), Interrupt())


@pytest.mark.parametrize("name", ["sgd", "delayed-gradient", "asgd", "adpsgd:random", "hadpsgd", "rennala"])
def test_an_interrupted_run_goes_on_to_the_very_same_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(job(name, TASK), tmp_path / "whole")
    with monkeypatch.context() as patch:
        rounds = job(name, TASK).cluster.stop_round(7)
        cut(patch, segment=3, rounds=rounds)
        assert run(job(name, TASK), tmp_path / "cut") is None
    again = run(job(name, TASK), tmp_path / "cut")
    events = read_events(tmp_path / "cut" / "events.jsonl")
    assert [r.resumed for r in of_kind(events, RunStarted)] == [False, True]
    assert of_kind(events, Interrupted)[0].frames == (2 * 20 + rounds) * MINIBATCH
    assert comparable(again)["frames_seen"] == comparable(whole)["frames_seen"] == 4 * TASK.examples
    if name in SYNCHRONOUS:
        assert comparable(again)["frame_cross_entropy"] == comparable(whole)["frame_cross_entropy"]
        ends = [load_file(tmp_path / exp / "model.safetensors")["x"] for exp in ("whole", "cut")]
        assert torch.equal(*ends)
    else:  # stopping is a barrier, which asynchronous learners would not have met
        assert comparable(again)["frame_cross_entropy"]["dev"] == pytest.approx(
            comparable(whole)["frame_cross_entropy"]["dev"], rel=0.5
        )


def test_a_run_says_at_which_rate_its_learners_train_and_what_that_gained(tmp_path: Path) -> None:
    heard = Said()
    plain = job("adpsgd", Quadratic(50, examples=80 * MINIBATCH, noise=20.0), learners=2)
    cluster = dataclasses.replace(plain.cluster, shared_minibatch=False, rate="gain")
    results = train(dataclasses.replace(plain, cluster=cluster), tmp_path, heard, Interrupt())
    events = read_events(tmp_path / "events.jsonl")
    factors = [factor for segment in of_kind(events, Segment) for factor in segment.learner_rate_factors]
    assert results is not None
    assert results == Results.read(tmp_path)
    assert results.rate == of_kind(events, RunStarted)[0].rate == "gain"
    assert results.work is not None
    assert results.work == pytest.approx(sum(factors) / len(factors), rel=0.05)
    assert 1.3 < results.work < 2
    assert any(line.startswith("rate gain: 2 learners train at 1 to 2 times") for line in heard.lines)
    assert f"2 learners did the work of {results.work:.2f} (rate gain)" in heard.lines


def test_a_run_says_what_came_to_its_gatherings(tmp_path: Path) -> None:
    """In every segment by rank, and in the results in all."""
    results = run(job("bsp period=4 quorum=0.5 grace=0 guard=50", TASK), tmp_path)
    segments = of_kind(read_events(tmp_path / "events.jsonl"), Segment)
    by_rank = {"counted": "learner_gathered", "late": "learner_late", "left_out": "learner_left_out"}
    told = {"closed": sum(s.gatherings for s in segments)}
    told |= {name: sum(sum(getattr(s, field)) for s in segments) for name, field in by_rank.items()}
    assert results is not None
    assert results.gatherings == told
    assert told["closed"] >= 4 * 5
    assert told["counted"] > told["late"] > 0
    assert told["left_out"] == 0


WARM = Anneal(0.02, base_minibatch=16, warmup_epochs=2.5, anneal_from=3, max_epochs=4)
"""Four times the base minibatch; stopped in the third epoch, in which the warm-up ends."""


@pytest.mark.parametrize(
    ("runtime", "name", "optimizer"),
    [
        # Other strategies: that their states are complete is a law of tests/laws/test_local_optimizers.py.
        ("sim", "ssgd codec=1bit", "adamw"),
        ("sim", "diloco period=6 fragments=2 delay=1 mix=0.5", "adamw"),
        ("sim", "easgd-sync period=2", "adamw"),
        ("procs", "ssgd", "rprop"),
        ("procs", "bmuf period=3", "adamw"),
    ],
)
def test_state_of_any_optimizer_and_a_warm_up_survive_an_interruption(
    runtime: str, name: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Job:
        return job(name, TASK, runtime=runtime, schedule=WARM, optimizer=TorchOptimizer(optimizer))

    run(make(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        rounds, of = make().cluster.stop_round(7), SimRuntime if runtime == "sim" else ProcsRuntime
        cut(patch, segment=3, rounds=rounds, runtime=of)
        assert run(make(), tmp_path / "cut") is None
    run(make(), tmp_path / "cut")
    ends = [load_checkpoint(tmp_path / exp / "checkpoints" / "epoch-0004.json").state for exp in ("whole", "cut")]
    assert ends[0].integers["steps"] == ends[1].integers["steps"]
    assert {"row", "scalars"} < set(ends[0].vectors) == set(ends[1].vectors)
    for vector, value in ends[0].vectors.items():
        assert torch.equal(value, ends[1].vectors[vector]), vector
    rates = [s.learning_rate for s in of_kind(read_events(tmp_path / "whole" / "events.jsonl"), Segment)]
    line = [0.02 + 0.06 * min(1.0, (20 * epoch + 19) / 50) for epoch in range(3)]
    assert rates == pytest.approx([*line, 0.08 * 0.5**0.5])


def test_a_directory_of_an_earlier_version_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that did not exist then have their defaults; those that did are still compared."""
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=3)
        assert run(job("ssgd", TASK), tmp_path / "exp") is None
    newer = job("ssgd", TASK, extra={"optimizer": {"name": "sgd"}})
    with pytest.raises(UserError, match="optimizer was None, now"):
        run(newer, tmp_path / "exp")
    newer = dataclasses.replace(newer, complete=lambda recipe: {"optimizer": {"name": "sgd"}, **recipe})
    assert run(newer, tmp_path / "exp") is not None
    with pytest.raises(UserError, match=r"training\.seed was 1, now 2"):
        run(dataclasses.replace(job("ssgd", TASK, seed=2), complete=newer.complete), tmp_path / "exp")


def test_a_killed_run_repeats_the_epoch_it_was_in_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves no Interrupted record and half an epoch of events; resuming drops those and trains them again."""
    whole = run(job("adpsgd", TASK), tmp_path / "whole")
    original = loop.Run._measure
    calls = 0

    def die(self: Any, split: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(self, split)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_measure", die)
        with pytest.raises(KeyboardInterrupt):
            run(job("adpsgd", TASK), tmp_path / "cut")
    assert len(of_kind(read_events(tmp_path / "cut" / "events.jsonl"), Segment)) == 3
    again = run(job("adpsgd", TASK), tmp_path / "cut")
    assert comparable(again) == comparable(whole)
    events = read_events(tmp_path / "cut" / "events.jsonl")
    assert [s.epoch for s in of_kind(events, Segment)] == [0, 1, 2, 3]
    assert [e.epoch for e in of_kind(events, Evaluation)] == [-1, 0, 1, 2, 3]


def test_a_run_directory_is_complete(tmp_path: Path) -> None:
    results = run(job("adpsgd", TASK), tmp_path / "exp")
    assert results is not None
    files = {path.name for path in (tmp_path / "exp").iterdir()}
    log = {"recipe.yaml", "place.json", "events.jsonl", "checkpoints", "tensorboard"}
    assert files == {*log, "model.safetensors", "results.json"}
    stored = read_json(tmp_path / "exp" / "results.json")
    assert Results.from_json(stored) == results
    said = "strategy learners corpus wer frame_cross_entropy frame_accuracy frames_seen wall_seconds virtual_seconds"
    assert {*said.split(), "staleness", "commit", "seed"} <= stored.keys()
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], Finished)
    assert sum(sum(s.learner_frames) for s in of_kind(events, Segment)) == results.frames_seen
    assert results.virtual_seconds == pytest.approx(events[-1].virtual_s)


def test_finished_runs_are_not_trained_again(tmp_path: Path) -> None:
    first = run(job("ssgd", TASK), tmp_path / "exp")
    assert comparable(run(job("ssgd", TASK), tmp_path / "exp")) == comparable(first)
    assert len(of_kind(read_events(tmp_path / "exp" / "events.jsonl"), Segment)) == 4


def test_an_epoch_that_made_things_worse_is_taken_back(tmp_path: Path) -> None:
    """At a rate beyond stability the loss explodes; epochs are taken back, at half the rate, until it falls."""
    wild = Newbob(4.5, max_epochs=8, stop_below=None)
    results = run(job("sgd", Quadratic(parameters=5, examples=640, noise=0.0), schedule=wild), tmp_path / "exp")
    assert results is not None
    evaluations = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), Evaluation)
    assert not all(e.accepted for e in evaluations)
    kept = [e.cross_entropy for e in evaluations[1:] if e.accepted]
    assert kept == sorted(kept, reverse=True)
    assert results.frame_cross_entropy["dev"] == kept[-1]


def test_real_processes_go_through_the_same_loop(tmp_path: Path) -> None:
    virtual = run(job("ssgd", TASK), tmp_path / "sim")
    real = run(job("ssgd", TASK, runtime="procs"), tmp_path / "procs")
    same = ("frame_cross_entropy", "frames_seen", "staleness", "epochs")
    assert {k: comparable(real)[k] for k in same} == {k: comparable(virtual)[k] for k in same}
    assert real is not None
    assert real.virtual_seconds is None


def test_virtual_time_goes_on_through_epochs_taken_back_and_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = Newbob(4.5, max_epochs=8, stop_below=None)
    task = Quadratic(parameters=5, examples=640, noise=0.0)
    whole = run(job("sgd", task, schedule=wild), tmp_path / "whole")
    evaluations = of_kind(read_events(tmp_path / "whole" / "events.jsonl"), Evaluation)
    assert not all(e.accepted for e in evaluations[:6])
    with monkeypatch.context() as patch:
        cut(patch, segment=6, rounds=4)
        assert run(job("sgd", task, schedule=wild), tmp_path / "cut") is None
    assert comparable(run(job("sgd", task, schedule=wild), tmp_path / "cut")) == comparable(whole)


def test_events_lost_with_the_power_leave_a_readable_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only checkpoints are synced to disk, so the log may be shorter than a checkpoint remembers."""
    with monkeypatch.context() as patch:
        cut(patch, segment=3, rounds=7)
        assert run(job("ssgd", TASK), tmp_path / "exp") is None
    events = tmp_path / "exp" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:500])
    run(job("ssgd", TASK), tmp_path / "exp")
    assert isinstance(read_events(events)[-1], Finished)


def test_a_directory_in_which_nothing_was_trained_may_change_its_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only 10 training frames"):
        run(job("ssgd", Quadratic(examples=10)), tmp_path / "exp")
    results = run(job("ssgd", TASK, seed=2), tmp_path / "exp")
    assert results is not None
    assert read_yaml(tmp_path / "exp" / "recipe.yaml")["training"]["seed"] == 2


def test_a_run_killed_at_its_very_end_is_finished_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Results.write

    def die(results: Results, exp: Path) -> None:
        write(results, exp)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Results, "write", die)
        with pytest.raises(KeyboardInterrupt):
            run(job("ssgd", TASK), tmp_path / "exp")
    run(job("ssgd", TASK), tmp_path / "exp")
    assert isinstance(read_events(tmp_path / "exp" / "events.jsonl")[-1], Finished)


def test_an_interrupt_outside_training_is_heard_before_the_next_epoch(tmp_path: Path) -> None:
    interrupt = Interrupt()
    assert train(job("ssgd", TASK), tmp_path / "exp", StopAt(interrupt, "epoch 2 dev"), interrupt) is None
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert [segment.epoch for segment in of_kind(events, Segment)] == [0, 1]
    assert isinstance(of_kind(events, Interrupted)[0], Interrupted)
    assert comparable(run(job("ssgd", TASK), tmp_path / "exp")) == comparable(
        run(job("ssgd", TASK), tmp_path / "whole")
    )


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    run(job("ssgd", TASK), tmp_path / "exp")
    with alone(tmp_path / "exp"), pytest.raises(UserError, match="another process is training here"):
        run(job("ssgd", TASK), tmp_path / "exp")


def test_a_checkpoint_of_another_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        cut(patch, segment=1, rounds=4)
        run(job("ssgd", TASK), tmp_path / "exp")
    with pytest.raises(UserError, match="3 rows of 50 parameters, but now there are 3 of 60"):
        run(job("ssgd", Quadratic(parameters=60, examples=TASK.examples)), tmp_path / "exp")


def test_a_first_epoch_worse_than_no_training_is_taken_back(tmp_path: Path) -> None:
    results = run(job("sgd", Quadratic(parameters=5, noise=0.0), schedule=Newbob(50.0, max_epochs=1)), tmp_path / "exp")
    before, after = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), Evaluation)
    assert not after.accepted
    assert results is not None
    assert results.frame_cross_entropy["dev"] == before.cross_entropy
