"""The beginning of a host that leads in the place of another (runtime/hosts/control/succession.py): passes over data,
and what the living know of a centre that is lost.

The leader tells the next host how far passes over data have come. What it could no longer tell, the others know: each
keeps the last minibatches that its learners were given.

Legend: L learners.
"""

import time
from collections.abc import Sequence
from typing import final

from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.hosts.control.finding import LOOKS, PAUSE_SECONDS
from roundelay.runtime.hosts.control.messages import DrawRequest, Stays
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.control.succession import KnownHosts
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination import passes

NO_PASSES = passes.Passes(0)
RECENT = 1024
"""Minibatches that a host remembers its learners were given."""

Given = tuple[int, passes.Key, int]
"""A learner's rank, a pass, and the number of a minibatch in it."""


@final
class PassReplica:
    """Tells the next host what has changed in passes."""

    def __init__(self) -> None:
        self._to: RemoteHost | None = None
        self._said = NO_PASSES

    def look(self, inside: Sequence[RemoteHost], now: passes.Passes) -> None:
        """Send it, if something has, to the first of those `inside`."""
        to = inside[0] if inside else None
        if to is None:
            return
        if to is not self._to:
            self._to, self._said = to, NO_PASSES
        if now != self._said:
            to.tell(now.since(self._said))
            self._said = now


@final
class TakingOver:
    """The beginning of another leader: hosts that live come to it, and say what they know. Called under the host's
    gate, but for `complete`."""

    def __init__(self, host: SessionHost, hosts: KnownHosts, recent: Sequence[Given]) -> None:
        self._host, self._hosts = host, hosts
        self._awaited = {tuple(hosts.ranks[number]) for number in hosts.after() if number != hosts.own}
        self._deadline = time.monotonic() + 2 * host.terms.host_patience + LOOKS * PAUSE_SECONDS
        self._given = list(recent)
        self.conducted: dict[tuple[int, ...], int] = {}
        """By the ranks of a host, the last meeting that it has heard of."""
        self.read = {rank: int(host.arena.requests.read[rank]) for rank in host.here}
        """By rank, the version of the centre that a learner has read last."""
        self.waiting: list[tuple[RemoteHost, DrawRequest]] = []
        """Requests that cannot be answered before."""

    def heard(self, remote: RemoteHost, message: Stays) -> None:
        """Note that a host has come.

        Raises:
            InvalidMessage: it names learners of others, or says too little of its own; or its learners have begun a
                segment together of which this host has not heard (one that led tells the next host first, but its last
                words may be lost).
        """
        if self._host.strategy.traits.synchronous and message.conducted > self._host.between.conducted[0]:
            raise InvalidMessage(f"meeting {message.conducted}, of which the host that leads now has not heard")
        if len(message.read) != len(remote.ranks):
            raise InvalidMessage(f"{len(message.read)} versions of the centre from learners {list(remote.ranks)}")
        if any(rank not in remote.ranks for rank, _, _ in message.given):
            raise InvalidMessage(f"minibatches of learners who are not among {list(remote.ranks)}")
        self._given += message.given[:RECENT]
        self.read |= zip(remote.ranks, message.read, strict=True)
        self.conducted[remote.ranks] = message.conducted

    def complete(self, inside: Sequence[RemoteHost]) -> bool:
        """Return True if all are there, or those who are not lost."""
        there = {remote.ranks for remote in inside} & self.conducted.keys()
        return self._awaited <= there or self.overdue

    @property
    def overdue(self) -> bool:
        """True once the time for hosts to come is over."""
        return time.monotonic() > self._deadline

    def settle(self) -> None:
        """Draw again what others held who are lost."""
        host = self._host
        here = {*host.here, *(rank for ranks in self.conducted for rank in ranks)}
        lost = [rank for ranks in self._hosts.ranks for rank in ranks if rank not in here]
        host.lose(lost)
        passes.take_over(host.arena, self._given, lost)
