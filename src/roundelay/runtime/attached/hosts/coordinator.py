"""Coordinator of a session of attached learners: the process of the first host.

Learners drive themselves; it says who takes part, passes on what each host says of its learners, conducts their
meetings, and hands out the minibatches of passes that all share. It is built of what coordinates trainings
(runtime/hosts), but gives no orders.
"""

import time
from collections.abc import Callable, Iterator
from typing import final

from roundelay.core.live import ENDED_WELL, INTERRUPTED, RUN_FAILED, HostSeen
from roundelay.runtime.attached import passes
from roundelay.runtime.attached.between_hosts import take_mean
from roundelay.runtime.attached.hosts.admission import Admission
from roundelay.runtime.attached.hosts.columns import COLUMN_SECONDS, ColumnSender
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.meetings import KINDS, MeetingTables
from roundelay.runtime.attached.membership import CLOSED, ENDED
from roundelay.runtime.attached.session_live import SessionLive
from roundelay.runtime.hosts.control.arrivals import PendingJoins
from roundelay.runtime.hosts.control.bulk import EVERYONE
from roundelay.runtime.hosts.control.coordinator import OWN_HOST
from roundelay.runtime.hosts.control.membership import HostEvents, HostMembership
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.traffic import Reading, TrafficCounters
from roundelay.runtime.hosts.transport.wire import LinkError, Message
from roundelay.runtime.procs.memory.views.work_queue import NONE

ATTEND_SECONDS = 0.02
"""Interval at which it looks who has come, and who is lost."""
WITH_MODEL = {"consensus()", "state_dict()", "close()"}
"""Meetings in which learners are shown the model to evaluate."""


