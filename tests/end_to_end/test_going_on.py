"""Going on with a run: after a death, with another number of learners, or only if there is something to go on with."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roundelay.checkpoint import Checkpoint, latest, load_checkpoint, save_checkpoint
from roundelay.core.configure import read_yaml
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.progress import Silent
from roundelay.core.records import (
    CheckpointDamaged,
    Evaluation,
    LearnerJoined,
    LearnerLost,
    LearnersChanged,
    Results,
    RunStarted,
    Segment,
    of_kind,
    read_events,
)
from roundelay.job import AfterDeath, Interrupt, Job
from roundelay.learner.quadratic import Quadratic
from roundelay.run_directory import claim_directory
from roundelay.runtime.base import ClusterState, Glance, Outcome, SegmentPlan, Straggler, Watch, ended_by_death
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.schedule import Newbob
from roundelay.training import train
from roundelay_speech.acoustic import _on_death
from support.broken import Waiting
from support.clusters import MANY, MINIBATCH, make_strategy, one_of_each
from support.fatal import Fatal
from support.runs import comparable, cut, job

TASK = Quadratic(parameters=50, examples=20 * MINIBATCH)
SILENT_TASK = replace(TASK, noise=0.0)
"""Its gradient does not depend on how a round is cut into minibatches."""


def run(job_: Job, exp: Path, *, resume_only: bool = False) -> Results | None:
    return train(job_, exp, Silent(), Interrupt(), resume_only=resume_only)


# Another number of learners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (3, 1), (1, 5)])
def test_ssgd_with_other_learners_goes_where_it_would_have_gone_with_them(
    before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same frames a round, the same momentum on all learners: only rounding may differ."""
    run(job("ssgd", SILENT_TASK, learners=after), tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut(patch, segment=3, rounds=7)
        assert run(job("ssgd", SILENT_TASK, learners=before), tmp_path / "cut") is None
    results = run(job("ssgd", SILENT_TASK, learners=after), tmp_path / "cut")
    ends = [load_file(tmp_path / exp / "model.safetensors")["x"] for exp in ("whole", "cut")]
    torch.testing.assert_close(*ends)
    assert comparable(results)["frames_seen"] == 4 * TASK.examples
    assert comparable(results)["learners"] == after


@pytest.mark.parametrize("name", one_of_each(MANY))
def test_every_strategy_goes_on_with_other_learners_and_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=job(name, TASK).cluster.stop_round(7))
        run(job(name, TASK, learners=4), tmp_path / "exp")
    results = run(job(name, TASK, learners=3), tmp_path / "exp")
    assert comparable(results)["frames_seen"] == 4 * TASK.examples
    events = read_events(tmp_path / "exp" / "events.jsonl")
    (changed,) = of_kind(events, LearnersChanged)
    assert (changed.before, changed.after) == (4, 3)
    assert ("the centre" in changed.what) == (make_strategy(name).traits.model == "centre")
    assert [start.learners for start in of_kind(events, RunStarted)] == [4, 3]
    assert read_yaml(tmp_path / "exp" / "recipe.yaml")["training"]["learners"] == 3
    kept = [e.cross_entropy for e in of_kind(events, Evaluation) if e.accepted]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("names", [("bmuf period=3", "adpsgd"), ("easgd period=2", "ssgd"), ("ssgd", "easgd period=2")])
