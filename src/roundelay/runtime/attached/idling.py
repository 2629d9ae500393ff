"""Alarm of a learner that need not wait for anybody, and waits: it comes to a meeting early, for want of minibatches,
while others have many left. So it is where a loader deals them out by rank, however fast a rank is."""

import logging
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.runtime.attached.between_steps import BetweenSteps
from roundelay.runtime.attached.meetings import Meetings
from roundelay.runtime.attached.shares import ShareTables
from roundelay.runtime.procs.memory.arena import Arena

log = logging.getLogger("roundelay")

FEW, OF_OWN = 10, 0.2
"""Steps that another takes while this learner waits, and that part of its own since the last meeting, before it is
said."""


@final
class Idling(BetweenSteps):
    """Alarm of one learner under an asynchronous strategy."""

    def __init__(self, arena: Arena, rank: int, meetings: Meetings) -> None:
        self._steps, self._made = arena.counts.steps, arena.view(ShareTables).made
        self._rank, self._meetings, self._said = rank, meetings, False
        self._before = int(self._steps[rank])
        self._came: NDArray[Any] | None = None  # steps of all when it came to the meeting that it is in

    def begin(self) -> None:
        """Note that it comes to a meeting."""
        self._came = self._steps.copy()

    def end(self) -> None:
        """Note that all have come."""
        self.look()
        self._came, self._before = None, int(self._steps[self._rank])

    def look(self) -> None:
        """Say it, once, if it is so."""
        if self._came is None or self._said or self._made[self._rank]:
            return
        meanwhile, own = self._steps - self._came, int(self._came[self._rank]) - self._before
        slow = int(np.argmax(meanwhile))
        if not own or meanwhile[slow] < max(FEW, OF_OWN * own):
            return
        self._said = True
        log.warning(
            "rank %d came to %s after %d steps and waits for rank %d, which has taken %d more since. Its strategy "
            "waits for nobody; minibatches dealt out by rank, or so many steps for each, make it wait for the slowest. "
            "Give each to whichever learner is free: DataLoader(dataset, sampler=session.share(sampler), "
            "batch_size=None), with a sampler that is the same on all learners (lhotse's: world_size=1, rank=0), or "
            "DataLoader(dataset, batch_sampler=session.sampler(dataset, batch_size)); without a loader, `for step in "
            "session.share(range(steps))`, of all learners together.",
            self._rank,
            self._meetings.now,
            own,
            slow,
            meanwhile[slow],
        )

    def close(self, manner: int) -> None:
        """Do nothing: there is nothing to be put away."""
