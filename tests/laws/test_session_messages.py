"""Messages between the hosts of attached learners that none of ours sends, from a host that knows the secret or from
somebody between two: nothing of one is stored, its sender counts as lost, and the host that has heard it goes on."""

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from roundelay.runtime.attached.hosts.agent import SessionAgent
from roundelay.runtime.attached.hosts.taking_over import TakingOver
from roundelay.runtime.attached.meetings import MeetingTables
from roundelay.runtime.attached.membership import HOST_LOST
from roundelay.runtime.hosts.control import finding
from roundelay.runtime.hosts.control.finding import PendingJoins
from roundelay.runtime.hosts.control.messages import EVERYONE, Common, Living, MeetingHeld, Shown, Stays
from roundelay.runtime.hosts.control.succession import KnownHosts
from roundelay.runtime.hosts.transport.heartbeat import Beat, MonitoredLink
from roundelay.runtime.messages import Dialect, InvalidMessage
from roundelay.runtime.procs.coordination.passes import PassTables
from roundelay.runtime.procs.memory.publish import publish
from support.session_hosts import PARAMETERS, SHOWN_BYTES, SessionHosts, session_hosts
from support.until import until

FOREIGN: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "no kind": ("nonsense", {}, b""),
    "columns of others": ("columns", {"ranks": [0], "everything": False}, b""),
    "columns of nobody": ("columns", {"ranks": [7], "everything": False}, b""),
    "columns twice": ("columns", {"ranks": [1, 1], "everything": False}, b""),
    "too few columns": ("columns", {"ranks": [1], "everything": False}, bytes(8)),
    "columns that are wrong in the end": ("columns", {"ranks": [1], "everything": False}, b"columns, and then -1"),
    "columns without a word": ("columns", {"ranks": [1]}, b""),
    "what others show": ("shown", {"rank": 0, "at": 0}, bytes(4)),
    "more than is shown": ("shown", {"rank": 1, "at": SHOWN_BYTES - 1}, bytes(4)),
    "shown before the beginning": ("shown", {"rank": 1, "at": -2}, bytes(4)),
    "a minibatch of others": ("draw", {"rank": 0, "number": 1, "key": [0, 0, 0], "pieces": 1}, b""),
    "a minibatch of no pass": ("draw", {"rank": 1, "number": 1, "key": [0], "pieces": 1}, b""),
    "a heartbeat of no moment": ("beat", {"sent": -1.0, "seen": [0, 0]}, b""),
    "a row of others": ("piece", {"name": "row", "rank": 0, "at": 0}, bytes(4)),
    "a row beyond its end": ("piece", {"name": "row", "rank": 1, "at": PARAMETERS}, bytes(4)),
}
TO_AGENTS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "columns of its own": ("columns", {"ranks": [1], "everything": False}, b""),
    "a minibatch for others": ("drawn", {"rank": 0, "number": 1, "index": 3}, b""),
    "a model beyond its end": ("piece", {"name": "mean", "rank": 0, "at": PARAMETERS}, bytes(4)),
    "half a number of a model": ("piece", {"name": "mean", "rank": 0, "at": 0}, bytes(3)),
    "a model in the place of a row": ("piece", {"name": "row", "rank": 0, "at": 0}, bytes(4)),
    "a mean of its own": ("piece", {"name": "mean", "rank": 1, "at": 0}, bytes(4)),
    "what its own learners show": ("shown", {"rank": 1, "at": 0}, bytes(4)),
    "the state of a learner of others": ("given", {"rank": 0, "at": 0, "last": True}, bytes(4)),
    "a state without its beginning": ("given", {"rank": 1, "at": 4, "last": True}, bytes(4)),
    "a heartbeat with half a voter": (
        "beat",
        {"sent": 1.0, "views": [{"number": [0, 1], "voters": [{"rank": 0, "life": "a"}]}]},
        b"",
    ),
    "who lives, without a number": ("living", {"generation": -1, "addresses": []}, b""),
    "who lives, and where is none": ("living", {"generation": 99, "alive": [1, 0], "addresses": [["x", -1]]}, b""),
}