def test_a_run_goes_on_under_another_strategy_where_that_is_asked_for(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an epoch, of which every frame is still trained once."""

    def of(name: str, learners: int) -> Job:
        made = job(name, TASK, learners=learners)
        return replace(made, recipe={"training": {"strategy": name, "learners": learners}})

    exp = tmp_path / "exp"
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=of(names[0], 4).cluster.stop_round(7))
        run(of(names[0], 4), exp)
    with pytest.raises(UserError, match=r"training\.strategy was .* With --resume a run goes on under"):
        run(of(names[1], 4), exp)
    results = run(of(names[1], 3), exp, resume_only=True)
    assert comparable(results)["frames_seen"] == 4 * TASK.examples
    events = read_events(exp / "events.jsonl")
    (changed,) = of_kind(events, LearnersChanged)
    old, new = (make_strategy(name) for name in names)
    assert f"{old.name}{' (its' * bool(old.memory)}" in changed.what
    assert f"goes on as {new.label}, which begins anew: every learner begins with" in changed.what
    assert "the optimizer's state (momentum)" in changed.what
    assert [start.strategy for start in of_kind(events, RunStarted)] == [old.name, new.name]
    assert read_yaml(exp / "recipe.yaml")["training"]["strategy"] == names[1]
    kept = [e.cross_entropy for e in of_kind(events, Evaluation) if e.accepted]
    assert kept == sorted(kept, reverse=True)


def test_a_checkpoint_that_does_not_say_its_strategy_goes_on_under_no_other(tmp_path: Path) -> None:
    recipe = {"training": {"strategy": "bmuf", "learners": 2}}
    claim_directory(tmp_path / "exp", recipe)
    state = ClusterState({"row": torch.zeros(2, 3)}, {"steps": [1, 1], "versions": [2, 2]})
    save_checkpoint(tmp_path / "exp" / "checkpoints", "epoch-0001", Checkpoint(state, {}))
    with pytest.raises(UserError, match=r"epoch-0001\.json: of an earlier version"):
        claim_directory(tmp_path / "exp", {"training": {"strategy": "ssgd", "learners": 2}}, resume_only=True)


def test_an_epoch_is_cut_once_where_every_learner_has_a_minibatch_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four learners of 16 frames stop in an epoch of rounds of 64; two finish it so, and have rounds of 32 from then
    on. Every frame is trained once an epoch."""
    task = replace(TASK, examples=20 * 64)

    def each(learners: int) -> Job:
        total = job("bmuf period=3", task, learners=learners)
        cluster = replace(total.cluster, shared_minibatch=False)
        return replace(total, cluster=cluster, minibatch=MinibatchSize(16, per_learner=True))

    rounds: list[int] = []
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=each(4).cluster.stop_round(7))
        assert run(each(4), tmp_path / "exp") is None
    original: Callable[..., Outcome] = SimRuntime.segment

    def noted(self: SimRuntime, plan: SegmentPlan, watch: Watch) -> Outcome:
        rounds.append(plan.epoch.minibatch)
        return original(self, plan, watch)

    monkeypatch.setattr(SimRuntime, "segment", noted)
    results = run(each(2), tmp_path / "exp")
    assert rounds == [64, 32, 32]
    assert comparable(results)["frames_seen"] == 4 * task.examples
    started = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), RunStarted)
    assert [(start.minibatch_frames, start.minibatch_per_learner) for start in started] == [(64, True), (32, True)]


def test_nothing_but_learners_and_manners_may_change(tmp_path: Path) -> None:
    def recipe(**training_: object) -> dict[str, object]:
        return {"training": {"learners": 4, "stragglers": ["3:2x"], "seed": 0, "patience_seconds": 300.0, **training_}}

    exp = tmp_path / "exp"
    exp.mkdir()
    claim_directory(exp, recipe())
    (exp / "checkpoints").mkdir()
    (exp / "checkpoints" / "epoch-0000.json").write_text("{}")
    others: tuple[dict[str, object], ...] = ({"seed": 1}, {"stragglers": []}, {"learners": 3, "seed": 1})
    for other in others:
        with pytest.raises(UserError, match="belongs to another configuration"):
            claim_directory(exp, recipe(**other))
    claim_directory(exp, recipe(patience_seconds=1.0))
    claim_directory(exp, recipe(learners=3, stragglers=[]))
    assert read_yaml(exp / "recipe.yaml") == recipe(learners=3, stragglers=[])
    (exp / Results.FILE).write_text("{}")
    claim_directory(exp, recipe(learners=4, stragglers=[], on_death="shrink"))  # it may have finished with fewer
    claim_directory(exp, recipe(learners=3, stragglers=[], patience_seconds=2.0))
    assert read_yaml(exp / "recipe.yaml") == recipe(learners=3, stragglers=[]), "what it was trained with"
    with pytest.raises(UserError, match=r"training\.learners was 3, now 2"):
        claim_directory(exp, recipe(learners=2, stragglers=[]))


