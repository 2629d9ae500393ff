"""Surroundings of an attached learner: the learners of its host alone, or those of several hosts.

A learner reads and writes tables of its host's arena. Where there are several hosts, a process beside the learners
(hosts/) keeps the entries of learners of other hosts up to date, and does for this host the work that none of its
learners can do: a meeting is conducted by the first host, and minibatches of a shared pass are drawn there.

Legend: P parameters.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from roundelay.runtime.attached.between_hosts import (
    ALL_DEAD,
    FIRST_HOST_LOST,
    PROCESS_FAILED,
    SINCE_IT_BEGAN,
    TOO_FEW_HOSTS,
    BetweenHosts,
    model_to_evaluate,
    take_mean,
)
from roundelay.runtime.attached.membership import AT_MEETING, LET_IN, Attendance, Membership, forget_absent, let_in
from roundelay.runtime.backend import NO_REMOTE, RemoteRows
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.coordination.lives import breathes
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.coordination.outbox import Outbox, is_here
from roundelay.runtime.procs.memory.bell import bell_of_session
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.vectors import ArenaAccess
from roundelay.runtime.procs.memory.views import NONE
from roundelay.runtime.rows import Row
from roundelay.strategies.base import Strategy

OVER = {
    FIRST_HOST_LOST: "its host, which leads the others, is lost",
    PROCESS_FAILED: "the process that speaks for this host to the others has failed, and says why itself",
    TOO_FEW_HOSTS: "too few of the hosts that lived can be reached from here, so another may lead them by now",
    ALL_DEAD: "with all others of this host, which led, so no learner here can give its state to one that comes back. "
    "Another host leads now. Start all learners of this one again, as roundelay launch --restarts does, and set "
    "ROUNDELAY_PEERS, by which they find that host",
}
"""Reasons why learners of other hosts will not be heard of again, in words."""


Give = Callable[[int], bool]
"""Function that gives a learner its state in a meeting; it returns False if no process receives it here, or none is
let in at this meeting."""


class Surroundings(ABC):
    """The other learners of a session, as one learner reaches them: those of its host, or of several hosts.

    Args:
        goes_on: learners that wait for each other go on without one that dies.
    """

    def __init__(self, access: ArenaAccess, strategy: Strategy, goes_on: bool) -> None:
        self._arena, self._rank, self._rows, self._patience = access.arena, access.rank, access.rows, access.patience
        self._strategy, self._goes_on = strategy, goes_on

    @property
    @abstractmethod
    def has_centre(self) -> bool:
        """True if the strategy has a centre and it is on this host."""

    @abstractmethod
    def come_back(
        self, members: Membership, adopt: Callable[[int], None], look_outside: Callable[[], None]
    ) -> Sequence[int]:
        """Take this learner's place in a session that runs; return the ranks that take part in the segment.

        Args:
            adopt: `adopt(source)` writes this learner's row, with the help of a living learner of this host.
            look_outside: raises if another learner that should come back too is known not to.

        Raises:
            LearnerDied: no other learner lives any more.
            TimeoutError: the others do not end their meeting.
        """

    @abstractmethod
    def means(self) -> Means:
        """Return the object by which this learner takes part in means."""

    @abstractmethod
    def remote(self) -> RemoteRows:
        """Return the object by which this learner reaches rows of other hosts."""

    @abstractmethod
    def check(self) -> None:
        """Check that this learner can still hear of the others.

        Raises:
            LearnerDied: the learner cannot hear of others any more.
        """

    @abstractmethod
    def conduct(self, number: int) -> None:
        """Wait until this host has the facts of all learners that have come to meeting `number`."""

    @abstractmethod
    def note_present(self, members: Membership, give: Give) -> None:
        """Write, after the meeting's reading, which learners take part in the segment that begins, if this learner is
        the one to; and give learners that come back their state, if this learner is the one to."""

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks that take part in the segment that begins: those that were at the meeting, and those that are let
        in."""
        return tuple(self._arena.view(Attendance).present.nonzero()[0].tolist())

    @abstractmethod
    def taking_part(self, members: Membership) -> Sequence[int]:
        """Return the ranks from whose states the model to evaluate is made."""

    @abstractmethod
    def consensus_into(self, out: Tensor, members: Membership) -> None:
        """Write the model to evaluate into `out` (P,), in a meeting."""

    @abstractmethod
    def centre(self) -> Tensor:
        """Return the centre (P,), in a meeting."""

    @abstractmethod
    def leads(self, members: Membership) -> bool:
        """Return True if this learner answers for the shared state: the centre, and passes over data."""

    def centre_row(self) -> Row:
        """Return the row of the centre, for the learner that answers for it."""
        return self._rows[-1]

    @abstractmethod
    def draw(self, key: passes.Key, pieces: int, keep: int) -> int | None:
        """Return the next minibatch of a shared pass; None at its end. See `passes.draw`."""


