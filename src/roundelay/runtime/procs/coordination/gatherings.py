"""A learner at the gatherings of an arena: the rules of runtime/gathering.py, under the lock of the work queue."""

import time
from enum import Enum

from roundelay.core.effects import Gather
from roundelay.runtime.gathering import Gatherings
from roundelay.runtime.procs.memory.arena import Arena


class Next(Enum):
    """The next thing that a learner does that has come to a gathering."""

    WAIT = "wait"
    CLOSE = "close"
    GO_ON = "go on"


class Attendee:
    """The part of learner `rank` in the gatherings of `arena`."""

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank, self._rules = arena, rank, Gatherings(arena.gatherings)

    def begin(self, opens: bool = False) -> None:
        """Begin a segment at the model of the last gathering; with `opens`, where no parent does, open a gathering."""
        with self._arena.queue_lock:
            self._rules.join(self._rank, time.monotonic())
            if opens:
                self._arena.gatherings.opened_at[0] = time.monotonic()

    def admits(self, effect: Gather) -> bool:
        """Return True if the learner's contribution counts."""
        with self._arena.queue_lock:
            return self._rules.admits(self._rank, effect)

    def arrives(self, effect: Gather) -> bool:
        """Note that the learner has given its contribution; return True if it must wait for the gathering to close."""
        with self._arena.queue_lock:
            return self._rules.arrive(self._rank, effect.last, time.monotonic())

    def next(self, effect: Gather) -> Next:
        """Return what the learner is to do next: wait, close the gathering, or go on."""
        with self._arena.queue_lock:
            now = time.monotonic()
            if self._rules.take_release(self._rank, now):
                return Next.GO_ON
            closes = self._rules.begin_closing(self._rank, effect.terms, self._taking_part(), now)
            return Next.CLOSE if closes else Next.WAIT

    def give_up_closing(self) -> None:
        """Note that the learner, if it was chosen to close a gathering, has not closed it."""
        with self._arena.queue_lock:
            self._rules.give_up_closing(self._rank)

    def closed(self) -> None:
        """Note that the learner has closed the gathering, and goes on."""
        with self._arena.queue_lock:
            self._rules.close(self._taking_part(), time.monotonic())
            self._rules.take_release(self._rank, time.monotonic())

    def absent(self) -> list[int]:
        """Return the ranks of living learners that have not come to the gathering."""
        return [rank for rank in self._taking_part() if not self._arena.gatherings.came[rank]]

    def _taking_part(self) -> list[int]:
        outside = self._arena.gatherings.outside
        return [rank for rank in self._arena.liveness.living() if not outside[rank]]