def test_an_epoch_begun_with_other_learners_can_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild, task = Newbob(4.5, max_epochs=8, stop_below=None), Quadratic(parameters=5, examples=640, noise=0.0)
    with monkeypatch.context() as patch:
        cut(patch, segment=1, rounds=4)
        run(job("ssgd", task, learners=4, schedule=wild), tmp_path / "exp")
    run(job("ssgd", task, learners=2, schedule=wild), tmp_path / "exp")
    evaluations = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), Evaluation)
    assert not evaluations[1].accepted
    assert len(evaluations) == 9


def test_stopped_at_once_with_other_learners_the_checkpoint_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=7)
        run(job("ssgd", TASK, learners=4), tmp_path / "exp")
    interrupt = Interrupt()
    interrupt.asked = True
    for learners in (3, 2, 2):
        assert train(job("ssgd", TASK, learners=learners), tmp_path / "exp", Silent(), interrupt) is None
        path = latest(tmp_path / "exp" / "checkpoints")
        assert path is not None
        assert path.stem == "epoch-0001-at-000000007"
        assert len(load_checkpoint(path).state.vectors["row"]) == learners
        assert len(list(path.parent.iterdir())) == 4, "this one and the end of the epoch before, two files each"


# After a death --------------------------------------------------------------------------------------------------------

SLOW = tuple(Straggler(rank, seconds=0.02) for rank in range(3))
SHORT = Quadratic(parameters=50, examples=12 * MINIBATCH, noise=0.0)


KILLED_IN = 1
"""The epoch in which learners are killed."""


def with_kills(patch: pytest.MonkeyPatch, deaths: int, file: Path) -> None:
    """Kill learner 1 in epoch `KILLED_IN`, in the first `deaths` runtimes; there is `file` from then on, or from that
    epoch's beginning if nobody is killed."""
    original = ProcsRuntime.segment
    left = deaths

    def segment(self: ProcsRuntime, plan: SegmentPlan, watch: Watch) -> Outcome:
        file.touch()
        if kills := plan.epoch.epoch == KILLED_IN and left > 0:
            file.unlink()

        def look(glance: Glance) -> bool:
            nonlocal kills, left
            if kills:
                kills, left = False, left - 1
                os.kill(self.process_ids()[1], signal.SIGKILL)
                file.touch()
            return watch(glance)

        return original(self, plan, look)

    patch.setattr(ProcsRuntime, "segment", segment)


def resizable(name: str, after_death: AfterDeath, file: Path, learners: int = 3) -> Job:
    """A job whose epoch `KILLED_IN` does not come to its end before there is `file`."""
    task = Waiting(**vars(SHORT), epoch=KILLED_IN, index=18, file=str(file))
    made = job(name, task, runtime="procs", learners=learners, stragglers=SLOW[:learners], schedule=THREE)
    return replace(made, after_death=after_death, with_learners=lambda n: resizable(name, after_death, file, n))


THREE = Newbob(0.05, stop_below=None, max_epochs=3)


def test_a_death_ends_a_synchronous_run_with_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        with_kills(patch, 1, tmp_path / "killed")
        named = (
            r"learner 1 died: killed by signal 9 .*ssgd cannot go on.*"
            r"\(epoch-0001\.json\) is complete, and \d+ frames trained since"
        )
        with pytest.raises(UserError, match=named):
            run(resizable("ssgd", "stop", tmp_path / "killed"), tmp_path / "exp")
    path = latest(tmp_path / "exp" / "checkpoints")
    assert path is not None
    assert (path.name, load_checkpoint(path).position["frames"]) == ("epoch-0001.json", SHORT.examples)