@final
class OneHost(Surroundings):
    """Surroundings where all learners are on one host and share one arena."""

    @property
    def has_centre(self) -> bool:
        return self._strategy.traits.model == "centre"

    def come_back(
        self, members: Membership, adopt: Callable[[int], None], look_outside: Callable[[], None]
    ) -> Sequence[int]:
        if self._goes_on:
            members.come_back_at_meeting(look_outside)
            return self.present
        members.come_back(adopt)
        return members.living

    def means(self) -> Means:
        return Means(self._arena, self._rank, self._patience, goes_on=self._goes_on)

    def remote(self) -> RemoteRows:
        return NO_REMOTE

    def check(self) -> None:
        """Do nothing: no learner is elsewhere."""

    def conduct(self, number: int) -> None:
        """Do nothing: all facts are in this host's arena."""

    def note_present(self, members: Membership, give: Give) -> None:
        if self._rank != self.taking_part(members)[0]:
            return
        arena, attendance, entering, comes = self._arena, self._arena.view(Attendance), members.entering, list[int]()
        if self._goes_on:
            waiting = self._waiting(int(attendance.cut[self._rank]))
            comes = [rank for rank in (*entering, *waiting) if give(rank) and rank in waiting]
        attendance.present[:] = arena.liveness.alive
        attendance.present[[*entering, *comes]] = LET_IN
        if self._goes_on:
            forget_absent(arena)
        if comes:
            with arena.queue_lock:
                let_in(arena, comes)

    def _waiting(self, cut: int) -> list[int]:
        """Return the ranks that have come back and wait to be let in, if they lived when the newest pass under way
        began, in segment `cut`."""
        attendance, alive = self._arena.view(Attendance), self._arena.liveness.alive
        return [
            rank
            for rank in range(self._arena.layout.learners)
            if attendance.back[rank] != attendance.let_in[rank]
            and not alive[rank]
            and breathes(self._arena, rank)
            and attendance.may_come(rank, cut)
        ]

    def taking_part(self, members: Membership) -> Sequence[int]:
        return members.meeting

    def consensus_into(self, out: Tensor, members: Membership) -> None:
        if self._strategy.traits.model == "centre":
            out.copy_(self._rows[-1].vector)
            return
        holders = self._strategy.holders(tuple(self.taking_part(members)))
        take_mean(out, [self._rows[rank].vector for rank in holders], self._arena.shares(holders))

    def centre(self) -> Tensor:
        return self._arena.rows()[-1].vector

    def leads(self, members: Membership) -> bool:
        return self._rank == self.taking_part(members)[0]

    def draw(self, key: passes.Key, pieces: int, keep: int) -> int | None:
        segment = int(self._arena.view(Attendance).met[self._rank])
        return passes.draw(self._arena, self._rank, key, pieces, segment, keep)


