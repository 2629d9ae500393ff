"""Learners that take the place of the dead."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from roundelay.core.flat import CHUNK
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Glance, LearnerDied, Straggler, Watch
from roundelay.runtime.procs import driver
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.members import Member
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.processes import Deaths
from roundelay.runtime.rows import NoLock, Row, adopt, mend
from support.broken import Moody, Unlucky
from support.clusters import ENDLESS, MINIBATCH, OnDevice, cluster, plan

SLOW = tuple(Straggler(rank, seconds=0.02) for rank in range(4))


class Story:
    """Kills the `victims` at the first look, and asks to stop as soon as `ended`."""

    def __init__(self, runtime: ProcsRuntime, victims: tuple[int, ...], ended: Callable[[Glance], bool]) -> None:
        self.runtime, self.victims, self.ended = runtime, victims, ended
        self.begun = False
        self.before = runtime.process_ids()

    def __call__(self, glance: Glance) -> bool:
        if not self.begun:
            self.begun = True
            for rank in self.victims:
                os.kill(self.before[rank], signal.SIGKILL)
            return False
        return self.ended(glance)


def complete(runtime: ProcsRuntime, victims: tuple[int, ...]) -> Watch:
    """Kill; go on until new learners are in all places, and have trained something."""
    trained: dict[int, int] = {}

    def ended(glance: Glance) -> bool:
        pids = runtime.process_ids()
        if glance.learners_alive < len(pids) or any(pids[rank] == story.before[rank] for rank in victims):
            return False
        steps = {rank: int(runtime.state().integers["steps"][rank]) for rank in victims}
        if not trained:
            trained.update(steps)
        return all(steps[rank] > trained[rank] for rank in victims)

    story = Story(runtime, victims, ended)
    return story


@pytest.mark.parametrize(
    ("name", "victims"),
    [
        ("asgd", (0,)),
        ("easgd period=2", (2,)),
        ("adpsgd:random", (1,)),
        ("adpsgd:exponential", (0, 2)),
        ("bsp period=2 quorum=0.5", (1,)),
    ],
)
def test_another_takes_the_place_and_trains_in_the_running_segment(name: str, victims: tuple[int, ...]) -> None:
    with ProcsRuntime(cluster(name, 3, momentum=0.9, stragglers=SLOW), threads=1) as runtime:
        outcome = runtime.segment(plan(ENDLESS, 3), complete(runtime, victims))
        assert sorted((lost.rank, lost.replaced) for lost in outcome.lost) == [(rank, True) for rank in victims]
        assert sorted(joined.rank for joined in outcome.joined) == list(victims)
        assert all((joined.copied is None) == runtime.cluster.centre for joined in outcome.joined)
        assert runtime.cluster.centre or outcome.joined[0].copied == 1 - victims[0] % 2
        assert outcome.counts.frames.sum() == outcome.next // 3 * MINIBATCH
        assert not (np.array(runtime.state().integers["versions"]) % 2).any()
        after = runtime.segment(plan(10, 3, epoch=1))
        assert (after.lost, after.joined) == ((), ())
        assert after.counts.frames.sum() == 10 * MINIBATCH


@pytest.mark.parametrize(("name", "victim"), [("adpsgd", 1), ("easgd", 0)])
def test_rows_on_devices_outlive_their_learners(name: str, victim: int) -> None:
    """Nothing of them is in the arena, and who takes the place of the dead has them."""
    made = cluster(name, 3, OnDevice(Quadratic(parameters=300)), momentum=0.9, stragglers=SLOW)
    with ProcsRuntime(made, threads=1) as runtime:
        initial = runtime.consensus()
        outcome = runtime.segment(plan(ENDLESS, 3), complete(runtime, (victim,)))
        arena = Arena(os.dup(runtime.arena.descriptor), runtime.layout, Patience(-1, 1.0))
        assert not any(row.vector.any() for row in arena.rows())
        arena.close()
        assert [lost.rank for lost in outcome.lost] == [joined.rank for joined in outcome.joined] == [victim]
        learner, state, end = made.task.build(), runtime.state(), runtime.consensus()
        assert learner.evaluate(end, "dev").loss < learner.evaluate(initial, "dev").loss
        runtime.segment(plan(10, 3, epoch=1))
        assert not torch.equal(runtime.consensus(), end)
        runtime.load(state)
        assert torch.equal(runtime.consensus(), end)


def ready(runtime: ProcsRuntime, *ranks: int) -> Callable[[Glance], bool]:
    """Have newcomers built their learners?"""
    return lambda _: set(ranks) <= set(runtime.processes.ready())


def test_a_member_of_a_node_joins_in_the_next_segment() -> None:
    with ProcsRuntime(cluster("hadpsgd", 4, stragglers=SLOW), threads=1) as runtime:
        first = runtime.segment(plan(ENDLESS, 4), Story(runtime, (0,), ready(runtime, 0)))
        assert [lost.replaced for lost in first.lost] == [True]
        assert first.counts.frames.sum() == first.next // 4 * MINIBATCH
        # Its node's other member takes part again at once if the first segment ends in two parts.
        second = runtime.segment(plan(ENDLESS, 4, epoch=1), lambda glance: glance.learner_frames[0] > 0)
        assert [joined.rank for joined in (*first.joined, *second.joined)] == [0]
        assert first.joined or second.joined[0].copied == 1, "the model of its own node"
        assert second.counts.frames.sum() == second.next // 4 * MINIBATCH
        assert second.counts.steps[0] == second.counts.steps[1] > 0
        assert len(runtime.rows()) == 2


def test_whoever_is_late_joins_when_the_next_segment_begins(tmp_path: Path) -> None:
    task = Moody(parameters=37, folder=str(tmp_path))
    with ProcsRuntime(cluster("adpsgd", 3, task, momentum=0.9, stragglers=SLOW), threads=1) as runtime:
        (tmp_path / "wait").touch()
        first = runtime.segment(plan(ENDLESS, 3), Story(runtime, (1,), lambda glance: glance.learners_alive == 2))
        assert first.counts.frames.sum() == first.next // 3 * MINIBATCH
        assert ([lost.rank for lost in first.lost], first.joined) == ([1], ())
        state = runtime.state()
        for name, vectors in state.vectors.items():  # a checkpoint holds what it would begin with
            assert torch.equal(vectors[1], vectors[0]), name
        runtime.load(state)
        second = runtime.segment(plan(5, 3, epoch=1))
        assert second.joined == ()
        (tmp_path / "wait").unlink()
        third = runtime.segment(plan(ENDLESS, 3, epoch=2), lambda glance: glance.learners_alive == 3)
        assert [(joined.rank, joined.copied) for joined in third.joined] == [(1, 0)]


@pytest.mark.parametrize(("mood", "why"), [("end", "exit status 7"), ("raise", "ArithmeticError: no luck today")])
def test_a_learner_that_always_dies_is_given_up(tmp_path: Path, mood: str, why: str) -> None:
    task = Moody(parameters=37, folder=str(tmp_path))
    runtime_ = ProcsRuntime(cluster("adpsgd", 3, task, stragglers=SLOW), threads=1, deaths=Deaths(replacements=2))
    with runtime_ as runtime:
        (tmp_path / mood).touch()
        outcome = runtime.segment(plan(ENDLESS, 3), Story(runtime, (1,), lambda _: len(runtime.processes.lost) == 3))
        assert outcome.counts.frames.sum() == outcome.next // 3 * MINIBATCH
        assert [(lost.rank, lost.replaced) for lost in outcome.lost] == [(1, True), (1, True), (1, False)]
        assert why in outcome.lost[1].reason
        assert "before it could take the place" in outcome.lost[1].reason
        assert "not replaced, since too many were" in outcome.lost[2].reason
        assert len(runtime.rows()) == 2


def test_nobody_is_left_to_learn_from() -> None:
    named = pytest.raises(LearnerDied, match=r"learner \d died: killed by signal 9")
    with ProcsRuntime(cluster("adpsgd", 3, stragglers=SLOW), threads=1) as runtime, named:
        runtime.segment(plan(ENDLESS, 3), Story(runtime, (0, 1, 2), lambda _: False))


def test_a_runtime_is_closed_while_somebody_starts(tmp_path: Path) -> None:
    task = Moody(parameters=37, folder=str(tmp_path))
    runtime = ProcsRuntime(cluster("adpsgd", 2, task, stragglers=SLOW), threads=1)
    (tmp_path / "wait").touch()
    runtime.segment(plan(ENDLESS, 2), Story(runtime, (1,), lambda glance: glance.learners_alive == 1))
    processes = runtime.process_ids()
    runtime.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


class Held(NoLock):
    """Somebody is writing."""

    def try_acquire(self) -> bool:
        return False


def test_rows_left_half_written_are_found_and_mended_unless_they_are_being_written() -> None:
    versions = np.array([4, 5, 7], np.int64)
    rows = [Row(rank, torch.zeros(1), versions, Held() if rank == 2 else NoLock()) for rank in range(3)]
    assert mend(rows) == (1,)
    assert versions.tolist() == [4, 6, 7]
    assert mend(rows) == ()


def test_no_more_processes_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcsRuntime(cluster("adpsgd", 2, stragglers=SLOW), threads=1) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(driver, "start_member", refuse)
            outcome = runtime.segment(plan(ENDLESS, 2), Story(runtime, (0,), lambda glance: glance.learners_alive == 1))
        assert [(lost.replaced, "not replaced" in lost.reason) for lost in outcome.lost] == [(False, True)]
        assert runtime.segment(plan(5, 2, epoch=1)).finished


def refuse(_: object) -> Member:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_adopting_is_one_mutation_and_mends_a_torn_row() -> None:
    versions = np.array([6, 3], np.int64)
    vectors = [torch.arange(CHUNK + 3.0), torch.zeros(CHUNK + 3)]
    theirs, mine = (Row(rank, vector, versions, NoLock()) for rank, vector in enumerate(vectors))
    momentum = (torch.zeros(2), torch.tensor([1.0, 2.0]))
    assert mine.torn
    adopt(mine, theirs, [momentum])
    assert torch.equal(*vectors)
    assert torch.equal(*momentum)
    assert versions.tolist() == [6, 6]  # three mutations before, and the half that was finished; theirs is only read


# Deaths while all start -----------------------------------------------------------------------------------------------


def unlucky(folder: Path, deaths: int, number: int = signal.SIGKILL) -> Unlucky:
    return Unlucky(examples=12 * MINIBATCH, parent=os.getpid(), deaths=deaths, number=number, folder=str(folder))


def test_who_dies_while_all_start_is_replaced_and_recorded(tmp_path: Path) -> None:
    with ProcsRuntime(cluster("adpsgd", 3, unlucky(tmp_path, 4)), threads=1) as runtime:
        assert runtime.living() == [0, 1, 2]
        first, second = (runtime.segment(plan(12, 3)) for _ in range(2))
    assert [(lost.reason, lost.replaced) for lost in first.lost] == 4 * [("killed by signal 9 (SIGKILL)", True)]
    assert second.lost == ()
    for outcome in (first, second):
        assert outcome.finished
        assert int(outcome.counts.frames.sum()) == 12 * MINIBATCH


def test_who_dies_while_all_start_is_done_without_where_that_was_asked_for(tmp_path: Path) -> None:
    with ProcsRuntime(cluster("adpsgd", 3, unlucky(tmp_path, 2)), threads=1, deaths=Deaths("go-on")) as runtime:
        assert len(runtime.living()) == 1
        outcome = runtime.segment(plan(12, 3))
    assert int(outcome.counts.frames.sum()) == 12 * MINIBATCH
    assert [lost.replaced for lost in outcome.lost] == [False, False]


@pytest.mark.parametrize(
    ("name", "number", "named"),
    [
        ("ssgd", signal.SIGKILL, r"killed by signal 9 \(SIGKILL\), while it started\. Too little memory"),
        ("ssgd", signal.SIGSEGV, r"killed by signal 11 \(SIGSEGV\)$"),
        ("adpsgd", signal.SIGSEGV, r"killed by signal 11 \(SIGSEGV\)$"),
    ],
)
def test_who_cannot_start_is_named_with_the_true_cause(name: str, number: int, named: str, tmp_path: Path) -> None:
    with pytest.raises(LearnerDied, match=named):
        ProcsRuntime(cluster(name, 2, unlucky(tmp_path, 100, number)), threads=1, deaths=Deaths(replacements=3))
    assert len(list(tmp_path.iterdir())) <= 5, "two, and three replacements"
