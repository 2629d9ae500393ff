"""Shared memory has one door: each table belongs to one view, all processes see the same, and what others act on
without a lock is published."""

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.elastic import Pull
from roundelay.core.effects import Exchange
from roundelay.runtime.attached.between_hosts import BetweenHosts
from roundelay.runtime.attached.meetings import MeetingTables, SaveTables
from roundelay.runtime.attached.membership import CLOSED, Attendance, Membership
from roundelay.runtime.attached.settings import SettingsTables
from roundelay.runtime.attached.shares import Inputs, InputTables, ShareTables
from roundelay.runtime.attached.turns import TurnTables
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.hosts.means import MeanLinks
from roundelay.runtime.procs.coordination import means as procs_means
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.coordination.passes import PassTables
from roundelay.runtime.procs.memory import publish as publishing
from roundelay.runtime.procs.memory.arena import ARENA_NAME, VIEWS, Arena, Layout, create_file
from roundelay.runtime.procs.memory.bell import bell_of_means, bell_of_session
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import BellTable, Counters, GatheringNumbers, HostMeanSequences, Sizes, View
from support.clusters import plan
from support.mean_hosts import MeanHost, end, linked, mean_host
from support.two_hosts import ask, hosts, train
from support.until import together

FURTHER: tuple[type[View], ...] = (
    *(HostMeanSequences, BellTable, Attendance, PassTables, MeetingTables, VoteTables, InputTables, BetweenHosts),
    *(SaveTables, SettingsTables, ShareTables, TurnTables),
)
WHOLE = (Counters, GatheringNumbers)
"""Views that are one object with all their tables."""
LAYOUT = Layout(3, 40, ("m",), centre=True, scalars=2, views=FURTHER, shown_bytes=5, tensors=70)


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    """Of two learners, each with a mapping and a descriptor of its own."""
    found = two_arenas(LAYOUT)
    yield found
    for arena in found:
        arena.close()


def two_arenas(layout: Layout) -> tuple[Arena, Arena]:
    descriptor = create_file(layout)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return Arena(descriptor, layout, Patience(0, 60)), Arena(again, layout, Patience(1, 60))


def arrays(arena: Arena) -> dict[tuple[str, str], Any]:
    """All tables, by view and name."""
    found: dict[tuple[str, str], Any] = {}
    for view in (*VIEWS, *FURTHER):
        opened = arena.view(view)
        tables = vars(*vars(opened).values()) if isinstance(opened, WHOLE) else vars(opened)
        found |= {(view.__name__, name): table for name, table in tables.items()}
    return found


def test_a_bell_wakes_all_who_wait_in_other_processes_and_no_ring_is_lost(arenas: tuple[Arena, Arena]) -> None:
    """A wait begun before a ring ends by it, and one begun after it, for a ring that was not heard yet, at once."""
    mine, theirs, other = bell_of_means(arenas[0]), bell_of_means(arenas[1]), bell_of_session(arenas[1])
    for _ in range(20):
        heard = theirs.heard()
        waiting = [threading.Thread(target=theirs.wait, args=(heard, 600.0), daemon=True) for _ in range(2)]
        waiting[0].start()
        mine.ring()
        waiting[1].start()
        for thread in waiting:
            thread.join(60)
            assert not thread.is_alive()
        assert theirs.heard() != heard
    assert other.heard() == 0
    alone = Layout(1, 1)
    on_one_host = bell_of_means(Arena(create_file(alone), alone, Patience(0, 60)))
    on_one_host.ring()
    assert on_one_host.heard() == 0


# Maps ---------------------------------------------------------------------------------------------------------------


def maps_of(arena: Arena) -> int:
    """Maps of the arena in this process."""
    inode = str(os.fstat(arena.descriptor).st_ino)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.split()[4] == inode and ARENA_NAME in line for line in lines)


