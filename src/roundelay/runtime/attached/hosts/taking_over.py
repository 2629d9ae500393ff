"""The beginning of a host that leads in the place of another (runtime/hosts/control/succession.py): passes over data.

The leader tells the next host how far passes over data have come. What it could no longer tell, the others know: each
keeps the last minibatches that its learners were given.

Legend: L learners.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from roundelay.runtime.attached import passes
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.passes import PassTables
from roundelay.runtime.hosts.control.finding import LOOKS, PAUSE_SECONDS
from roundelay.runtime.hosts.control.messages import DrawRequest, Passes, Stays
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.control.succession import KnownHosts
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.views import NONE

RECENT = 1024
"""Minibatches that a host remembers its learners were given."""

Given = tuple[int, passes.Key, int]
"""A learner's rank, a pass, and the number of a minibatch in it."""


@final
class Recent:
    """The last minibatches that the learners of this host were given, in turn."""

    def __init__(self) -> None:
        self._given: deque[Given] = deque(maxlen=RECENT)

    def note(self, rank: int, key: passes.Key, index: int) -> None:
        """One was given."""
        if index != NONE:
            self._given.append((rank, key, index))

    def all(self) -> tuple[Given, ...]:
        """Return all of them."""
        return tuple(self._given)


def of_these(given: Sequence[Given], ranks: Sequence[int]) -> Sequence[Given]:
    """Return minibatches that learners of a host with these ranks were given.

    Raises:
        InvalidMessage: they are others'.
    """
    if any(rank not in ranks for rank, _, _ in given):
        raise InvalidMessage(f"minibatches of learners who are not among {list(ranks)}")
    return given[:RECENT]


def _tables(arena: Arena) -> Mapping[str, Any]:
    view = arena.view(PassTables)
    return {
        "keys": view.keys,
        "next": view.next_index[:, None],
        "segment": view.segment[:, None],
        "returned": view.returned,
    }


@final
class PassReplica:
    """Tells the next host what has changed in passes."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._to: RemoteHost | None = None
        self._rows = self._held = np.zeros((0, 0), np.int64)

    def look(self, inside: Sequence[RemoteHost]) -> None:
        """Send it, if something has.

        Raises:
            LinkError: that host is gone.
        """
        to = min(inside, key=lambda remote: remote.host, default=None)
        if to is None:
            return
        rows, view = np.concatenate([*_tables(self._arena).values()], 1), self._arena.view(PassTables)
        held, count = view.held.copy(), int(view.count[0])
        whole = to is not self._to
        changed = [slot for slot in range(len(rows)) if whole or (rows[slot] != self._rows[slot]).any()]
        if changed or whole or (held != self._held).any():
            to.monitored.say(Passes(tuple(changed), count), [rows[changed].tobytes() + held.tobytes()])
            self._to, self._rows, self._held = to, rows, held


def enter_replica(arena: Arena, message: Passes) -> None:
    """Store what `PassReplica` has sent: all of it, or nothing.

    Raises:
        InvalidMessage: it is none.
    """
    tables, view = _tables(arena), arena.view(PassTables)
    slots, wide = list(message.slots), sum(table.shape[1] for table in tables.values())
    numbers = np.frombuffer(bytes(message.payload), np.int64)
    if len(numbers) != len(slots) * wide + view.held.size:
        raise InvalidMessage(f"{len(numbers)} numbers are no passes")
    rows, held = numbers[: len(slots) * wide].reshape(-1, wide), numbers[len(slots) * wide :].reshape(view.held.shape)
    if (rows < 0).any() or (held < NONE).any() or (held[:, 0] >= passes.PASS_SLOTS).any():
        raise InvalidMessage("a pass with a number below 0, or of no slot")
    if (rows[:, wide - view.returned.shape[1]] >= view.returned.shape[1]).any():
        raise InvalidMessage("a pass of which more minibatches are given back than learners may hold")
    with arena.queue_lock:
        at = 0
        for table in tables.values():
            table[slots] = rows[:, at : at + table.shape[1]]
            at += table.shape[1]
        view.held[:], view.count[0] = held, message.count


@final
class TakingOver:
    """The beginning of another leader: hosts that live come to it, and say what they know. Called under the host's
    gate, but for `complete`."""

    def __init__(self, host: SessionHost, hosts: KnownHosts, recent: Recent) -> None:
        self._host, self._hosts = host, hosts
        self._awaited = {tuple(hosts.ranks[number]) for number in hosts.after() if number != hosts.own}
        self._deadline = time.monotonic() + 2 * host.terms.host_patience + LOOKS * PAUSE_SECONDS
        self._given = list(recent.all())
        self.conducted: dict[tuple[int, ...], int] = {}
        """By the ranks of a host, the last meeting that it has heard of."""
        self.waiting: list[tuple[RemoteHost, DrawRequest]] = []
        """Requests that cannot be answered before."""

    def heard(self, remote: RemoteHost, message: Stays) -> None:
        """A host has come.

        Raises:
            InvalidMessage: it names learners of others.
        """
        self._given += of_these(message.given, remote.ranks)
        self.conducted[remote.ranks] = message.conducted

    def complete(self, inside: Sequence[RemoteHost]) -> bool:
        """Are all there, or those who are not lost?"""
        there = {remote.ranks for remote in inside} & self.conducted.keys()
        return self._awaited <= there or self.overdue

    @property
    def overdue(self) -> bool:
        """Nobody comes any more."""
        return time.monotonic() > self._deadline

    def settle(self) -> None:
        """Others are lost, and what they held is drawn again."""
        host = self._host
        here = {*host.here, *(rank for ranks in self.conducted for rank in ranks)}
        lost = [rank for ranks in self._hosts.ranks for rank in ranks if rank not in here]
        host.lose(lost)
        passes.take_over(host.arena, self._given, lost)
