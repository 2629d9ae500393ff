"""Hosts that die, come back, or lose the one that conducts. By kill -9 of a host's whole process tree."""

import dataclasses
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.core.errors import UserError
from roundelay.runtime.base import Glance, Joined, LearnerDied, Outcome
from roundelay.runtime.hosts.control.agent import serve
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
from roundelay.runtime.hosts.control.leases import Leases
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.transport.heartbeat import until
from roundelay.runtime.sim.cluster import Allreduce, Compute, Moment, Node, VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import ENDLESS, MINIBATCH, cluster, plan
from support.coarse import Coarse
from support.hosts import Hosts, place
from support.processes import learners_among


class Story:
    """Things that happen at the first look at which each is due, one after the other; then the segment is stopped."""

    def __init__(self, *chapters: tuple[Callable[[Glance], bool], Callable[[], None]]) -> None:
        self.chapters = list(chapters)

    def __call__(self, glance: Glance) -> bool:
        if self.chapters and self.chapters[0][0](glance):
            self.chapters.pop(0)[1]()
        return not self.chapters


def nothing() -> None: ...


def all_train(runtime: MultiHostRuntime, learners: int, epoch: int) -> Outcome:
    """Train until each of the learners has trained something."""
    outcome = runtime.segment(plan(ENDLESS, learners, epoch=epoch), lambda glance: min(glance.learner_frames) > 0)
    assert outcome.counts.frames.sum() == outcome.next // learners * MINIBATCH
    return outcome


def test_a_host_that_is_killed_is_named_and_its_minibatches_are_drawn_again() -> None:
    hosts = Hosts("adpsgd", (1, 2), slow=0.01)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        story = Story(
            (lambda glance: min(glance.learner_frames) > 2 * MINIBATCH / 3, lambda: hosts.kill(1)),
            (lambda glance: glance.learners_alive == 1, nothing),
        )
        outcome = runtime.segment(plan(ENDLESS, 3), story)
        assert not outcome.finished
        assert [(gone.host, gone.ranks) for gone in outcome.hosts_lost] == [(1, (1, 2))]
        assert re.search("closed|broken", outcome.hosts_lost[0].reason)
        assert outcome.redrawn > 0
        assert outcome.counts.frames.sum() == outcome.next // 3 * MINIBATCH
        after = runtime.segment(plan(10, 3, epoch=1))
        assert after.hosts_lost == ()
        assert after.counts.frames.tolist() == [10 * MINIBATCH, 0, 0]
        assert len(runtime.rows()) == 1
        assert len(runtime.state().vectors["row"]) == 3


def test_a_host_that_is_killed_when_all_others_have_done_their_part_leaves_it_to_them() -> None:
    """They have heard that there is nothing more to draw, and there is. (None, where the others have drawn all of it
    before that host's learner had begun.)"""
    hosts, held = Hosts("adpsgd", (1, 1), slow=60.0, slow_rank=1), []
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:

        def kill() -> None:
            assert runtime._leases is not None
            held.append(len(runtime._leases._held.get(1, ())))
            hosts.kill(1)

        story = Story((lambda glance: glance.frames > 0 and not runtime._leading, kill))
        outcome = runtime.segment(plan(5, 2), story)
        assert [gone.ranks for gone in outcome.hosts_lost] == [(1,)]
        assert outcome.finished
        assert outcome.counts.frames.tolist() == [5 * MINIBATCH, 0]
        assert sum(gone.redrawn for gone in outcome.hosts_lost) >= held[0]
        assert outcome.missing == (0, 0)


@pytest.mark.parametrize("name", ["adpsgd", "asgd", "diloco period=3 quorum=2"])
def test_a_host_comes_back_and_trains_in_the_running_segment(name: str) -> None:
    hosts = Hosts(name, (1, 1), slow=0.01, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        before: list[int] = []

        def trained(glance: Glance) -> bool:
            steps = int(runtime.local_runtime.arena.counts.steps[1])
            if glance.learners_alive < 2:
                return False
            before.append(steps)
            return steps > before[0]

        story = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, lambda: hosts.kill(1)),
            (lambda glance: glance.learners_alive == 1, lambda: hosts.start(1)),
            (trained, nothing),
        )
        outcome = runtime.segment(plan(ENDLESS, 2), story)
        assert [gone.ranks for gone in outcome.hosts_lost] == [(1,)]
        assert [(back.ranks, back.copied) for back in outcome.hosts_joined] == [
            ((1,), None if runtime.cluster.centre else 0)
        ]
        assert outcome.counts.frames.sum() == outcome.next // 2 * MINIBATCH
        after = all_train(runtime, 2, epoch=1)
        assert (after.hosts_lost, after.hosts_joined) == ((), ())