@final
class SeveralHosts(Surroundings):
    """Surroundings where some learners are on other hosts.

    Args:
        here: ranks of the learners on this host.
        wake: path of the pipe that wakes the carrier of this learner's exchanges.
    """

    def __init__(
        self, access: ArenaAccess, strategy: Strategy, goes_on: bool, here: tuple[int, ...], wake: str
    ) -> None:
        super().__init__(access, strategy, goes_on)
        self._here, self._wake = here, wake
        self._between, self._bell = access.arena.view(BetweenHosts), bell_of_session(access.arena)

    @property
    def has_centre(self) -> bool:
        arena = self._arena
        return self._strategy.traits.model == "centre" and is_here(arena, arena.layout.learners, self._here)

    def come_back(
        self, members: Membership, adopt: Callable[[int], None], look_outside: Callable[[], None]
    ) -> Sequence[int]:
        """Wait until the first host lets this learner in. If this host was lost, first rows have come from there."""
        between, rank, attendance = self._between, self._rank, self._arena.view(Attendance)
        between.process[rank] = os.getpid()
        if self._goes_on:
            self._patience.until(lambda: bool(members.living), "to hear who lives", (1e-3, 1e-2))
            members.come_back_at_meeting(look_outside)
            return self.present
        members.hold_life()
        comrades = [other for other in members.living if other in self._here and other != rank]
        if comrades:
            adopt(min(comrades, key=lambda other: abs(other - rank)))
        publish(attendance.back, rank, int(attendance.back[rank]) + 1)
        self._bell.ring()

        def come() -> bool:
            look_outside()
            return bool(attendance.let_in[rank] == attendance.back[rank])

        self._patience.until(come, "the first host to let it in, between two meetings", (1e-3, 1e-2))
        return sorted({*self.taking_part(members), rank})

    def means(self) -> Means:
        forwards = self._strategy.traits.synchronous and self._strategy.mixes
        return Means(self._arena, self._rank, self._patience, self._here, forwards, self._goes_on)

    def remote(self) -> RemoteRows:
        return Outbox(self._arena, self._rank, self._here, self._wake, self._patience)

    def check(self) -> None:
        if over := int(self._between.over[0]):
            raise LearnerDied(self._here[0] if over == ALL_DEAD else 0, OVER[over])
        elsewhere = next(rank for rank in range(self._arena.layout.learners) if rank not in self._here)
        if not breathes(self._arena, elsewhere):  # that process holds the lives of all of them
            raise LearnerDied(elsewhere, "the process that speaks for this host to the others has ended")

    def conduct(self, number: int) -> None:
        self._patience.until(
            lambda: bool(self._between.conducted[0] >= number),
            f"the first host to conduct meeting {number}",
            (1e-4, 5e-3),
        )

    def note_present(self, members: Membership, give: Give) -> None:
        """Give learners that the first host has let in their state, if a process of this host receives it: they
        themselves, or the process for other hosts in their place. The first host has written who takes part."""
        if self._rank == min(rank for rank in self.taking_part(members) if rank in self._here):
            for rank in members.entering:
                give(rank)

    def taking_part(self, members: Membership) -> Sequence[int]:
        present = self._arena.view(Attendance).present
        return [rank for rank in range(self._arena.layout.learners) if present[rank] == AT_MEETING]

    def consensus_into(self, out: Tensor, members: Membership) -> None:
        out.copy_(model_to_evaluate(self._arena, self._here))

    def centre(self) -> Tensor:
        return model_to_evaluate(self._arena, self._here)

    def leads(self, members: Membership) -> bool:
        """Return True if this is the lowest living learner of the host that leads, which has all shared state."""
        lowest = next(rank for rank in members.living if rank in self._here)
        return bool(self._between.leads[0]) and self._rank == lowest

    def draw(self, key: passes.Key, pieces: int, keep: int) -> int | None:
        if self._between.leads[0] == SINCE_IT_BEGAN:  # passes are in this arena
            segment = int(self._arena.view(Attendance).met[self._rank])
            return passes.draw(self._arena, self._rank, key, pieces, segment, keep)
        between, rank = self._between, self._rank
        between.key[rank], between.pieces[rank], between.keep[rank] = key, pieces, keep
        publish(between.asked, rank, int(between.asked[rank]) + 1)
        self._bell.ring()
        self._patience.until(
            lambda: bool(between.answered[rank] == between.asked[rank]), "a minibatch, drawn on the first host"
        )
        drawn = int(between.drawn[rank])
        return None if drawn == NONE else drawn
