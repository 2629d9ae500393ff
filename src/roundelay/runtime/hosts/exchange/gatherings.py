"""A learner of another host at the gatherings of this one, where the centre is.

It comes by an exchange that gives what it has done: in one message, so that it counts once. Then its client asks, again
and again, whether it may go on; each time this waits a little. The thread that waits closes the gathering, if that is
for its learner to do: the rule is the strategy's, which both hosts have.
"""

from collections.abc import Callable
from typing import final

import numpy as np

from roundelay.core.effects import Gather
from roundelay.runtime.procs.coordination.gatherings import Attendee, Next
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.rows import NoLock, Row, reach

WAITING_SECONDS = 0.5
"""The longest wait of one question."""


@final
class GatheringPlace:
    """Learner `rank`'s. One thread's.

    Args:
        arena: of this host; its locks are this thread's own.
        look: called during waits; whatever it raises ends them.
    """

    def __init__(self, arena: Arena, centre: Row, rank: int, look: Callable[[], None]) -> None:
        self._centre, self._attendee = centre, Attendee(arena, rank)
        self._patience = Patience(rank, WAITING_SECONDS, look)
        # The row of who closes a gathering takes no part in that.
        self._closer = Row(rank, centre.vector, np.zeros(arena.layout.rows, np.int64), NoLock())

    def begin(self) -> None:
        """Begin a segment."""
        self._attendee.begin()

    def admits(self, gather: Gather) -> bool:
        """Return True if its contribution counts."""
        return self._attendee.admits(gather)

    def arrives(self, gather: Gather) -> bool:
        """Note that it has given; return True if it must wait."""
        return self._attendee.arrives(gather)

    def goes_on(self, gather: Gather) -> bool:
        """Return True if it may go on, now or in a while. This closes the gathering, if it is the one who is to."""
        found = Next.WAIT

        def over() -> bool:
            nonlocal found
            found = self._attendee.next(gather)
            return found is not Next.WAIT

        try:
            self._attendee.give_up_closing()  # when this was asked last, something may have come between
            self._patience.until(over, "others to come to a gathering")
            if found is Next.CLOSE:
                reach(self._closer, self._centre, gather.close)
                self._attendee.closed()
        except TimeoutError:
            return False
        return True