def test_a_host_joins_that_was_not_there_from_the_beginning() -> None:
    """The first trains alone until then."""
    hosts = Hosts("adpsgd", (1, 1), later=1, slow=0.01, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        story = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, lambda: hosts.start(1)),
            (lambda glance: bool(runtime.local_runtime.arena.counts.steps[1]), nothing),
        )
        outcome = runtime.segment(plan(ENDLESS, 2), story)
        assert [(back.ranks, back.copied) for back in outcome.hosts_joined] == [((1,), 0)]
        assert outcome.hosts_lost == ()
        assert outcome.counts.frames.sum() == outcome.next // 2 * MINIBATCH
        all_train(runtime, 2, epoch=1)


@pytest.mark.parametrize("name", ["adpsgd", "asgd"])
def test_a_host_that_comes_back_between_segments_trains_in_the_next(name: str) -> None:
    hosts = Hosts(name, (1, 1), slow=0.01, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        kill = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, lambda: hosts.kill(1)),
            (lambda glance: glance.learners_alive == 1, nothing),
        )
        runtime.segment(plan(ENDLESS, 2), kill)
        hosts.start(1)

        def inside() -> bool:
            runtime._hosts.attend()
            return bool(runtime._hosts.inside())

        assert until(inside, 60)
        assert [back.ranks for back in all_train(runtime, 2, epoch=1).hosts_joined] == [(1,)]


def test_a_host_of_a_node_that_comes_back_trains_from_the_next_segment_on() -> None:
    """Its learners draw together with each other, which they can only begin to do together."""
    hosts = Hosts("hadpsgd node_size=2", (2, 2), slow=0.01, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        story = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, lambda: hosts.kill(1)),
            (lambda glance: glance.learners_alive == 2, lambda: hosts.start(1)),
        )
        outcome = runtime.segment(plan(ENDLESS, 4), story)
        assert [gone.ranks for gone in outcome.hosts_lost] == [(2, 3)]
        assert outcome.counts.frames.sum() == outcome.next // 4 * MINIBATCH
        joined = list(outcome.hosts_joined)
        for epoch in count(1):  # until it is there: it has to start its learners
            outcome = runtime.segment(plan(10, 4, epoch=epoch))
            assert outcome.counts.frames.sum() == 10 * MINIBATCH
            joined += outcome.hosts_joined
            if outcome.counts.frames[2:].sum():
                break
        assert [back.ranks for back in joined] == [(2, 3)]
        assert len(runtime.rows()) == 2, "a row a node"
        last = all_train(runtime, 4, epoch=epoch + 1)
        assert (last.hosts_lost, last.hosts_joined) == ((), ())


@pytest.mark.parametrize("host", [0, 1])
def test_the_only_learner_of_a_host_is_replaced_and_goes_on_from_the_row_that_was_left(host: int) -> None:
    hosts = Hosts("adpsgd", (1, 1), slow=0.01, momentum=0.9)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:

        def kill() -> None:
            victim = runtime.process_ids()[0] if host == 0 else learners_among(_processes({hosts.running[1].pid}))[0]
            os.kill(victim, signal.SIGKILL)

        before: list[int] = []

        def trained(glance: Glance) -> bool:
            if glance.learners_alive < 2:
                return False
            before.append(int(runtime.local_runtime.arena.counts.steps[host]))
            return before[-1] > before[0]

        story = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, kill),
            (lambda glance: glance.learners_alive == 1, nothing),
            (trained, nothing),
        )
        outcome = runtime.segment(plan(ENDLESS, 2), story)
        assert [(lost.rank, lost.replaced) for lost in outcome.lost] == [(host, True)]
        assert [(joined.rank, joined.copied) for joined in outcome.joined] == [(host, host)]
        assert outcome.hosts_lost == ()
        assert outcome.counts.frames.sum() == outcome.next // 2 * MINIBATCH