@pytest.mark.parametrize(("after_death", "left"), [("shrink", 1), ("restart", 3)])
def test_after_deaths_a_synchronous_run_goes_on_from_the_last_checkpoint(
    after_death: AfterDeath, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise and with equal learning rates the number of learners changes nothing but rounding."""
    with monkeypatch.context() as patch:
        with_kills(patch, 2, tmp_path / "killed")
        results = run(resizable("ssgd", after_death, tmp_path / "killed"), tmp_path / "exp")
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert results is not None
    assert (results.learners, results.frames_seen) == (left, 3 * SHORT.examples)
    assert [s.epoch for s in of_kind(events, Segment)] == [0, 1, 2]
    lost = of_kind(events, LearnerLost)
    assert [(one.rank, one.replaced) for one in lost] == 2 * [(1, after_death == "restart")]
    assert all(0 <= one.frames_lost < SHORT.examples for one in lost)
    changes = [(changed.before, changed.after) for changed in of_kind(events, LearnersChanged)]
    assert changes == ([(3, 1)] if left == 1 else [])
    assert read_yaml(tmp_path / "exp" / "recipe.yaml")["training"]["learners"] == left
    run(job("ssgd", SHORT, schedule=THREE), tmp_path / "whole")
    ends = [load_file(tmp_path / exp / "model.safetensors")["x"] for exp in ("whole", "exp")]
    torch.testing.assert_close(*ends)


def test_synchronous_learners_that_are_left_train_the_run_to_its_end(tmp_path: Path) -> None:
    """The dead one's part of the rounds after its death is missing from that epoch; in the next another has its
    place."""
    task = Fatal(SHORT, 5 * 3 + 1, spared=os.getpid())
    made = replace(
        job("ssgd", task, schedule=THREE),
        make_runtime=lambda cluster: ProcsRuntime(cluster, threads=1, deaths=Deaths("go-on")),
        after_death="go-on",
    )
    results = run(made, tmp_path / "exp")
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert results is not None
    assert [(one.rank, one.replaced, one.frames_lost) for one in of_kind(events, LearnerLost)] == [(1, True, 0)]
    trained = [sum(one.learner_frames) for one in of_kind(events, Segment)]
    plan = EpochPlan(0, SHORT.examples, MINIBATCH, 3, 1)
    assert trained == [SHORT.examples - plan.examples_of([1], 5, 12), SHORT.examples, SHORT.examples]
    assert results.frames_seen == sum(trained)
    path = latest(tmp_path / "exp" / "checkpoints")
    assert path is not None
    assert len(load_checkpoint(path).state.vectors["row"]) == 3


def test_a_run_that_has_yet_to_train_begins_by_itself_where_its_checkpoint_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost by that, and it is said."""

    def killed(*_: object) -> Outcome:
        raise RuntimeError("killed before the first round")

    made = job("ssgd", SHORT, schedule=THREE)
    with monkeypatch.context() as patch:
        patch.setattr(SimRuntime, "segment", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(made, tmp_path / "exp")
    path = tmp_path / "exp" / "checkpoints" / "epoch-0000.json"
    path.write_text(path.read_text()[:-20])
    whole, found = run(made, tmp_path / "whole"), run(made, tmp_path / "exp")
    assert comparable(found) == comparable(whole)
    (said,) = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), CheckpointDamaged)
    assert (said.file, said.instead) == ("checkpoints/epoch-0000.json", "")
    for one in (tmp_path / "exp" / "checkpoints").glob("*.json"):
        one.write_text(one.read_text()[:-20])
    (tmp_path / "exp" / Results.FILE).unlink()
    with pytest.raises(UserError, match="no checkpoint is whole"):  # it has trained
        run(made, tmp_path / "exp")


