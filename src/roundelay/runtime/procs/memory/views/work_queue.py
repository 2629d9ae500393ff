"""The work queue's tables: what is still to be drawn, who works on what, and how far synchronous learners are.

The rules are in runtime/procs/coordination/queue.py.
"""

from dataclasses import dataclass

import numpy as np

from roundelay.runtime.procs.memory.views.view import Floats, Integers, L, View, table

NONE = -1
"""No minibatch."""
EMPTY = -2
"""A minibatch without examples, for a member of a group that draws together when there are not enough."""
END = -3
"""Nothing more to draw, for all of a group."""
TRAINED = -4
"""A claim on a minibatch that is trained and about to be counted."""
PREFETCH = 1024
"""Minibatches a host may have drawn from the run's queue, on other hosts, for its learners to draw."""


@dataclass(frozen=True)
class WorkQueue(View):
    """Written under the queue lock, but for `totals` and for a learner's own claim on what it has trained, which is
    published; and by the parent between segments, when nobody draws."""

    next_index: Integers = table(1)  # The next minibatch of an asynchronous segment
    returned: Integers = table(lambda of: 1 + 2 * of.learners)  # How many minibatches are to be drawn again, then which
    prefetch: Integers = table(2 + PREFETCH)
    """Of a host among several: how many were drawn, how many put in, then a ring of minibatches."""
    more: Integers = table(1)  # May more be put into the ring? A learner that finds it empty waits then
    claims: Integers = table(L)  # The minibatch a learner works on, NONE or TRAINED
    assigned: Integers = table(L)  # The next minibatch of a learner whose group has drawn it; NONE, EMPTY or END
    totals: Floats = table(3, L, kind=np.float64)
    """Frames, correct frames and loss of each learner as they will be when its minibatch is counted; written by the
    learner before its claim becomes TRAINED."""
    rounds: Integers = table(L)
    """The next round of a synchronous learner. Under `roundelay.attach` each learner's own: steps in this segment,
    published when it begins one."""
    stop_round: Integers = table(1)  # The segment ends before this round
    hold: Integers = table(1)  # Synchronous learners begin no round while it is set

    def begin_segment(self, first: int, first_round: int, end_round: int) -> None:
        """Nothing is claimed or was given back; the segment goes from minibatch `first`, in `first_round`, to
        `end_round`. By the parent, while no learner runs."""
        self.next_index[0], self.stop_round[0] = first, end_round
        self.rounds[:], self.claims[:], self.assigned[:] = first_round, NONE, NONE
        self.returned[0] = self.hold[0] = 0
