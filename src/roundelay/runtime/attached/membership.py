"""Membership without a parent: the learners that a launcher has started, and which of them live.

Every learner holds a lock on a byte of its own for as long as it lives. The kernel frees it when the process dies,
however it dies, so a learner that waits for another need only look whether that byte is still locked (`DeathWatch`).
"""

import logging
import math
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roundelay.runtime.attached.meetings import Meetings, MeetingTables
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.launch import termination
from roundelay.runtime.procs.coordination.lives import DeathWatch, life_lock
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import bell_of_session
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Integers, L, View, table


class BetweenSteps(ABC):
    """Work that one learner does between two steps. Both methods take next to no time, for the loop waits."""

    @abstractmethod
    def look(self) -> None:
        """Look for changes: called in every step, and repeatedly while the learner waits for others."""

    @abstractmethod
    def close(self, manner: int) -> None:
        """Note that the learner has left the session, in one of the manners of membership.py."""


log = logging.getLogger("roundelay")

DIED, CLOSED, ENDED, FAILED, HOST_LOST = range(5)
"""Manners in which a learner leaves."""
MANNERS = {
    DIED: "it was killed, or left before session.close()",
    CLOSED: "it has left by session.close()",
    ENDED: "it was asked to end (SIGTERM)",
    FAILED: "it could not go on, and says why itself",
    HOST_LOST: "its host is lost: it has ended there, or the link to it is cut",
}
AT_MEETING, LET_IN = 1, 2
"""Learners that take part in a segment: they were at the meeting before it, or are let in there."""
NEEDED = "while others needed it to go on"
LONG_SECONDS = 30.0
"""Seconds of waiting in a meeting after which a learner says so, once."""