def test_a_host_that_stood_still_for_too_long_comes_back_by_itself() -> None:
    """Its first link is watched with less patience than others, which any process may use up."""
    hosts = Hosts("adpsgd", (1, 1), slow=0.01)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        (remote,), session, heard = runtime._hosts.all(), hosts.running[1].pid, list[float]()

        def hurry() -> None:
            heard.append(remote.monitored.heard)
            remote.monitored._patience = 2.0

        story = Story(
            (lambda glance: glance.frames > 2 * MINIBATCH, hurry),
            (  # a wait that began before is over
                lambda glance: remote.monitored.heard > heard[0] or glance.learners_alive == 1,
                lambda: os.killpg(session, signal.SIGSTOP),
            ),
            (lambda glance: glance.learners_alive == 1, lambda: os.killpg(session, signal.SIGCONT)),
            (lambda glance: glance.learners_alive == 2, nothing),
        )
        outcome = runtime.segment(plan(ENDLESS, 2), story)
        assert "no heartbeat for 2 s" in outcome.hosts_lost[0].reason
        assert [back.ranks for back in outcome.hosts_joined] == [(1,)]
        assert outcome.counts.frames.sum() == outcome.next // 2 * MINIBATCH


@pytest.mark.parametrize("still", [(1,), (0, 1)], ids=["one", "all"])
def test_hosts_that_beat_and_get_nothing_done_are_done_without_or_end_the_run(
    still: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason does not matter: here the conductor's book forgets what they say, and is content with the others."""
    settle, settled, forgotten, steps = Leases.settle, Leases.settled, set(still), count()

    def forget(self: Leases, host: int, trained: Collection[int]) -> None:
        if host not in forgotten:
            settle(self, host, trained)

    monkeypatch.setattr(Leases, "settle", forget)
    monkeypatch.setattr(Leases, "settled", lambda self, host: settled(self, host) if host in still else next(steps))
    hosts = Hosts("adpsgd", (1, 1), slow=0.01)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        runtime._terms = dataclasses.replace(runtime._terms, patience_seconds=4.0)  # all have come by now
        story = Story((lambda glance: glance.frames > 0 and glance.learners_alive == 1, forgotten.clear))
        if still == (1,):
            outcome = runtime.segment(plan(ENDLESS, 2), story)
            assert outcome.hosts_lost[0].ranks == (1,)
            assert "it lives, but has trained nothing for 8 s" in outcome.hosts_lost[0].reason
        else:
            named = r"host 0 \(learners 0\).*nothing that was to be trained there is done for 8 s\nrank  host  alive"
            with pytest.raises(TimeoutError, match=named):
                runtime.segment(plan(ENDLESS, 2), story)


@pytest.mark.parametrize("terms", [{}, {"means": "gloo", "trusted_network": True}], ids=["chain", "gloo"])
def test_under_a_synchronous_strategy_the_missing_ranks_are_named(terms: dict[str, Any]) -> None:
    hosts = Hosts("ssgd", (1, 2), slow=0.01, terms=terms)
    named = pytest.raises(LearnerDied, match=r"learner 1 died: its host 1 is lost with learners 2: .*(closed|broken)")
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime, named:
        runtime.segment(
            plan(ENDLESS, 3),
            Story((lambda glance: glance.frames > 0, lambda: hosts.kill(1)), (lambda _: False, nothing)),
        )


def test_the_others_hear_why_a_run_has_ended() -> None:
    hosts = Hosts("adpsgd", (1, 1))
    with hosts:
        with (
            pytest.raises(UserError, match="the disk is full"),
            MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms),
        ):
            raise UserError("the disk is full")
        status, text = hosts.end(1)
        assert status
        assert "the run has ended on the first host: the disk is full" in text


CONDUCTOR = """
import sys, json
from support.clusters import plan
from support.hosts import Hosts
from roundelay.runtime.hosts.control.coordinator import MultiHostRuntime
if __name__ == "__main__":
    hosts = Hosts("adpsgd", (1, 1), slow=0.01, port=int(sys.argv[1]))
    with MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        print("begun", flush=True)
        runtime.segment(plan(10_000_000, 2))
"""


