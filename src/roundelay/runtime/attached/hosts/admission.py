"""Admission of learners that come back to a running session of several hosts, by the coordinator.

    first host                         a host that has come back
                  <- hello, built
    rows, welcome ->
    meet          ->                   it has links to the other hosts, where learners wait for each other
    shown, come   ->                   its learners are built, hold their lives, and wait
                  <- back
    enter         ->                   they live, after the last meeting that was conducted
                  <- columns, entered

Between `enter` and `entered` no meeting is conducted: a learner that is let in comes to the next. A learner whose host
was not lost begins with `back`. Where learners wait for each other, the rest is done when they have come to a meeting,
which is conducted then (`let_in_at`), and in which a learner of its host gives it its state (handover.py); or, where no
other lives there, one of this host, to this process:

    given         ->                   it is given its state
    columns       ->                   of others who have begun, after which it begins too
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import final

from roundelay.runtime.attached.handover import Receiver
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.membership import DIED, HOST_LOST
from roundelay.runtime.hosts.control.messages import EVERYONE, ComeBack, Enter, StatePiece
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination.passes import read

GIVEN_PIECE = 1 << 20
"""Bytes of a learner's state in one message."""


@final
class Admission:
    """Admission of learners that come back. All but `look` and `came` is called under the host's gate, by links'
    threads."""

    def __init__(self, host: SessionHost) -> None:
        self._host = host
        self._waiting: dict[int, tuple[RemoteHost, list[int]]] = {}  # by host
        self._entering: RemoteHost | None = None
        self._receivers: dict[int, Receiver] = {}  # by rank, of learners on hosts where no other lives

    @property
    def under_way(self) -> bool:
        """True while a host is being told that its learners may enter."""
        return self._entering is not None and self._entering.standing != "gone"

    def came(self, remote: RemoteHost) -> None:
        """Note that host `remote` takes part from now on. One that comes late is told the record of its learners."""
        host = self._host
        if not remote.late:
            left = host.attendance.left
            back = [rank for rank in remote.ranks if left[rank] == HOST_LOST]
            left[back] = DIED  # the host was lost before all had come
            host.arena.liveness.mark(remote.ranks, True)
            return
        source = host.here[0] if remote.copied is None else remote.copied
        record = host.columns.record(remote.ranks)

        def send() -> None:
            with suppress(LinkError):
                host.send_shown(remote.monitored, [source], EVERYONE)
                remote.monitored.say(ComeBack(), [record])

        threading.Thread(target=send, daemon=True, name=f"come {remote.host}").start()  # a slow link may take long

    def ask(self, remote: RemoteHost, ranks: Sequence[int]) -> None:
        """Note that the learners `ranks` of host `remote` have come back, and wait to be let in.

        Raises:
            InvalidMessage: one of `ranks` is not on that host, or lives.
        """
        alive = self._host.arena.liveness.alive
        if not ranks or not set(ranks) <= set(remote.ranks) or any(alive[rank] for rank in ranks):
            raise InvalidMessage(f"learners {list(ranks)} come back, who are not dead there")
        self._waiting[remote.host] = remote, list(ranks)

    def entered(self, remote: RemoteHost) -> None:
        """Note that the learners let in on host `remote` live, and that their facts are known here."""
        if self._entering is remote:
            self._entering = None

    def look(self) -> None:
        """Let in the learners that wait, if all that live are between two meetings; only where learners do not wait for
        each other."""
        host = self._host
        if host.strategy.traits.synchronous or self.under_way or not (self._waiting or host.waiting()):
            return
        meeting, living = int(host.between.conducted[0]), host.living()
        if not living or (host.attendance.met[living] != meeting + 1).any():
            return
        own = host.waiting()
        if own:
            host.give_back(own)  # minibatches drawn by learners that died with them
            host.let_in(own, meeting)
            living = host.living()
        with host.gate:
            for number, (remote, ranks) in sorted(self._waiting.items()):
                del self._waiting[number]
                if remote.standing == "in":
                    self._entering = remote
                    remote.tell(read(host.arena))  # passes, of which it hears no more unless it leads next
                    remote.tell(Enter(tuple(ranks), meeting, tuple(sorted({*living, *ranks}))))
                    return  # the next one when it has entered

    def let_in_at(self, meeting: int, cut: int) -> bool:
        """Let in the learners that wait, at a meeting to which all that live have come, if they lived when the newest
        pass under way began, in segment `cut`. Return False if a host is just being told."""
        host, may_come, there = self._host, self._host.attendance.may_come, {*self._host.meeting()}
        can_give = bool(there & {*host.here})
        own = [rank for rank in host.waiting() if can_give and may_come(rank, cut)]
        if own:
            host.let_in(own, meeting)
        with host.gate:
            for number, (remote, ranks) in sorted(self._waiting.items()):
                comes = [rank for rank in ranks if may_come(rank, cut)]
                if remote.standing == "in" and comes and (can_give or there & {*remote.ranks}):
                    del self._waiting[number]
                    self._entering = remote
                    remote.tell(Enter(tuple(comes), meeting, ()))
                    return False
        return True

    def receive(self, entering: Sequence[int], inside: Sequence[RemoteHost]) -> None:
        """Open receivers, before a meeting is conducted, for the states of learners that are let in on hosts from which
        no learner comes to it; close all others."""
        there = {*self._host.meeting()}
        wanted = {rank for one in inside if not there & {*one.ranks} for rank in one.ranks if rank in entering}
        for rank in self._receivers.keys() - wanted:
            self._receivers.pop(rank).close()
        for rank in wanted - self._receivers.keys():
            self._receivers[rank] = Receiver(self._host.request.given_name, rank)

    def pass_on(self, remote: RemoteHost) -> None:
        """Send the states that learners of host `remote` were given to it. This comes before columns of others that
        were read earlier: no learner begins a segment before one that is let in was given its state.

        Raises:
            LinkError: the host is lost.
        """
        for rank in remote.ranks if self._receivers else ():
            state = self._receivers[rank].take() if rank in self._receivers else b""
            for at in range(0, len(state), GIVEN_PIECE):
                piece = state[at : at + GIVEN_PIECE]
                remote.monitored.say(StatePiece(rank, at, at + len(piece) == len(state)), [piece])

    def close(self) -> None:
        """Close all receivers."""
        self.receive((), ())