@final
class SessionCoordinator:
    """Of one session."""

    late = False
    """Without the first host there is no session that it could come back to."""

    def __init__(self, host: SessionHost, router: Router, arrivals: PendingJoins) -> None:
        self._host, self._next_look = host, 0.0
        arrivals.session = host.request.number
        self._admission = Admission(host)
        events = HostEvents(self._heard, self._left, host.links.endpoint.peers, self._admission.came)
        self._hosts = HostMembership(host, router, arrivals, host.place, host.terms, events)
        self._hosts.gate = host.gate
        self._senders: dict[int, tuple[RemoteHost, ColumnSender]] = {}
        self._why = ""
        self._traffic = TrafficCounters(OWN_HOST, self._readings)
        self._live: SessionLive | None = None
        if host.request.live:
            self._live = SessionLive(host.request.live, host.arena, host.strategy, lambda: True, self._seen)

    def _readings(self) -> Iterator[Reading]:
        for remote in self._hosts.all():
            yield remote.host, remote.monitored.link.sent_bytes, remote.monitored.link.received_bytes, 0.0
        yield from self._host.links.readings()

    def _seen(self) -> tuple[HostSeen, ...]:
        return self._hosts.seen(self._traffic.bytes())

    def open(self) -> None:
        """Wait until all hosts have come, and give them what the learners of this host begin with.

        Raises:
            UserError: some did not, or one disagrees about the session; names their ranks.
        """
        hosts, host = self._hosts, self._host
        try:
            hosts.gather()
            host.links.settle(OWN_HOST, hosts.hosts, host.parameters)
            if host.strategy.traits.synchronous:
                hosts.ask("meet", "that it has met the others", addresses=hosts.addresses())
                host.links.meet(hosts.addresses())
            everybody = sorted({*host.here, *(rank for remote in hosts.inside() for rank in remote.ranks)})
            for remote in hosts.inside():
                host.send_shown(remote.monitored, host.here[:1], EVERYONE)
            host.turn(0, everybody)
            for remote in hosts.inside():
                remote.tell("meeting", number=0, present=everybody)
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            raise

    def run(self, given_up: Callable[[], bool]) -> None:
        """Until all learners have left, or this host's have `given_up`."""
        host = self._host
        try:
            while host.living() or not host.left:
                heard = host.bell.heard()
                if given_up():
                    self._why = "the learners of the first host have ended"
                    return
                self._send_columns()
                self._meet()
                if time.monotonic() > self._next_look:
                    self._next_look = time.monotonic() + ATTEND_SECONDS
                    self._hosts.attend()
                    host.notice_deaths()
                    host.links.check()
                    self._admission.look()
                    if self._live is not None:
                        self._live.look()
                host.bell.wait(heard, COLUMN_SECONDS)
            self._send_columns()
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            raise

    def close(self) -> None:
        """Tell all hosts that the session has ended. Safe to call twice."""
        if self._live is not None:
            manners = {int(manner) for manner in self._host.attendance.left}
            well = CLOSED in manners and not self._why
            self._live.end(ENDED_WELL if well else INTERRUPTED if ENDED in manners else RUN_FAILED, self._why)
            self._live = None
        self._hosts.close(self._why)

    # What the others say ----------------------------------------------------------------------------------------------

    def _send_columns(self) -> None:
        host = self._host
        for remote in self._hosts.inside():
            if remote.host not in self._senders or self._senders[remote.host][0] is not remote:
                others = [rank for rank in range(host.place.learners) if rank not in remote.ranks]
                send = _sender(remote.monitored)
                synchronous = host.strategy.traits.synchronous
                self._senders[remote.host] = remote, ColumnSender(host.columns, others, synchronous, send)
            try:
                self._senders[remote.host][1].look()
            except LinkError:
                continue  # it is lost, as its own thread will notice

    def _heard(self, remote: RemoteHost, message: Message) -> None:
        """From the thread of that host's link."""
        host = self._host
        with host.gate:
            if remote.standing != "in":
                return
            if message.kind == "columns":
                before = [rank for rank in remote.ranks if host.arena.liveness.alive[rank]]
                host.enter_columns(message, remote.ranks)
                gone = [rank for rank in before if not host.arena.liveness.alive[rank]]
                if gone:
                    host.give_back(gone)
                host.bell.ring()
                return
            if message.kind == "shown":
                host.take_shown(message, remote.ranks)
                return
            if message.kind == "back":
                self._admission.ask(remote, checks.wholes(message.header["ranks"]))
                host.bell.ring()
                return
            if message.kind == "entered":
                self._admission.entered(remote)
                host.bell.ring()
                return
            if message.kind != "draw":
                raise checks.InvalidMessage(f"{message.kind!r} is nothing that an agent says")
            header = message.header
            rank, number = checks.whole(header["rank"]), checks.whole(header["number"])
            sampler, epoch, before_ = checks.wholes(header["key"], 3)
            if rank not in remote.ranks:
                raise checks.InvalidMessage(f"a request of learner {rank}, who is not there")
            key = sampler, epoch, before_
            segment = int(host.between.conducted[0]) + 1
            index = passes.draw(host.arena, rank, key, checks.whole(header["pieces"]), segment)
        remote.tell("drawn", rank=rank, number=number, index=NONE if index is None else index)

    def _left(self, remote: RemoteHost) -> tuple[int, int]:
        """A host is lost: its learners are dead, and others draw what they had drawn last."""
        self._host.lose(remote.ranks)
        self._host.give_back(remote.ranks)
        return 0, 0

    # Meetings ---------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Conduct the next meeting, if all who live have come to it.

        A meeting has two numbers, of its beginning and of its end; learners that come to different ones notice.
        """
        host, number = self._host, int(self._host.between.conducted[0]) + 2
        present = host.living()
        if self._admission.under_way or not present or (host.attendance.met[present] < number).any():
            return
        kinds = {int(kind) for kind in host.arena.view(MeetingTables).kind[number % 2, present]}
        if len(kinds) == 1:
            self._conduct(number, KINDS[kinds.pop()], present)

    def _conduct(self, number: int, kind: str, present: list[int]) -> None:
        host, hosts = self._host, self._hosts
        host.stop_means()
        if kind in WITH_MODEL:
            centre = host.strategy.traits.model == "centre"
            holders = host.strategy.holders(tuple(present))
            hosts.ask("give", "what its learners' rows are", rows=[] if centre else list(holders))
            rows = host.arena.rows()
            if centre:
                host.model.copy_(rows[-1].vector)
            else:
                take_mean(host.model, [rows[rank].vector for rank in holders])
        for remote in hosts.inside():
            try:
                if kind in WITH_MODEL:
                    host.send_model(remote.monitored)
                    host.send_shown(remote.monitored, [rank for rank in present if rank not in remote.ranks])
                remote.monitored.send("meeting", {"number": number, "present": present})
            except LinkError:
                continue  # it is lost, as its own thread will notice
        host.turn(number, present)


def _sender(link: MonitoredLink) -> Callable[[dict[str, object], bytes], None]:
    return lambda header, data: link.send("columns", header, [data])
