"""Frames that records say are missing are those that the data says are missing.

Whatever dies in a run, and whenever: in every epoch, what learners have trained and what the records of its segments
say that nobody has are the examples of that epoch, none of them twice. A record that blames a host blames it for what
is missing of its learners' parts. What a run says is lost is what it trains again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from roundelay.core.epochs import EpochPlan, Share
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay.core.records import HostLost, LearnerLost, Record, RunStarted, Segment, of_kind, read_events
from roundelay.job import AfterDeath, Interrupt, Job
from roundelay.learner.quadratic import Quadratic
from roundelay.run_directory import append, cut
from roundelay.runtime.base import Outcome, Runtime, SegmentPlan, Straggler, Watch
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths, OnDeath
from roundelay.schedule import Newbob
from roundelay.training import train
from support.clusters import MINIBATCH
from support.fatal import Fatal
from support.hosts import Hosts
from support.runs import job
from support.said import Said

ROUNDS, EPOCHS = 25, 2
EXAMPLES = ROUNDS * MINIBATCH - 7
SLOW = 0.02
QUADRATIC = Quadratic(parameters=37, examples=EXAMPLES)
TWO = Newbob(0.05, stop_below=None, max_epochs=EPOCHS)


def go(job_: Job, exp: Path, progress: Progress | None = None) -> list[Record]:
    """Train to the end, or to an error; all records."""
    train(job_, exp, progress or Silent(), Interrupt())
    return read_events(exp / "events.jsonl")


def hold(events: Sequence[Record], examples: int = EXAMPLES) -> list[int]:
    """The law; frames that are missing from each epoch."""
    missing = []
    for epoch in range(EPOCHS):
        segments = [one for one in of_kind(events, Segment) if one.epoch == epoch]
        assert segments
        trained, not_trained = (
            sum(sum(getattr(one, name)) for one in segments) for name in ("learner_frames", "learner_missing")
        )
        assert trained + not_trained == examples, (epoch, trained, not_trained)
        assert all(number >= 0 for one in segments for number in one.learner_missing)
        missing.append(not_trained)
    blamed: list[HostLost] = []
    for record in events:
        if isinstance(record, HostLost):
            blamed.append(record)
        elif isinstance(record, Segment):
            for gone in blamed:
                assert gone.missing == sum(
                    record.learner_missing[rank] for rank in gone.ranks if record.learner_missing
                )
            blamed = []
    return missing


def on_processes(name: str, policy: OnDeath, fatal: Fatal, seconds: float, after_death: AfterDeath = "stop") -> Job:
    """A job of three learners."""
    slow = tuple(Straggler(rank, seconds=SLOW) for rank in range(3))
    return replace(
        job(name, fatal, schedule=TWO, stragglers=slow),
        make_runtime=lambda cluster: ProcsRuntime(cluster, threads=1, deaths=Deaths(policy)),
        after_death=after_death,
        checkpoint_seconds=seconds,
    )


EVERY_ROUND_OR_SO, NEVER = 0.0, 1e9
PART = 6


def in_parts(patch: pytest.MonkeyPatch) -> None:
    """Have segments end for a checkpoint after `PART` rounds at the latest, however seldom the parent looks."""
    original = ProcsRuntime.segment

    def part(self: ProcsRuntime, plan: SegmentPlan, watch: Watch) -> Outcome:
        outcome = original(self, replace(plan, last_round=min(plan.end_round, plan.first_round + PART)), watch)
        watch(self.glance())  # as at the last moment
        return replace(outcome, finished=outcome.next >= plan.end_round * self.cluster.learners)

    patch.setattr(ProcsRuntime, "segment", part)


@pytest.mark.parametrize(
    ("name", "deaths", "seconds"),
    [
        ("bsp period=3", (4, 38), EVERY_ROUND_OR_SO),
        ("bsp period=3", (4, 38), NEVER),
        ("ssgd", (4, 40), EVERY_ROUND_OR_SO),
        ("dpsgd", (1, 70), NEVER),
    ],
)
def test_learners_that_go_on_say_what_the_dead_leave(
    tmp_path: Path, name: str, deaths: tuple[int, int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner 1 dies, and another later, if it is still to draw that minibatch."""
    said = Said()
    if seconds == EVERY_ROUND_OR_SO:
        in_parts(monkeypatch)
    events = go(on_processes(name, "go-on", Fatal(QUADRATIC, *deaths), seconds, "go-on"), tmp_path / "exp", said)
    missing = hold(events)
    lost = of_kind(events, LearnerLost)
    assert lost
    assert all(one.frames_lost == 0 for one in lost), "nothing is trained again"
    assert missing[0] > 0
    assert missing[1] == 0
    assert len([one for one in of_kind(events, Segment) if one.epoch == 0]) >= (1 if seconds else ROUNDS / PART)
    assert any("of epoch 1 that no learner has trained: " in word for word in said.lines)


@pytest.mark.parametrize(("policy", "seconds"), [("go-on", NEVER), ("replace", EVERY_ROUND_OR_SO)])
def test_of_asynchronous_learners_nothing_is_missing(tmp_path: Path, policy: OnDeath, seconds: float) -> None:
    events = go(
        on_processes("adpsgd", policy, Fatal(QUADRATIC, 10, learner_at=41, once=str(tmp_path)), seconds),
        tmp_path / "exp",
    )
    assert len(of_kind(events, LearnerLost)) == 2
    assert hold(events) == [0, 0]