@dataclass(frozen=True)
class Attendance(View):
    """Tables of who takes part. Each learner writes its own items, and publishes `met`, `ending`, `back` and that it is
    no longer `entering`; the lowest rank that lives, or on several hosts the process that speaks to others, writes
    `present`, and publishes, of a learner that it lets in, `entering` and `let_in`."""

    PUBLISHED = ("met", "ending", "back", "let_in", "entering")

    met: Integers = table(L)  # Meetings a learner has come to
    ending: Integers = table(L)  # Number of the last segment that a learner has wanted to end
    present: Integers = table(L)  # AT_MEETING or LET_IN: takes part in the segment that begins; 0: does not
    left: Integers = table(L)
    """The manner in which a learner left, by its number in MANNERS; written before it is marked as gone."""
    back: Integers = table(L)  # How often a learner has come back
    let_in: Integers = table(L)  # The number of its last return that it may train after
    entering: Integers = table(L)
    """1: let in at a meeting by others who wait for each other, and not begun: it begins with the first step that any
    of them takes. Until then it is in none of their meetings, however many these are."""
    cut: Integers = table(L)
    """The segment in which the newest pass over data has begun that was under way when a learner came to its last
    meeting; 0: none was."""

    def may_come(self, rank: int, cut: int) -> bool:
        """Return True if learner `rank`, which has come back, lived in segment `cut`, when a pass under way began. To a
        pass that others have shared out without it, it has nothing to add, and would miss meetings in it."""
        return bool((int(self.met[rank]) + 1) // 2 >= cut)


class Membership:
    """One learner's view of which learners live. All act on the table `alive`; the first learner that sees a death
    writes it there.

    Args:
        reap: called once for a dead rank, under the queue lock.
    """

    def __init__(self, arena: Arena, rank: int, patience: Patience, reap: Callable[[int], None]) -> None:
        self._arena, self.rank, self._patience, self._reap = arena, rank, patience, reap
        self._liveness, self._alive = arena.liveness, arena.liveness.alive
        self._met, self._left = arena.view(Attendance).met, arena.view(Attendance).left
        self._ending, self._bell = arena.view(Attendance).ending, bell_of_session(arena)
        self._entering = arena.view(Attendance).entering
        self.meetings = Meetings(arena.view(MeetingTables), rank)
        self._life, self._watch = life_lock(arena, rank, patience), DeathWatch(arena, reap)
        self.advice = ""
        """A way to go on without a dead learner, for the error of one that needed it, if there is one."""
        _here.add(self)

    def enter(self) -> None:
        """Enter the session: from now on the others may count on this learner."""
        self._life.acquire()
        self._liveness.mark([self.rank], True)

    def hold_life(self) -> None:
        """Lock this learner's byte; another process will mark it as living."""
        self._life.acquire()

    def come_back_at_meeting(self, look_outside: Callable[[], None]) -> None:
        """Take a dead learner's place among others who wait for each other: say that this one has come back, and wait
        until they have let it in at a meeting and one of them has begun a step. The wait lasts as long as one of them
        lives; none of them waits for this learner. Once it has its state, it is to `begin`.

        Raises:
            LearnerDied: no other learner lives any more.
        """
        self.hold_life()
        attendance, rounds = self._arena.view(Attendance), self._arena.queue.rounds
        publish(attendance.back, self.rank, int(attendance.back[self.rank]) + 1)
        self._bell.ring()
        log.warning("rank %d has come back, and waits for the next meeting of the others to be let in.", self.rank)

        def come() -> bool:
            look_outside()
            others = self._before()
            if attendance.let_in[self.rank] != attendance.back[self.rank]:
                return False
            # A learner between two meetings (an odd number) has begun to count its steps anew.
            return any(self._met[rank] % 2 == 1 and rounds[rank] > 0 for rank in others)

        replace(self._patience, seconds=math.inf).until(come, "others to let it in at a meeting", (1e-3, 1e-2))

    def begin(self) -> None:
        """Begin with the others' first step, after this learner has been let in at a meeting."""
        others = self._before()  # those that took it have met most often: others may be about to begin
        publish(self._met, self.rank, int(self._met[others].max()))
        publish(self._entering, self.rank, 0)
        self._bell.ring()

    def _before(self) -> list[int]:
        """Return the ranks of the other learners that live, and have not come back with this one.

        Raises:
            LearnerDied: no other learner lives.
        """
        found = [rank for rank in self.meeting if rank != self.rank]
        if not found:
            raise LearnerDied(self.rank, "and no learner lives any more in the session it comes back to")
        return found

    def come_back(self, prepare: Callable[[int], None]) -> None:
        """Take a dead learner's place while the others train; not in a meeting of theirs, which counts the learners
        that come. `prepare(source)` writes this learner's row, with the help of a living one.

        Raises:
            LearnerDied: no other lives any more.
            TimeoutError: the others do not end their meeting.
        """
        self.hold_life()

        def between_meetings() -> bool:
            numbers = {int(self._met[rank]) for rank in self._others()}
            return len(numbers) == 1 and numbers.pop() % 2 == 1

        def come() -> bool:
            if not between_meetings():
                return False
            prepare(min(self._others(), key=lambda rank: abs(rank - self.rank)))
            with self._arena.queue_lock:
                if not between_meetings():
                    return False
                if self._left[self.rank] == FAILED:  # in the middle of a step
                    self._reap(self.rank)
                self._left[self.rank] = DIED
                publish(self._met, self.rank, int(self._met[self._others()[0]]))
                self._liveness.mark([self.rank], True)
            self._bell.ring()
            return True

        self._patience.until(come, "the others to end a meeting, so that it can come back")

    def _others(self) -> tuple[int, ...]:
        """Return ranks of the others that live.

        Raises:
            LearnerDied: no other learner lives.
        """
        found = tuple(rank for rank in self.living if rank != self.rank)
        if not found:
            raise LearnerDied(self.rank, "and no learner of the session it comes back to lives any more")
        return found

    def leave(self, manner: int) -> None:
        """Leave the session in one of the MANNERS: others wait for this learner no more."""
        self._left[self.rank] = manner
        self._liveness.mark([self.rank], False)
        self._bell.ring()
        self._life.release()

    def died(self, rank: int, while_: str) -> LearnerDied:
        """Return the error for a learner that needed `rank`."""
        manner = int(self._left[rank])
        if manner == ENDED:
            termination.await_signal()
        return LearnerDied(rank, f"{MANNERS[manner]}, {while_}{self.advice}")

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks of the learners that live, as far as is known."""
        return tuple(self._liveness.living())

    @property
    def meeting(self) -> tuple[int, ...]:
        """Ranks that live and come to meetings: all but those that are let in and have not begun."""
        return tuple(rank for rank in self._liveness.living() if not self._entering[rank])

    @property
    def entering(self) -> tuple[int, ...]:
        """Ranks that live, are let in, and have not begun."""
        return tuple(rank for rank in self._liveness.living() if self._entering[rank])

    @property
    def to_the_end(self) -> tuple[int, ...]:
        """Ranks that live, or have lived until they closed the session."""
        living = self.living
        return tuple(rank for rank, manner in enumerate(self._left) if rank in living or manner == CLOSED)

    def lowest(self) -> bool:
        """Return True if this learner is the lowest of those that live."""
        return self.living[:1] == (self.rank,)

    def look(self, closely: bool = False) -> None:
        """Notice deaths; unless `closely`, not more often than every DEATH_CHECK_SECONDS."""
        self._watch.look([rank for rank in range(self._arena.layout.learners) if rank != self.rank], closely)

    def gather(self, ranks: Sequence[int], look_outside: Callable[[], None]) -> None:
        """Wait at the start until all of `ranks` have entered. `look_outside` raises if it knows that one never will.

        Raises:
            LearnerDied: one of `ranks` ended before all had entered.
            TimeoutError: one of `ranks` has not entered in time; says which.
        """
        publish(self._met, self.rank, int(self._met[self.rank]) + 1)
        self._bell.ring()

        def missing() -> list[int]:
            return [rank for rank in ranks if not self._met[rank]]

        def come() -> bool:
            for rank in missing():
                if self._left[rank] == HOST_LOST:
                    raise self.died(rank, "before all learners had attached")
            if missing():
                look_outside()
            return not missing()

        self._patience.until(come, "all learners to attach", (1e-3, 1e-3), missing)
        for rank in ranks:
            has_trained = self._met[rank] > 1 or self._arena.queue.rounds[rank]  # so all had, and this one is late
            if not (self._alive[rank] or has_trained):
                raise LearnerDied(rank, "it ended before all learners had attached")

    def meet(self, what: str, needed: bool) -> None:
        """Wait until all that live have come to as many meetings as this learner, and to the same one.

        Raises:
            MeetingsDiffer: a learner has come to another meeting; names both, and their meetings.
            LearnerDied: a learner has died, and all are `needed`.
            TimeoutError: a learner did not come in time; says which.
        """
        number, missing = int(self._met[self.rank]) + 1, list[int]()
        started, said = time.monotonic(), False
        self.meetings.announce(number)
        with self._arena.queue_lock:  # no learner comes back between the two
            everybody = self.meeting  # these learners' meetings are compared
            publish(self._met, self.rank, number)
        self._bell.ring()

        def come() -> bool:
            nonlocal everybody, missing, said
            missing = [rank for rank in everybody if self._met[rank] < number]
            self.meetings.check(number, [rank for rank in everybody if rank not in missing])
            for rank in missing:
                if not self._alive[rank] and self._met[rank] < number:
                    if needed:
                        raise self.died(rank, f"while the others waited for it: {what}")
                    everybody = tuple(r for r in everybody if r != rank)
            if missing and not said and time.monotonic() - started > LONG_SECONDS:
                said = True
                self.meetings.say_long(missing)
            return not missing

        self._patience.until(come, f"{what}, in {self.meetings.now}", missing=lambda: missing)

    def end_segment(self, number: int) -> None:
        """Note that this learner has ended segment `number`, while others may still have work."""
        publish(self._ending, self.rank, number)
        self._bell.ring()

    def to_come(self, ranks: Sequence[int], number: int, needed: bool) -> list[int]:
        """Return those of `ranks` that have not ended segment `number`, without the dead, and without learners that are
        let in and begin with the first step, if none has been taken.

        Raises:
            LearnerDied: one of `ranks` is dead, and all are `needed`.
        """
        gone = [rank for rank in ranks if not self._alive[rank]]  # before their last acts are read
        missing = [rank for rank in ranks if self._ending[rank] < number]
        if needed and (lost := [rank for rank in missing if rank in gone]):
            raise self.died(lost[0], NEEDED)
        missing = [rank for rank in missing if rank not in gone]
        if missing and all(self._entering[rank] for rank in missing):
            rounds = self._arena.queue.rounds  # of the others, the last of this segment: they have ended it
            return missing if max(rounds[rank] for rank in ranks) > 0 else []
        return missing

    def forget(self) -> None:
        """Close the arena in a forked child, which is neither learner nor holder of any lock."""
        self._arena.close()


_here: "weakref.WeakSet[Membership]" = weakref.WeakSet()


def _forget() -> None:
    for membership in list(_here):
        membership.forget()


os.register_at_fork(after_in_child=_forget)


def forget_absent(arena: Arena) -> None:
    """Reset all counts of the last segment of learners that are absent, before a segment begins and while no learner
    trains. Learners that are present reset their own; those of a learner that is let in are reset by `let_in`."""
    _forget_work(arena, np.flatnonzero(arena.view(Attendance).present == 0).tolist())


def let_in(arena: Arena, ranks: Sequence[int]) -> None:
    """Let the learners `ranks`, which have come back, begin with the next step of the others, who are in a meeting."""
    attendance, here = arena.view(Attendance), list(ranks)
    _forget_work(arena, here)
    attendance.left[here] = DIED
    publish(attendance.entering, here, 1)
    publish(attendance.let_in, here, attendance.back[here])
    arena.liveness.mark(here, True)  # last: from here on the others count on them


def _forget_work(arena: Arena, ranks: Sequence[int]) -> None:
    for own in (arena.sequences.sent_seq, arena.sequences.acked_seq, arena.queue.rounds, arena.view(VoteTables).cast):
        own[list(ranks)] = 0