@pytest.mark.parametrize(
    ("strategy", "why", "otherwise"),
    [
        ("ssgd", "ssgd cannot go on without it", "With --on-death go-on the others train on."),
        ("easgd-sync period=2", "easgd-sync period 2 cannot go on without it", ""),
        ("adpsgd", "--on-death stop ends the run", "With --on-death go-on, or replace, the others train on."),
    ],
)
def test_no_way_out_is_promised_that_is_none(strategy: str, why: str, otherwise: str) -> None:
    found = ended_by_death(make_strategy(strategy))
    assert found == (why, otherwise)


def test_a_replacement_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(self: ProcsRuntime, plan: SegmentPlan, watch: Watch) -> Outcome:
        """The first epoch lasts until the dead learner is replaced."""
        before = self.process_ids()
        if plan.epoch.epoch:
            return original(self, plan, watch)

        def look(glance: Glance) -> bool:
            if glance.learners_alive == 2 and self.process_ids() == before:
                os.kill(before[1], signal.SIGKILL)
            return self.process_ids() != before and glance.learners_alive == 2

        outcome = original(self, replace(plan, epoch=replace(plan.epoch, examples=10**9)), look)
        return replace(outcome, finished=True)

    original = ProcsRuntime.segment
    monkeypatch.setattr(ProcsRuntime, "segment", held)
    run(job("adpsgd", SHORT, runtime="procs", learners=2, stragglers=SLOW[:2], schedule=THREE), tmp_path / "exp")
    events = read_events(tmp_path / "exp" / "events.jsonl")
    assert [(lost.rank, lost.replaced, lost.frames_lost) for lost in of_kind(events, LearnerLost)] == [(1, True, 0)]
    assert [(joined.rank, joined.copied) for joined in of_kind(events, LearnerJoined)] == [(1, 0)]


@pytest.mark.parametrize(
    ("strategy", "wanted", "meant"),
    [
        ("ssgd", "auto", "stop"),
        ("ssgd", "shrink", "shrink"),
        ("ssgd", "replace", "replace"),
        ("ssgd", "go-on", "go-on"),
        ("adpsgd", "auto", "replace"),
        ("adpsgd", "go-on", "go-on"),
        ("adpsgd", "stop", "stop"),
    ],
)
def test_what_a_death_means_depends_on_the_strategy(strategy: str, wanted: str, meant: str) -> None:
    assert _on_death(wanted, make_strategy(strategy)) == meant


@pytest.mark.parametrize(("strategy", "wanted"), [("easgd-sync", "go-on"), ("adpsgd", "shrink")])
def test_what_a_strategy_cannot_do_is_refused(strategy: str, wanted: str) -> None:
    with pytest.raises(UserError, match=rf"training\.on_death is '{wanted}': under {strategy}"):
        _on_death(wanted, make_strategy(strategy))


# Resume only ----------------------------------------------------------------------------------------------------------


def test_resuming_never_begins_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        run(job("ssgd", TASK), tmp_path / "exp", resume_only=True)
    assert not (tmp_path / "exp").exists()
    whole = run(job("ssgd", TASK), tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut(patch, segment=2, rounds=7)
        run(job("ssgd", TASK), tmp_path / "exp")
    for _ in range(2):  # the second time it is finished
        assert comparable(run(job("ssgd", TASK), tmp_path / "exp", resume_only=True)) == comparable(whole)


def test_what_killed_writers_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    run(job("ssgd", TASK), tmp_path / "exp")
    stale = tmp_path / "exp" / "checkpoints" / f".epoch-0001.safetensors.{2**22 + 1}.part"  # no process has that number
    stale.touch()
    run(job("ssgd", TASK), tmp_path / "exp")
    assert not stale.exists()
