"""The beginning of a host that leads in the place of another (runtime/hosts/control/succession.py): passes over data,
and the living learners' knowledge of a centre that is lost.

The leader tells the next host how far passes over data have come. The others know the rest: each keeps the last
minibatches that its learners were given.

Learners that reach for a lost centre wait meanwhile (`Outbox.takes`). Their requests to the lost host come to nothing,
and are made again to this one.

Legend: L learners.
"""

import time
from collections.abc import Mapping, Sequence
from typing import final

from roundelay.algorithms.lost_centre import ROW, made_of
from roundelay.runtime.attached.between_hosts import take_mean
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.hosts.control.finding import LOOKS, PAUSE_SECONDS
from roundelay.runtime.hosts.control.membership import HostMembership
from roundelay.runtime.hosts.control.messages import DrawRequest, Stays
from roundelay.runtime.hosts.control.mirrors import bring
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
    """Sender of changes in passes over data to the host that would lead next."""

    def __init__(self) -> None:
        self._to: RemoteHost | None = None
        self._said = NO_PASSES

    def look(self, inside: Sequence[RemoteHost], now: passes.Passes) -> None:
        """Send the changes in passes since the last call, if there are any, to the first of the hosts `inside`."""
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
    """The beginning of another leader, to which the hosts that live come, each with its knowledge of passes. All but
    `complete` is called under the host's gate."""

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
        """Requests for minibatches that cannot be answered before this host has taken over."""

    def heard(self, remote: RemoteHost, message: Stays) -> None:
        """Note that a host has come, with what its `message` says of passes.

        Raises:
            InvalidMessage: it names learners of others, or not all of its own; or its learners have begun a
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
        """Return True if all awaited hosts are among those `inside`, or their time is over."""
        there = {remote.ranks for remote in inside} & self.conducted.keys()
        return self._awaited <= there or self.overdue

    @property
    def overdue(self) -> bool:
        """True once the time for hosts to come is over."""
        return time.monotonic() > self._deadline

    def settle(self) -> None:
        """Note which learners are lost, and let their last minibatches be drawn again."""
        host = self._host
        here = {*host.here, *(rank for ranks in self.conducted for rank in ranks)}
        lost = [rank for ranks in self._hosts.ranks for rank in ranks if rank not in here]
        host.lose(lost)
        passes.take_over(host.arena, self._given, lost)


def make_again(host: SessionHost, hosts: HostMembership, read: Mapping[int, int]) -> str:
    """Make the lost centre again on this host; return a sentence on its sources. Call it without the host's gate.

    Args:
        read: by rank, the version of the centre that learners have read last.

    Raises:
        TimeoutError: a host lives and does not send its learners' vectors.
    """
    arena, vector, living = host.arena, host.strategy.traits.rebuilt_from, host.living()
    while True:
        sources = made_of(vector, {rank: read.get(rank, 0) for rank in living})
        bring(hosts, arena, [vector], (), (), [rank for rank in sources if rank not in host.here])
        living = host.living()
        if {*sources} <= {*living}:  # else one was lost meanwhile, and its vector may have come in part
            break
    rows, version = arena.rows(), max((read.get(rank, 0) for rank in sources), default=0)
    found = []
    for rank in sources:
        with rows[rank].lock:
            found.append(arena.vector(vector, rank).clone())
    centre = rows[-1]
    with centre.writing():
        if found:
            take_mean(centre.vector, found, None)
        for beside in centre.memory.values():
            beside.zero_()
    arena.row_versions.versions[centre.rank] = 2 * version  # ages of reports go on from there
    host.begin_gatherings()
    host.centre_is_at(host.here[0], int(host.between.made_again[0]) + 1)
    learners = f"learner{'s' * (len(sources) > 1)} {', '.join(map(str, sources)) or 'none'}"
    what = f"the mean of the rows of {learners}" if vector == ROW else f"the centre as {learners} had read it last"
    begins = f"; beside it {', '.join(centre.memory)} begin at zero" if centre.memory else ""
    return f"the centre is lost with its host, and made again on that of learner {host.here[0]}: {what}{begins}"
