"""Alarms of a learner that comes to a meeting early, and has nothing to train while others have: for want of data of
its own; or where it need not wait for anybody, and a loader deals minibatches out by rank, however fast a rank is."""

import logging
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.runtime.attached.meetings import Meetings
from roundelay.runtime.attached.membership import BetweenSteps
from roundelay.runtime.attached.shares import ShareTables
from roundelay.runtime.procs.memory.arena import Arena

log = logging.getLogger("roundelay")

FEW, OF_OWN = 10, 0.2
"""Steps that another takes while this learner waits, and that part of its own since the last meeting, before it is
said."""
MANY = 100
"""Steps that another takes, with this learner's empty minibatches, before it is said."""


@final
class Idling(BetweenSteps):
    """Alarms of one learner that waits at a meeting without need.

    Args:
        synchronous: learners take steps together; those that come early have empty minibatches.
    """

    def __init__(self, arena: Arena, rank: int, meetings: Meetings, synchronous: bool) -> None:
        self._steps, self._made = arena.counts.steps, arena.view(ShareTables).made
        self._rank, self._meetings, self._synchronous, self._said = rank, meetings, synchronous, False
        self._before = self._steps.copy()  # steps of all at the last meeting
        self._came: NDArray[Any] | None = None  # those when it came to the meeting that it is in
        self._comrades: Sequence[int] = ()

    def begin(self, comrades: Sequence[int] = ()) -> None:
        """Note that the learner has come to a meeting, and goes on with empty minibatches as long as `comrades` have
        others; if there are none, that it only waits."""
        self._came, self._comrades = self._steps.copy(), comrades

    def end(self) -> None:
        """Note that all learners have come to the meeting."""
        self.look()
        self._came, self._before = None, self._steps.copy()

    def look(self) -> None:
        """Log a warning, once, if the learner waits without need."""
        if self._came is None or self._said:
            return
        meanwhile, own = self._steps - self._came, int((self._came - self._before)[self._rank])
        if not own:
            self._say_no_data(self._steps - self._before)
        elif self._comrades:
            going_on = [rank for rank in self._comrades if meanwhile[rank] >= MANY and rank != self._rank]
            self._said = bool(going_on)
            if going_on:
                self._meetings.say_long(going_on)
        elif not self._synchronous:
            self._say_waits(meanwhile, own)

    def _say_no_data(self, since: NDArray[Any]) -> None:
        """Warn that this learner has trained nothing since the last meeting, if others have; `since` (L,) are the steps
        of all."""
        busy = int(np.argmax(since))
        if busy == self._rank or since[busy] < FEW or (self._made[self._rank] and not self._synchronous):
            return
        self._said = True
        log.warning(
            f"rank {self._rank} came to {self._meetings.now} without a step of its own, and waits there while rank "
            f"{busy} trains: it has no data, or comes to a meeting that the others are not at (inside `if rank == 0:` "
            "only one is). Has its loader any minibatches? DataLoader(dataset, batch_sampler=session.sampler(dataset, "
            "batch_size)) and session.share(batches) share out one set of data, the same on all learners."
        )

    def _say_waits(self, meanwhile: NDArray[Any], own: int) -> None:
        """Warn that this learner, whose strategy waits for no other, waits for a slow one; `meanwhile` (L,) are the
        steps of all since it came, `own` its steps before."""
        slow = int(np.argmax(meanwhile))
        if self._made[self._rank] or meanwhile[slow] < max(FEW, OF_OWN * own):
            return
        self._said = True
        log.warning(
            f"rank {self._rank} came to {self._meetings.now} after {own} steps and waits for rank {slow}, which has "
            f"taken {meanwhile[slow]} more since. Its strategy never waits; minibatches dealt out by rank, or so "
            "many steps for each, make it wait for the slowest. Give each to whichever learner is free: "
            "DataLoader(dataset, sampler=session.share(sampler), batch_size=None), with a sampler that is the same on "
            "all learners (lhotse's: world_size=1, rank=0), or DataLoader(dataset, "
            "batch_sampler=session.sampler(dataset, batch_size)); without a loader, `for step in "
            "session.share(range(steps))`, of all learners together."
        )

    def close(self, manner: int) -> None:
        """Do nothing: this work holds nothing to be closed."""