@pytest.mark.parametrize(
    ("name", "policy", "after_death", "seconds"),
    [
        ("ssgd", "stop", "restart", EVERY_ROUND_OR_SO),
        ("bsp period=3", "stop", "stop", NEVER),
        ("adpsgd", "stop", "stop", NEVER),
    ],
)
def test_what_is_lost_is_trained_again(
    tmp_path: Path, name: str, policy: OnDeath, after_death: AfterDeath, seconds: float
) -> None:
    """Hold a run that a death ends to it: message and record say one number, and the same command goes on."""
    made = on_processes(name, policy, Fatal(QUADRATIC, 40, once=str(tmp_path)), seconds, after_death)
    if after_death == "restart":
        events = go(made, tmp_path / "exp")
    else:
        with pytest.raises(UserError, match="trained since") as error:
            go(made, tmp_path / "exp")
        (lost,) = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), LearnerLost)
        assert f"{lost.frames_lost:,} frames trained since" in str(error.value)
        events = go(made, tmp_path / "exp")
    (lost,) = of_kind(events, LearnerLost)
    if seconds == EVERY_ROUND_OR_SO:
        assert lost.frames_lost < 16 * MINIBATCH, "since the last checkpoint, in the 14th round at most"
    elif name == "adpsgd":  # the other two hold a minibatch each, and train on until they are told to end
        assert (40 - 2) * (MINIBATCH // 3) <= lost.frames_lost <= EXAMPLES
    else:
        assert 12 * MINIBATCH <= lost.frames_lost < 16 * MINIBATCH, "13 rounds, from or up to the end of a block"
    assert len(of_kind(events, RunStarted)) == 2
    assert hold(events) == [0, 0]


def test_the_death_of_all_says_what_is_lost(tmp_path: Path) -> None:
    """Asynchronous learners die one by one over the same minibatch."""
    made = on_processes("adpsgd", "go-on", Fatal(QUADRATIC, 40), NEVER)
    with pytest.raises(UserError, match="and so did all others") as error:
        go(made, tmp_path / "exp")
    lost = of_kind(read_events(tmp_path / "exp" / "events.jsonl"), LearnerLost)
    frames = sum(one.frames_lost for one in lost)
    assert 0 < frames <= 40 * MINIBATCH
    assert f"{frames:,} frames trained since" in str(error.value)
    assert "go-on" not in str(error.value), "which it has done"


def on_hosts(hosts: Hosts, seconds: float) -> Job:
    """The same on several hosts, of which this process is the first."""

    def make(_: object) -> Runtime:
        return MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms)

    learners = sum(hosts.sizes)
    made = job(hosts.name, hosts.cluster.task, learners=learners, schedule=TWO)
    after: AfterDeath = "go-on" if hosts.cluster.strategy.traits.synchronous else "stop"
    return replace(made, cluster=hosts.cluster, make_runtime=make, after_death=after, checkpoint_seconds=seconds)


@pytest.mark.parametrize(("name", "seconds"), [("bsp period=3", EVERY_ROUND_OR_SO), ("ssgd", NEVER)])
def test_hosts_that_go_on_say_what_the_lost_leave(tmp_path: Path, name: str, seconds: float) -> None:
    """A learner of the second host dies, then the third host."""
    hosts = Hosts(
        name,
        (1, 2, 1),
        examples=EXAMPLES,
        slow=SLOW,
        terms={"on_death": "go-on"},
        fatal=31,
        learner_fatal=9,
        once=str(tmp_path),
    )
    with hosts:
        events = go(on_hosts(hosts, seconds), tmp_path / "exp")
        missing = hold(events)
    assert of_kind(events, LearnerLost)
    assert of_kind(events, HostLost)
    assert missing[0] > 0
    assert missing[1] == 0


# Plans ----------------------------------------------------------------------------------------------------------------

SHARED = EpochPlan(0, 100, 16, 4, 1, shares=(Share(2, 60, (0,)), Share(2, 40, (1,))))


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("plan", [EpochPlan(0, 100, 16, 4, 1), SHARED])
@pytest.mark.parametrize("living", [(0, 1, 2, 3), (0, 2, 3), (0, 1), (3,)])
@pytest.mark.parametrize("end", [3, 7])
def test_missing_is_what_was_planned_and_not_counted(
    plan: EpochPlan, living: tuple[int, ...], end: int, synchronous: bool
) -> None:
    """Also of learners, and of all of a host whose shards nobody else has, that were dead when the segment began."""
    segment = SegmentPlan(plan.for_living(living), 0.1, first=4)
    planned = [segment.epoch.examples_of([rank], 1, end) for rank in range(4)]
    found = segment.missing(planned, 4 * end, synchronous)
    assert sum(found) + sum(planned) == plan.examples_between(1, end)
    assert all(number >= 0 for number in found)
    fewer = [number // 2 if rank == living[-1] else number for rank, number in enumerate(planned)]
    assert sum(segment.missing(fewer, 4 * end, synchronous)) == plan.examples_between(1, end) - sum(fewer)


def test_what_is_trained_again_is_missing_no_more(tmp_path: Path) -> None:
    """A host is lost, and the run goes back to a checkpoint of before: that it was lost stays in the log."""
    lost = HostLost(wall_s=1.0, host=1, ranks=[1], reason="closed", missing=12, redrawn=3)
    for record in (lost, lost):
        append(tmp_path, record)
    size = (tmp_path / "events.jsonl").stat().st_size // 2
    cut(tmp_path, size)
    assert read_events(tmp_path / "events.jsonl") == [lost, replace(lost, missing=0)]