def test_a_process_maps_the_arena_once_however_many_learners_elsewhere_it_speaks_to() -> None:
    """Every learner elsewhere has sessions here, with descriptors and locks of their own. Were each to map the arena, a
    host would need addresses by the square of the learners."""
    with hosts([0, 1, 1, 1], "easgd") as (zero, one):
        before = maps_of(zero.arena), maps_of(one.arena)
        for worker in one.workers.values():
            ask(worker, Exchange(0, pair_average_))
            ask(worker, Exchange(4, Pull(0.3)))
        assert len(zero.server._sessions) == 6
        assert before == (1 + len(zero.workers), 1 + len(one.workers)), "one of the host's, and of each learner's"
        assert (maps_of(zero.arena), maps_of(one.arena)) == before


# Tables and their owners ----------------------------------------------------------------------------------------------


def test_a_store_into_a_table_is_seen_by_other_processes_in_that_table_and_in_no_other(
    arenas: tuple[Arena, Arena],
) -> None:
    mine, theirs = (arrays(arena) for arena in arenas)
    vectors = [arenas[0].vector(name, rank) for name in LAYOUT.vectors for rank in range(3)]
    for number, vector in enumerate([*vectors, arenas[0].rows()[-1].vector]):
        vector.fill_(-number)
    for number, table in enumerate(mine.values(), 1):
        table[...] = number
    assert len(mine) == sum(1 for _ in LAYOUT.tables())
    for number, (name, table) in enumerate(theirs.items(), 1):
        assert (table == number).all(), name
        assert not table.size or not np.shares_memory(table, mine[name])
    for number, vector in enumerate([arenas[1].vector(name, rank) for name in LAYOUT.vectors for rank in range(3)]):
        assert (vector == -number).all()


def every_view() -> list[type[View]]:
    return [view for view in View.__subclasses__() if view.__module__.startswith("roundelay.")]


def test_every_table_has_one_owner() -> None:
    """A view has a field for each of its tables, and every view is known here."""
    assert set(every_view()) == {*VIEWS, *FURTHER}
    for view in every_view():
        tables = view.tables(Sizes(3, True, 2, 70))
        names = {item.name for item in dataclasses.fields(view)}  # type: ignore[arg-type]  # all are dataclasses
        assert set(tables) == names or view in WHOLE
        assert set(view.PUBLISHED) <= set(tables)


# Publishing -----------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Stores into tables that others act on without a lock: how many there were, and which had no fence before."""

    published: int = 0
    bare: list[str] = field(default_factory=list)
    fenced: threading.local = field(default_factory=threading.local)

    def fence(self) -> None:
        self.fenced.now = True

    def store(self, name: str | None, key: Any) -> None:
        fenced, self.fenced.now = getattr(self.fenced, "now", False), False
        if name is not None and not (isinstance(key, slice) and key == slice(None)):  # a segment begins by plain stores
            self.published += 1
            if not fenced:
                self.bare.append(name)