@pytest.fixture(autouse=True)
def _look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a first host that is lost: it is here, and each look takes time."""
    monkeypatch.setattr(finding, "LOOKS", 1)


def payload(found: SessionHosts, name: str, data: bytes) -> bytes:
    """Columns of another meeting than is, the last of them a number that none may be, where that is asked for."""
    if not data.startswith(b"columns"):
        return data
    return np.int64(1).tobytes() + found.other.columns.read([1], False)[8:-8] + np.int64(-1).tobytes()


def stored(found: SessionHosts, at: int) -> list[Any]:
    """All that a message could have changed on host number `at`."""
    host = (found.first, found.other)[at]
    rows = [host.arena.vector("row", rank).clone() for rank in (0, 1)]
    shown = [host.arena.shown(rank).clone() for rank in (0, 1)]
    kinds = host.arena.view(MeetingTables).kind.tolist()
    return [*rows, *shown, kinds, host.between.drawn.tolist(), host.columns.read([at], True)]


def same(before: list[Any], after: list[Any]) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", FOREIGN)
def test_a_host_that_says_what_makes_no_sense_is_lost_and_nothing_of_it_is_stored(name: str) -> None:
    kind, header, data = FOREIGN[name]
    with session_hosts("adpsgd") as found:
        before = stored(found, 0)
        assert found.agent.link is not None
        found.agent.link.link.send(kind, header, [payload(found, name, data)])
        until(lambda: not found.first.arena.liveness.alive[1])
        assert found.first.attendance.left[1] == HOST_LOST
        assert found.first.arena.liveness.alive[0]
        assert same(before, stored(found, 0))
        until(lambda: bool(found.coordinator._hosts.lost))
        assert found.coordinator._hosts.lost[0].ranks == (1,)


@pytest.mark.parametrize("name", TO_AGENTS)
def test_a_first_host_that_says_what_makes_no_sense_is_lost_and_nothing_of_it_is_stored(name: str) -> None:
    kind, header, data = TO_AGENTS[name]
    with session_hosts("adpsgd") as found:
        before = stored(found, 1)
        (remote,) = found.coordinator._hosts.inside()
        remote.monitored.link.send(kind, header, [data])
        until(lambda: not found.other.arena.liveness.alive[0])
        assert found.other.attendance.left[0] == HOST_LOST
        assert found.other.arena.liveness.alive[1]
        assert same(before, stored(found, 1))


def test_whoever_reads_passes_on_the_host_that_leads_reads_what_no_other_host_changes_meanwhile() -> None:
    """As it does to tell the next host of them, while others ask for minibatches over their links."""
    with session_hosts("adpsgd") as found:
        between, queue = found.other.between, found.learners[0].queue_lock
        with found.first.arena.queue_lock:
            between.pieces[1] = 4
            publish(between.asked, 1, 1)
            found.other.bell.ring()
            time.sleep(0.2)
            assert not between.answered[1]
            assert not queue.try_acquire()
        until(lambda: bool(between.answered[1] == 1))
        with found.first.arena.queue_lock:
            assert found.first.arena.view(PassTables).next_index[0] == 1


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_a_host_that_is_started_again_before_all_are_let_in_begins_as_if_it_came_first(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first link stands open, and the host that leads has not missed it yet."""
    links, look = list[MonitoredLink](), PendingJoins.next
    # Whichever of the two looks of the host that leads finds it:
    monkeypatch.setattr(PendingJoins, "next", lambda self, wait=0.0: None if wait and links else look(self, wait))

    def come_and_say_nothing(agent: SessionAgent) -> None:
        first = agent._find(60.0)
        assert first.link.hear(Dialect(Common, Beat), 60.0) == Common(())
        links.append(first)
        time.sleep(0.2)  # for the look that had begun

    with session_hosts(strategy, come_and_say_nothing) as found:
        assert not found.agent.late
        assert found.first.arena.liveness.alive.tolist() == [1, 1]
        assert found.coordinator._hosts.news() == ((), ())
    links[0].close()


def test_a_host_that_comes_back_takes_no_part_in_a_meeting_before_it_is_told_where_the_others_are() -> None:
    """Meetings go on while it is told what it begins with, which may take long."""
    with session_hosts("adpsgd") as found:
        agent, (remote,) = found.agent, found.coordinator._hosts.inside()
        agent._begun = False  # as before that
        found.other.arena.shown(1).zero_()
        remote.monitored.say(Shown(0, 0), [bytes([7]) * 4])
        remote.tell(MeetingHeld(2, (0,)))
        remote.monitored.say(Shown(EVERYONE, 0), [bytes([8]) * 4])
        until(lambda: found.other.arena.shown(1)[0].item() == 8)
        assert found.other.arena.liveness.alive[1]
        assert found.other.between.conducted[0] == 0
        assert not agent._lost


@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_who_has_begun_a_segment_with_others_of_which_the_next_leader_has_not_heard_is_lost(strategy: str) -> None:
    """A leader tells the next one of a meeting first, but its last words may be lost; and data are cut for those who
    were present. Learners that do not wait for each other meet once more."""
    with session_hosts(strategy) as found:
        taking = TakingOver(found.first, KnownHosts(0, ranks=((0,), (1,))), ())
        (remote,) = found.coordinator._hosts.inside()
        with pytest.raises(InvalidMessage, match="meeting 2") if strategy == "ssgd" else nullcontext():
            taking.heard(remote, Stays((), 2, (), (0,)))
        assert taking.conducted == ({} if strategy == "ssgd" else {(1,): 2})
        taking.heard(remote, Stays((), 0, (), (0,)))
        assert taking.conducted == {(1,): 0}


def test_of_who_lives_the_newest_word_counts() -> None:
    """An older one that comes after it changes nothing."""
    with session_hosts("adpsgd") as found:
        addresses, ranks = tuple(found.agent.hosts.addresses), tuple(map(tuple, found.agent.hosts.ranks))
        for generation, hosts in ((99, ranks), (98, ranks[::-1])):
            found.agent._hear_who_lives(Living(generation, (1, 1), addresses, hosts))
        assert tuple(map(tuple, found.agent.hosts.ranks)) == ranks == ((0,), (1,))