def test_a_signal_ends_a_host_that_looks_for_its_lost_first_host(tmp_path: Path) -> None:
    """Long before its patience does; nobody else could answer it."""
    script = tmp_path / "coordinator.py"
    script.write_text(CONDUCTOR)
    hosts = Hosts("adpsgd", (1, 1), slow=0.01, terms={"host_patience": 100})
    said: list[str] = []

    def say(what: str) -> None:
        said.append(what)
        if len(said) == 1:
            os.killpg(coordinator.pid, signal.SIGKILL)

    with subprocess.Popen(
        [sys.executable, str(script), str(hosts.port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as coordinator:
        place_ = place(hosts.sizes, 1, hosts.port)
        signal_ = serve(hosts.cluster, place_, hosts.all_terms, say, lambda: "SIGTERM" if len(said) > 1 else "")
    assert signal_ == "SIGTERM"
    assert "the first host is lost" in said[1]


FATAL, ROUNDS = 4, 8
"""The round of the first epoch in which a host is killed while it computes its gradient, of so many."""


def dying(victim: int) -> VirtualCluster:
    """Three learners in step, of whom one dies in round `FATAL`."""
    return VirtualCluster(
        nodes=(Node(3),),
        compute=Compute(seconds=1.0),
        exchange=0.0,
        mix=0.0,
        allreduce=Allreduce(seconds={"3": 0.0}),
        deaths=(Moment(victim, FATAL + 0.5),),
    )


@pytest.mark.parametrize(("name", "again"), [("bmuf period=3", True), ("dpsgd:random-ring", False)])
def test_a_host_comes_back_to_learners_that_wait_for_each_other_in_the_next_segment(
    name: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as in the simulator: an epoch in which it dies, one without it, and one that all begin with the state
    that a checkpoint after that would have had. If it dies as it comes, the epoch after that is without it, too. Of
    mixes, unlike means, each host may have its last one or not: what a killed process has sent may be lost."""
    lost, alike = 2 + again, name.startswith("bmuf")  # epochs; whether all have the same of the one that dies
    dies = dying(1)
    hosts = Hosts(name, (1, 1, 1), momentum=0.5, terms={"on_death": "go-on"}, fatal=3 * FATAL + 1)
    work = cluster(name, 3, Coarse(37), momentum=0.5)
    sim, whole = SimRuntime(work, CostModel(cluster=dies), goes_on=True), SimRuntime(work)
    with sim, whole, hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:

        def come_back() -> None:
            hosts.start(1)

            def built() -> bool:
                runtime._hosts.attend()
                return any(remote.late and remote.initial is not None for remote in runtime._hosts.all())

            assert until(built, 100)

        def die_as_it_comes(self: HostMembership, remote: RemoteHost) -> None:
            monkeypatch.undo()
            hosts.kill(1)
            self._welcome(remote)

        outcomes = []
        for epoch in range(lost):
            if epoch == 2:
                monkeypatch.setattr(HostMembership, "_welcome", die_as_it_comes)
                come_back()
            outcomes.append(runtime.segment(plan(ROUNDS, 3, epoch=epoch)))
            sim.segment(plan(ROUNDS, 3, epoch=epoch))
            assert not alike or torch.equal(runtime.rows(), sim.rows())
        come_back()
        whole.load(runtime.state())
        for epoch in range(lost, lost + 2):
            outcomes.append(runtime.segment(plan(ROUNDS, 3, epoch=epoch)))
            expected = whole.segment(plan(ROUNDS, 3, epoch=epoch))
            assert outcomes[-1].counts.frames.tolist() == expected.counts.frames.tolist()
            assert torch.equal(runtime.rows(), whole.rows())
        assert runtime.state().integers["steps"] == [ROUNDS * (lost + 2)] * 3
    assert [len(one.hosts_joined) for one in outcomes[:lost]] == [0] * lost
    assert [back.ranks for back in outcomes[lost].hosts_joined] == [(1,)]
    assert sum(len(one.hosts_lost) for one in outcomes) == 1, "it took part in no epoch when it died again"


@pytest.mark.parametrize(
    ("name", "sizes", "victim"),
    [
        ("bmuf period=3", (1, 1, 1), 1),
        ("dpsgd:random-ring", (1, 2), 2),
        ("ssgd", (2, 1), 1),
        ("bmuf period=3", (1, 2), 0),
        ("ssgd", (1, 1, 1), 0),
    ],
)
def test_a_learner_comes_back_to_learners_that_wait_for_each_other_in_the_next_segment(
    name: str, sizes: tuple[int, ...], victim: int, tmp_path: Path
) -> None:
    """All of a host, one of two, one of two of the first, and all of the first, which leads. Bit for bit as in the
    simulator: an epoch in which it dies, one without it, and two with the one that takes its place."""
    dies = replace(dying(victim), joins=(Moment(victim, ROUNDS + 0.5),))
    terms = {"on_death": "go-on"}
    hosts = Hosts(name, sizes, momentum=0.5, terms=terms, learner_fatal=3 * FATAL + victim, once=str(tmp_path))
    sim = SimRuntime(cluster(name, 3, Coarse(37), momentum=0.5), CostModel(cluster=dies), goes_on=True)
    with sim, hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:

        def built() -> bool:
            runtime._hosts.attend()
            runtime.local_runtime.processes.collect_replacements()
            return bool(runtime.local_runtime.processes.ready() or any(one.ready for one in runtime._hosts.all()))

        (tmp_path / "wait").touch()
        for epoch in range(4):
            if epoch == 2:
                (tmp_path / "wait").unlink()
                assert until(built, 100)
            here, there = (one.segment(plan(ROUNDS, 3, epoch=epoch)) for one in (runtime, sim))
            assert here.counts.frames.tolist() == there.counts.frames.tolist()
            assert [(lost.rank, lost.replaced) for lost in here.lost] == [(victim, True)][epoch:]
            assert here.joined == (Joined(victim, abs(victim - 1)),) * (epoch == 2)
            assert not here.hosts_lost
            assert torch.equal(runtime.rows(), sim.rows())
        assert runtime.state().integers["steps"] == [4 * ROUNDS] * 3


def test_a_host_that_may_not_come_back_hears_a_true_sentence() -> None:
    """It is started twice, in a run that a loss would end."""
    hosts = Hosts("ssgd", (1, 1), slow=0.01)
    with hosts, MultiHostRuntime(hosts.cluster, hosts.place, hosts.all_terms) as runtime:
        first = hosts.running.pop(1)
        story = Story(
            (lambda glance: glance.frames > 0, lambda: hosts.start(1)),
            (lambda _: hosts.running[1].poll() is not None, nothing),
        )
        assert runtime.segment(plan(ENDLESS, 2), story).hosts_lost == ()
        status, text = hosts.end(1)
        hosts.running[1] = first
    assert status
    assert "the first host refuses this one: under ssgd no host joins a run, or comes back to it, once it has" in text
    assert "has ended" not in text


def test_nothing_outlives_the_conductor(tmp_path: Path) -> None:
    script = tmp_path / "coordinator.py"
    script.write_text(CONDUCTOR)
    tests = str(Path(__file__).parents[1])
    hosts = Hosts("adpsgd", (1, 1), slow=0.01, terms={"host_patience": 6})  # it lives that long at most
    with hosts:
        coordinator = subprocess.Popen(
            [sys.executable, str(script), str(hosts.port)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
        )
        assert coordinator.stdout is not None
        assert coordinator.stdout.readline() == "begun\n"
        sessions = {coordinator.pid, hosts.running[1].pid}
        descriptors = [os.pidfd_open(pid) for pid in _processes(sessions)]
        assert len(descriptors) >= 4
        os.killpg(coordinator.pid, signal.SIGKILL)
        coordinator.wait()
        coordinator.stdout.close()
        status, text = hosts.end(1)
        assert status
        assert "the first host is lost" in text
        assert "goes on from its last checkpoint" in text
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 30)[0], "a process outlived the run by 30 s"
            os.close(descriptor)


def _processes(sessions: set[int]) -> list[int]:
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.getsid(pid) in sessions:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found