class Watched(np.ndarray[Any, Any]):
    """A table whose stores are watched."""

    watch: Watch | None = None
    name: str | None = None

    def __array_finalize__(self, made_of: Any) -> None:
        self.watch, self.name = getattr(made_of, "watch", None), getattr(made_of, "name", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.watch is not None:
            self.watch.store(self.name, key)
        super().__setitem__(key, value)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """On all arenas that are opened in a test, as on a processor that needs a fence."""
    found = Watch()
    monkeypatch.setattr(publishing, "_fence", None)  # put back in the end
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(publishing, "kernel_fence", lambda _: found.fence)
    for view in every_view():

        def on(made: Any, view: type[View] = view) -> View:
            watched = {}
            for name, array in made.items():
                watched[name] = array.view(Watched)
                watched[name].watch, watched[name].name = found, name if name in view.PUBLISHED else None
            return original(view)(watched)

        monkeypatch.setattr(view, "on", staticmethod(on))
    return found


ORIGINAL = {view: vars(view)["on"].__func__ if "on" in vars(view) else View.on.__func__ for view in every_view()}  # type: ignore[attr-defined]


def original(view: type[View]) -> Callable[[Any], View]:
    return lambda arrays: ORIGINAL[view](view, arrays)


def means_of_one_host() -> None:
    arenas = two_arenas(Layout(2, 1000))
    arenas[0].liveness.mark((0, 1), True)
    members = [Means(arena, rank, Patience(rank, 60)) for rank, arena in enumerate(arenas)]

    def learn(member: Means, other: int) -> None:
        for number in range(3):
            member.publish_gradient(1.0, (0, 1))
            member.collect((0, 1))
            member.publish(torch.full((1000,), float(number)), 1.0, readers=(other,))
            assert (member.collect_neighbours(((0, 0.5), (1, 0.5))) == number).all()

    together(lambda: learn(members[0], 1), lambda: learn(members[1], 0))
    for arena in arenas:
        arena.close()


def means_of_two_hosts() -> None:
    with linked([(0, 1)]) as chain, linked([(0, 1)]) as mixes:
        given = [MeanLinks([[0], [1]], rank, chain[rank], mixes[rank]) for rank in range(2)]
        sides = [mean_host(1000, one) for one in given]
        together(lambda: take_means(sides[0], 0), lambda: take_means(sides[1], 1))
        end(sides)
    assert not [failure for one in sides for failure in one.failures]


def take_means(side: MeanHost, rank: int) -> None:
    means = side.means[rank]
    for number in range(3):
        lay = means.announce_gradient(1.0, (0, 1), side.arena.vector("row", rank))
        assert lay is not None
        side.arena.vector("gradient", rank).fill_(number)
        lay(500)
        lay(0)
        assert (means.collect((0, 1)) == number).all()
        means.publish(torch.full((1000,), float(number)), 1.0, readers=(1 - rank,))
        assert (means.collect_neighbours(((0, 0.5), (1, 0.5))) == number).all()


def exchanges_of_two_hosts() -> None:
    with hosts([0, 1]) as found:
        answers = train(found, plan(4, 2, rate=0.1))
        assert [answer.problem for answer in answers] == ["", ""]


def attached_learners() -> None:
    arenas = two_arenas(LAYOUT)

    def learn(rank: int) -> None:
        member, ranks = Membership(arenas[rank], rank, Patience(rank, 60), lambda _: None), (0, 1)
        member.enter()
        member.gather(ranks, lambda: None)
        Inputs(arenas[rank].view(InputTables), rank).note(7)
        member.meetings.begin("meet()")
        member.meet("everybody", needed=True)
        member.leave(CLOSED)

    together(lambda: learn(0), lambda: learn(1))
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize(("rounds", "met"), [(0, 1), (1, 1), (0, 2)])
def test_a_learner_that_has_begun_and_left_had_attached(rounds: int, met: int) -> None:
    mine, theirs = two_arenas(LAYOUT)
    member = Membership(mine, 1, Patience(1, 60), lambda _: None)
    member.enter()
    theirs.view(Attendance).met[0], theirs.queue.rounds[0] = met, rounds  # and it lives no more
    try:
        with nullcontext() if rounds or met > 1 else pytest.raises(LearnerDied, match="before all learners"):
            member.gather((0, 1), lambda: None)
    finally:
        member.leave(CLOSED)
        for arena in (mine, theirs):
            arena.close()


@pytest.mark.parametrize("work", [means_of_one_host, means_of_two_hosts, exchanges_of_two_hosts, attached_learners])
def test_whatever_others_act_on_without_a_lock_is_published(watch: Watch, work: Callable[[], None]) -> None:
    work()
    assert watch.published > 5
    assert not watch.bare


def test_learners_that_wait_in_means_over_hosts_are_rung_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ring nobody would look again before all have lost their patience."""
    monkeypatch.setattr(procs_means, "RUNG_PAUSES", (90.0, 90.0))
    began = time.monotonic()
    means_of_two_hosts()
    assert time.monotonic() - began < 90


def test_the_test_before_this_one_notices_a_plain_store(watch: Watch) -> None:
    arenas: Sequence[Arena] = two_arenas(LAYOUT)
    publish(arenas[0].requests.asked, 1, 1)
    assert (watch.published, watch.bare) == (1, [])
    arenas[0].requests.asked[1] = 2
    arenas[0].requests.done[1] += 1
    arenas[0].requests.version[1] = 3
    assert watch.bare == ["asked", "done"]
    for arena in arenas:
        arena.close()
