"""A learner of another host at the gatherings of this one, where the centre is.

It comes by an exchange that gives its contribution: in one message, so that it counts once. Then its client asks, again
and again, whether it may go on; each time this waits a little. The thread that waits closes the gathering, if that is
for its learner to do: the rule is the strategy's, which both hosts have.
"""

from collections.abc import Callable
from typing import final

import numpy as np

from roundelay.core.effects import Gather
from roundelay.runtime.procs.coordination.gatherings import Attendee, Next
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.rows import NoLock, Row, reach

WAITING_SECONDS = 0.5
"""Most seconds that the host of the centre waits before it answers one question."""


@final
class GatheringPlace(Attendee):
    """Place of learner `rank` of another host in gatherings on this host, for use by one thread.

    Args:
        arena: the arena of this host, with locks of this thread's own.
        look: called during waits; any error from it ends them.
    """

    def __init__(self, arena: Arena, centre: Row, rank: int, look: Callable[[], None]) -> None:
        super().__init__(arena, rank)
        self._centre = centre
        self._patience = Patience(rank, WAITING_SECONDS, look)
        # The row of the learner that closes a gathering takes no part in that.
        self._closer = Row(rank, centre.vector, np.zeros(arena.layout.rows, np.int64), NoLock())

    def goes_on(self, gather: Gather) -> bool:
        """Return True if the learner may go on from the gathering now, or within `WAITING_SECONDS`. This closes the
        gathering, if that is for this learner to do."""
        found = Next.WAIT

        def over() -> bool:
            nonlocal found
            found = self.next(gather)
            return found is not Next.WAIT

        try:
            self.give_up_closing()  # when this was asked last, something may have come between
            self._patience.until(over, "others to come to a gathering")
            if found is Next.CLOSE:
                reach(self._closer, self._centre, gather.close)
                self.closed()
        except TimeoutError:
            return False
        return True
