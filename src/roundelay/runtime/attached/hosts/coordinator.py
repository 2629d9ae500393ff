"""Coordinator of a session of attached learners: the process of the first host.

Learners drive themselves; it says which take part, passes on each host's reports of its learners, conducts their
meetings, and hands out the minibatches of passes that all share. It is built of the parts that coordinate trainings
(runtime/hosts), but gives no orders.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.live import ENDED_WELL, INTERRUPTED, RUN_FAILED
from roundelay.runtime.attached.between_hosts import ALL_DEAD, SINCE_ANOTHER, SINCE_IT_BEGAN, TOO_FEW_HOSTS, take_mean
from roundelay.runtime.attached.hosts.admission import Admission
from roundelay.runtime.attached.hosts.agent import SessionAgent
from roundelay.runtime.attached.hosts.columns import COLUMN_SECONDS, ColumnSender
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.hosts.taking_over import PassReplica, TakingOver, make_again
from roundelay.runtime.attached.meetings import KINDS, LAST, MeetingTables
from roundelay.runtime.attached.membership import AT_MEETING, CLOSED, ENDED, LET_IN
from roundelay.runtime.attached.session_live import SessionLive
from roundelay.runtime.hosts.control import messages
from roundelay.runtime.hosts.control.finding import PendingJoins
from roundelay.runtime.hosts.control.leading import Leading
from roundelay.runtime.hosts.control.lease import Views
from roundelay.runtime.hosts.control.membership import LEAVES, HostEvents, HostMembership
from roundelay.runtime.hosts.control.mirrors import bring, names_alike
from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.hosts.terms import host_of
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.messages import InvalidMessage, Message
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import NONE

ATTEND_SECONDS = 0.1
"""Seconds between looks of the coordinator for hosts that have come or are lost."""
WITH_MODEL = {"consensus()", "state_dict()", "close()"}
"""Meetings in which learners are shown the model to evaluate."""


@final
class SessionCoordinator:
    """Coordinator of one session of attached learners."""

    late = False
    """Without the first host there is no session that it could come back to."""

    def __init__(self, host: SessionHost, arrivals: PendingJoins, before: SessionAgent | None = None) -> None:
        """`before` is the agent that this host was, where it takes the place of one that led before it."""
        self._host, self._next_look = host, 0.0
        arrivals.session = host.request.number
        self._admission = Admission(host)
        events = HostEvents(messages.OF_SESSION, self._heard, self._left, self._came, host.request.goes_on)
        self._hosts = HostMembership(host, host.links, arrivals, host.place, host.terms, events)
        self._hosts.gate = host.gate
        self._replica = PassReplica()
        self._taking_over: TakingOver | None = None
        views: Views = () if before is None else before.promise.views
        self._leading = Leading(
            host.place,
            host.terms,
            arrivals.listener,
            host.request.number,
            host.request.outlives_its_leader,
            host.bell.ring,
            views,
            frozenset() if before is None else before.ended,
        )
        if before is not None:
            self._hosts.take_over(before.hosts)
            self._taking_over = TakingOver(host, before.hosts, before.recent)
        publish(host.between.leads, 0, SINCE_IT_BEGAN if before is None else SINCE_ANOTHER)
        self._senders: dict[int, tuple[RemoteHost, ColumnSender]] = {}
        self._why, self._hands_over = "", False
        self._live: SessionLive | None = None
        if host.request.live:
            self._live = SessionLive(host.request.live, host.arena, host.strategy, lambda: True, self._hosts.seen)

    def open(self, stop: Callable[[], object] = lambda: None) -> None:
        """Wait until all hosts have come, and give them the first rows of this host's learners. `stop` is called
        meanwhile, and may raise to end the wait.

        Raises:
            UserError: hosts did not come, or one disagrees about the session; names their ranks.
        """
        hosts, host = self._hosts, self._host
        try:
            hosts.open(stop)
            self._leading.begin(hosts)
            everybody = sorted({*host.here, *(rank for remote in hosts.inside() for rank in remote.ranks)})
            for remote in hosts.inside():
                host.send_shown(remote.monitored, host.here[:1], messages.EVERYONE)
            host.turn(0, everybody)
            for remote in hosts.inside():
                remote.tell(messages.MeetingHeld(0, tuple(everybody)))
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            raise

    def run(self, given_up: Callable[[], bool]) -> None:
        """Coordinate the session until all learners have left, or `given_up` returns True for this host's learners."""
        host = self._host
        try:
            while host.living() or not host.left:
                heard = host.bell.heard()
                if host.request.goes_on and host.left:  # those that wait to be let in end, and another leads
                    host.end(ALL_DEAD)
                if given_up():
                    self._why = "the learners of the first host have ended"
                    self._hands_over = host.request.outlives_its_leader and not host.closed
                    return
                self._send_columns()
                self._meet()
                self._serve_here()
                if time.monotonic() > self._next_look:
                    self._next_look = time.monotonic() + ATTEND_SECONDS
                    self._check()
                    self._hosts.attend()
                    host.notice_deaths()
                    host.links.check()
                    self._take_over()
                    if self._taking_over is None:
                        self._admission.look()
                    if self._live is not None:
                        self._live.look()
                host.bell.wait(heard, COLUMN_SECONDS)
            self._send_columns()
        except BaseException as error:
            self._why = str(error) or type(error).__name__
            raise

    def _check(self) -> None:
        """Check that this host still leads the session.

        Raises:
            UserError: another host may lead by now.
        """
        try:
            self._leading.check()
            if self._taking_over is not None and self._taking_over.overdue and not self._leading.holds():
                raise UserError(
                    f"the host of learner {self._host.here[0]} cannot lead the session in the place of the one that is "
                    "lost: too few of the others have come, and those may follow another. Start all again, and resume."
                )
        except UserError:
            self._host.end(TOO_FEW_HOSTS)
            raise

    def close(self) -> None:
        """Tell all hosts that the session has ended. Safe to call twice."""
        if self._live is not None:
            manners = {int(manner) for manner in self._host.attendance.left}
            well = CLOSED in manners and not self._why
            self._live.end(ENDED_WELL if well else INTERRUPTED if ENDED in manners else RUN_FAILED, self._why)
            self._live = None
        if self._hands_over and self._hosts.inside():
            sys.stderr.write("roundelay: no learner of this host lives; the other hosts go on without it.\n")
            self._host.links.end_part()  # another host says from now on who takes part in means
            self._hosts.let_go()
        self._hosts.close(self._why)
        self._admission.close()

    # Messages of the others -------------------------------------------------------------------------------------------

    def _send_columns(self) -> None:
        host = self._host
        for remote in self._hosts.inside():
            if remote.host not in self._senders or self._senders[remote.host][0] is not remote:
                others = [rank for rank in range(host.place.learners) if rank not in remote.ranks]
                send = self._sender(remote)
                synchronous = host.strategy.traits.synchronous
                self._senders[remote.host] = remote, ColumnSender(host.columns, others, synchronous, send)
            try:
                self._senders[remote.host][1].look()
            except LinkError:
                continue  # it is lost, as its own thread will notice
        if host.request.outlives_its_leader:
            with host.gate:
                now = passes.read(host.arena)
            self._replica.look(self._hosts.in_turn(), now)

    def _sender(self, remote: RemoteHost) -> Callable[[messages.Columns, bytes], None]:
        def send(columns: messages.Columns, data: bytes) -> None:
            self._admission.pass_on(remote)
            remote.monitored.say(columns, [data])

        return send

    def _heard(self, remote: RemoteHost, message: Message) -> None:
        """Act on a message of host `remote`, on the thread of its link."""
        host, answer = self._host, None
        with host.gate:
            if isinstance(message, messages.Stays) and self._taking_over is not None:
                self._taking_over.heard(remote, message)
                self._leading.stays(message.views)
                return
            if remote.standing != "in":
                return
            match message:
                case messages.Columns():
                    self._take_columns(remote, message)
                case messages.LeaderHeard():
                    self._leading.heard(remote, message)
                case messages.Shown():
                    host.take_shown(message, remote.ranks)
                case messages.Back():
                    self._admission.ask(remote, message.ranks)
                case messages.Entered():
                    self._admission.entered(remote)
                case messages.DrawRequest():
                    answer = self._answer(remote, message)
                case _:
                    raise InvalidMessage(f"{message.kind!r} is not due")
        if answer is not None:
            remote.tell(answer)
        else:
            host.bell.ring()

    def _take_columns(self, remote: RemoteHost, message: messages.Columns) -> None:
        host = self._host
        before = [rank for rank in remote.ranks if host.arena.liveness.alive[rank]]
        host.enter_columns(message, remote.ranks)
        gone = [rank for rank in before if not host.arena.liveness.alive[rank]]
        if gone:
            host.give_back(gone)

    def _answer(self, remote: RemoteHost, request: messages.DrawRequest) -> messages.Drawn | None:
        """Return the answer to a request for a minibatch, under the gate; None if it is given after taking over."""
        if request.rank not in remote.ranks:
            raise InvalidMessage(f"a request of learner {request.rank}, who is not there")
        if self._taking_over is not None:
            self._taking_over.waiting.append((remote, request))
            return None
        return messages.Drawn(request.rank, request.number, self._draw(request))

    def _draw(self, request: messages.DrawRequest) -> int:
        """Draw the minibatch that `request` asks for, under the gate; return its number, or NONE."""
        segment = int(self._host.between.conducted[0]) + 1
        index = passes.draw(self._host.arena, request.rank, request.key, request.pieces, segment, request.keep)
        return NONE if index is None else index

    def _serve_here(self) -> None:
        """Answer requests of this host's learners for minibatches, which they make where another host led before."""
        between = self._host.between
        for rank in self._host.here:
            if between.asked[rank] != between.answered[rank] and self._taking_over is None:
                request = between.request(rank)
                with self._host.gate:
                    index = self._draw(request)
                between.answer(rank, request.number, index)

    def _came(self, remote: RemoteHost) -> None:
        """Note that host `remote` takes part from now on, and tell it where the centre is."""
        self._admission.came(remote)
        self._leading.came(remote, self._hosts)
        self._tell_centre(remote)

    def _left(self, remote: RemoteHost, reason: str) -> int:
        """Note that host `remote` is lost: its learners are dead, and others draw their last minibatches again."""
        emptied = not self._host.arena.liveness.alive[list(remote.ranks)].any()
        if not emptied and reason != LEAVES:
            sys.stderr.write(f"roundelay: {host_of(remote.ranks)} is lost: {reason}\n")
        self._leading.left(remote, self._hosts, emptied)
        self._host.lose(remote.ranks)
        self._host.give_back(remote.ranks)
        return 0

    def _take_over(self) -> None:
        """Begin to lead in the place of another host, once all hosts that live have come."""
        taking, host = self._taking_over, self._host
        if taking is None or not taking.complete(self._hosts.inside()) or not self._leading.holds():
            return
        self._leading.begin(self._hosts)
        with host.gate:
            taking.settle()
            self._taking_over, self._hosts.takes_over = None, False
            answers = [(remote, request, self._draw(request)) for remote, request in taking.waiting]
        for remote, request, index in answers:
            remote.tell(messages.Drawn(request.rank, request.number, index))
        if host.arena.layout.centre:
            sys.stderr.write(f"roundelay: {make_again(host, self._hosts, taking.read)}\n")
            for remote in self._hosts.inside():
                self._tell_centre(remote)
        self._send_columns()
        number, present = int(host.between.conducted[0]), host.attendance.present
        were, let_in = (tuple(np.flatnonzero(present == manner).tolist()) for manner in (AT_MEETING, LET_IN))
        for remote in self._hosts.inside():
            if taking.conducted.get(remote.ranks, number) < number:  # it has not heard of the last meeting
                self._tell_meeting(remote, messages.MeetingHeld(number, were, let_in), with_model=True)
        host.links.leader = self._hosts.own  # from here on it says which learners take part in means

    def _tell_centre(self, remote: RemoteHost) -> None:
        """Tell host `remote` which host has the centre, if one has."""
        arena = self._host.arena
        rank = int(arena.requests.centre[0])
        if arena.layout.centre and rank != NONE:
            remote.tell(messages.CentreAt(rank, int(self._host.between.made_again[0])))

    # Meetings ---------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Conduct the next meeting, if all learners that live have come to it.

        A meeting has two numbers, of its beginning and of its end; learners that come to different meetings notice.
        """
        host, number = self._host, int(self._host.between.conducted[0]) + 2
        present = host.meeting()
        if host.between.made_again[0]:
            host.finish_gatherings(number)
        waits = self._admission.under_way or self._taking_over is not None
        if waits or not present or (host.attendance.met[present] < number).any():
            return
        kinds = {int(kind) for kind in host.arena.view(MeetingTables).kind[number % 2, present]}
        if len(kinds) != 1:
            return
        kind, cut = KINDS[kinds.pop()], int(host.attendance.cut[present[0]])
        self._send_columns()  # learners that are let in have heard that all have come
        if host.request.goes_on and kind != LAST and not self._admission.let_in_at(number, cut):
            return
        self._send_columns()  # before all hear of the meeting: those who were let in at it live
        self._conduct(number, kind, present)

    def _conduct(self, number: int, kind: str, present: list[int]) -> None:
        host, hosts = self._host, self._hosts
        host.links.end_part()
        if kind in WITH_MODEL:
            centre = host.strategy.traits.model == "centre"
            holders = host.strategy.holders(tuple(present))
            here = [rank for rank in present if rank in host.here]
            elsewhere = [] if centre else [rank for rank in holders if rank not in host.here]
            bring(hosts, host.arena, ["row"], names_alike(host.strategy, ()), here, elsewhere)
            rows = host.arena.rows()
            if centre:
                host.model.copy_(rows[-1].vector)
            else:
                take_mean(host.model, [rows[rank].vector for rank in holders], host.arena.shares(holders))
        host.begin_gatherings()
        let_in = host.entering()
        self._admission.receive(let_in, hosts.inside())
        held = messages.MeetingHeld(number, tuple(present), tuple(let_in))
        for remote in hosts.in_turn():  # the host that may lead next is never behind the others
            self._tell_meeting(remote, held, kind in WITH_MODEL)
        host.turn(number, present, let_in)

    def _tell_meeting(self, remote: RemoteHost, held: messages.MeetingHeld, with_model: bool) -> None:
        host = self._host
        with suppress(LinkError):  # it is lost, as its own thread will notice
            if with_model:
                host.send_model(remote.monitored, remote.ranks)
                host.send_shown(remote.monitored, [rank for rank in held.present if rank not in remote.ranks])
            remote.monitored.say(held)
