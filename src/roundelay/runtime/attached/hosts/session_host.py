"""A host in a session of attached learners: the arena of its learners, and its links to other hosts.

The same on the first host, whose process coordinates the session (coordinator.py), and on every other (agent.py).

Legend: P parameters.
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch

from roundelay.algorithms.local_update import Sgd
from roundelay.learner.base import TimingOnly
from roundelay.runtime.attached.between_hosts import BetweenHosts, model_to_evaluate, place_of_model
from roundelay.runtime.attached.hosts.columns import SharedColumns
from roundelay.runtime.attached.hosts.starting import SessionRequest
from roundelay.runtime.attached.membership import (
    AT_MEETING,
    CLOSED,
    DIED,
    HOST_LOST,
    LET_IN,
    Attendance,
    forget_absent,
    let_in,
)
from roundelay.runtime.base import Cluster
from roundelay.runtime.gathering import Gatherings
from roundelay.runtime.hosts.control.bulk import send_vector
from roundelay.runtime.hosts.control.host_links import HostLinks
from roundelay.runtime.hosts.control.messages import EVERYONE, Columns, Shown
from roundelay.runtime.hosts.exchange.notes import NO_NOTES, RecordedExchanges
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.cluster_rows import ClusterRows
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.lives import DeathWatch, life_lock
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import bell_of_session
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.row_host import mapped
from roundelay.runtime.trace import session_folder

PROCESS = -1
"""Takes the place of a rank in messages about a wait of this process."""
SHOWN_PIECE = 1 << 20
"""Bytes in one message, of those that a learner shows."""


@final
class SessionHost:
    """One host in one session, in its process for other hosts. It opens the arena anew, with locks of its own.

    Args:
        descriptor: descriptor of the arena, with the rows that its learners have begun with.
    """

    shards: tuple[int, ...] = ()
    """Empty: a session does not know the data on which the user's loop trains."""
    common: tuple[float, ...] = ()

    def __init__(self, request: SessionRequest, descriptor: int, router: Router) -> None:
        self.request, self.place, self.terms = request, request.place, request.terms
        self.strategy, self.here, self.parameters = request.strategy, request.place.ranks, request.parameters
        self.elsewhere = [rank for rank in range(self.place.learners) if rank not in self.here]
        path, layout = f"/proc/{os.getpid()}/fd/{descriptor}", request.layout
        patience = Patience(PROCESS, self.terms.patience_seconds)
        here = [rank in self.here for rank in range(layout.learners)]
        there = None if request.rows is None else mapped(request.rows, ("row",), layout.parameters, False, here)
        self.arena = arena = Arena(os.open(path, os.O_RDWR | os.O_CLOEXEC), layout, patience, there)
        self.cluster = Cluster(self.strategy, TimingOnly(), Sgd(), self.place.learners)  # the loop has the rest
        self.cluster_rows = ClusterRows(self.cluster, arena, self.here, arena.vector("row", self.here[0]).clone())
        self._lives = [life_lock(arena, rank, patience) for rank in self.elsewhere]
        for life in self._lives:
            life.acquire()
        self.gate = threading.RLock()
        """Held to change the set of learners that take part, or to hand out minibatches: no thread of a link does so
        while the arena is closed."""
        self.attendance, self.between = arena.view(Attendance), arena.view(BetweenHosts)
        self.columns = SharedColumns(arena)
        self.bell = bell_of_session(arena)
        """Bell that learners ring, and threads that hear from other hosts."""
        self.model = model_to_evaluate(arena, self.here)
        """The model of all learners, (P,), after a meeting."""
        self._watch = DeathWatch(arena, lambda rank: passes.give_back(arena, rank))
        self.links = HostLinks(self.place, self.terms, router, self.strategy)
        record = session_folder(Path(request.record), request.number) if request.record else None
        self.wakes = self.links.endpoint.open(arena, NO_NOTES if record is None else RecordedExchanges(record))
        """By rank, the path of the pipe that wakes the carrier of a learner's exchanges."""

    # Learners ---------------------------------------------------------------------------------------------------------

    def living(self) -> list[int]:
        """Return the ranks of the learners that live, on all hosts."""
        return self.arena.liveness.living()

    @property
    def closed(self) -> bool:
        """True if all learners of this host have left by closing the session."""
        return bool((self.attendance.left[list(self.here)] == CLOSED).all())

    @property
    def left(self) -> bool:
        """True if all learners of this host have entered the session, and live no more."""
        here = list(self.here)
        return bool(self.attendance.met[here].all()) and not self.arena.liveness.alive[here].any()

    def meeting(self) -> list[int]:
        """Return the ranks that live and come to meetings, on all hosts: all but those that are let in and have not
        begun."""
        return [rank for rank in self.living() if not self.attendance.entering[rank]]

    def entering(self) -> list[int]:
        """Return the ranks that live, are let in and have not begun, on all hosts."""
        return [rank for rank in self.living() if self.attendance.entering[rank]]

    def notice_deaths(self) -> None:
        """Notice deaths of learners of this host; not more often than now and then."""
        self._watch.look(self.here)

    def waiting(self) -> list[int]:
        """Return the ranks of this host whose learners have come back, and wait to be let in."""
        back, last = self.attendance.back, self.attendance.let_in
        return [rank for rank in self.here if back[rank] != last[rank]]

    def processes_back(self) -> list[int]:
        """Return the process ids of learners of this host that have come back."""
        found = self.between.process[list(self.here)]
        return [int(process) for process in found if process]

    def let_in(self, ranks: Sequence[int], meeting: int) -> None:
        """Let `ranks` of this host, which have come back, train in the segment after `meeting`, the last that has been
        conducted; or, where learners wait for each other, begin with the others' next step."""
        here, attendance = list(ranks), self.attendance
        if self.request.goes_on:
            let_in(self.arena, here)
            return
        attendance.left[here] = DIED
        publish(attendance.met, here, meeting + 1)
        self.arena.liveness.mark(here, True)
        publish(attendance.let_in, here, attendance.back[here])

    def give_back(self, ranks: Sequence[int]) -> None:
        """Let other learners draw the last minibatches of `ranks`, which are dead."""
        with self.gate:
            if self.arena.descriptor >= 0:
                with self.arena.queue_lock:
                    for rank in ranks:
                        passes.give_back(self.arena, rank)

    def lose(self, ranks: Sequence[int]) -> None:
        """Note that the host of the learners `ranks` is lost."""
        for rank in ranks:
            if self.attendance.left[rank] == DIED:
                self.attendance.left[rank] = HOST_LOST
        self.arena.liveness.mark(list(ranks), False)

    def centre_is_at(self, rank: int, made_again: int) -> None:
        """Note that the centre is on the host of learner `rank`, and how often it was `made_again`."""
        self.between.made_again[0] = made_again
        publish(self.arena.requests.centre, 0, rank)

    def end(self, reason: int) -> None:
        """Note that learners of other hosts will not be heard of again, for one of the reasons of between_hosts.py."""
        if not self.between.over[0]:
            publish(self.between.over, 0, reason)

    # Segments ---------------------------------------------------------------------------------------------------------

    def begin_gatherings(self) -> None:
        """Begin this segment's gatherings of all learners, at the model of the last gathering."""
        with self.arena.queue_lock:
            Gatherings(self.arena.gatherings).begin_part(time.monotonic())

    def finish_gatherings(self, meeting: int) -> None:
        """Let gatherings wait no more for learners that have come to meeting `meeting`: where another host led, others
        do not know that these have finished."""
        with self.arena.queue_lock:
            Gatherings(self.arena.gatherings).finish(
                [rank for rank in self.living() if self.attendance.met[rank] >= meeting]
            )

    def turn(self, meeting: int, present: Sequence[int], let_in: Sequence[int] = ()) -> None:
        """Note that meeting `meeting` is conducted: its results are in the arena. The learners that are `present` may
        begin the next segment, and with them those that are `let_in` and have not begun."""
        self.links.begin_part(self.arena, meeting)
        self.attendance.present[:] = 0
        self.attendance.present[list(present)], self.attendance.present[list(let_in)] = AT_MEETING, LET_IN
        if self.request.goes_on:
            forget_absent(self.arena)
        publish(self.between.conducted, 0, meeting)

    # Messages of meetings ---------------------------------------------------------------------------------------------

    def send_shown(self, to: MonitoredLink, ranks: Sequence[int], as_rank: int | None = None) -> None:
        """Send another host the bytes that `ranks` show; as those of all learners there, if `as_rank` is EVERYONE."""
        for rank in ranks:
            shown = self.arena.shown(rank).numpy()
            for at in range(0, len(shown), SHOWN_PIECE):
                to.say(Shown(rank if as_rank is None else as_rank, at), [shown[at : at + SHOWN_PIECE]])

    def take_shown(self, message: Shown, ranks: Sequence[int]) -> None:
        """Store a piece of the bytes that one of `ranks` shows.

        Raises:
            InvalidMessage: the piece is of none of `ranks`, or does not fit.
        """
        rank, at = message.rank, message.at
        to = list(ranks) if rank == EVERYONE else [rank]
        if not set(to) <= set(ranks) or at + len(message.payload) > self.request.shown_bytes:
            raise InvalidMessage(f"{len(message.payload)} bytes that learner {rank} shows do not fit at {at}")
        for one in to:
            self.arena.shown(one)[at : at + len(message.payload)] = torch.frombuffer(message.payload, dtype=torch.uint8)

    def send_model(self, to: MonitoredLink, ranks: Sequence[int]) -> None:
        """Send the model to evaluate to the host whose learners are `ranks`."""
        send_vector(to, "mean", place_of_model(range(self.place.learners), ranks), self.model)

    def enter_columns(self, message: Columns, ranks: Sequence[int]) -> None:
        """Store columns that another host has sent, of learners that must be among `ranks`.

        Raises:
            InvalidMessage: the message has no such columns.
        """
        given = message.ranks
        if not set(given) <= set(ranks) or len(set(given)) != len(given):
            raise InvalidMessage(f"columns of learners {given}, who are not there")
        self.columns.enter(given, message.everything, bytes(message.payload))

    def close(self) -> None:
        """Close all files, locks and links that the session has on this host. Safe to call twice."""
        self.links.close()
        self.links.endpoint.close()
        with self.gate:  # threads of links may still be at work on the last words
            self.arena.close()
            if self.arena.on_devices is not None:
                self.arena.on_devices.close()
