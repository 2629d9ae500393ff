"""The work queue's tables: what is still to be drawn, who works on what, and how far synchronous learners are.

The rules are in runtime/procs/coordination/queue.py.
"""

from dataclasses import dataclass

import numpy as np

from roundelay.runtime.procs.memory.views.view import Floats, Integers, Sizes, Table, View

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

    next_index: Integers
    """(1,) The next minibatch of an asynchronous segment."""
    returned: Integers
    """(1 + 2 L,) How many minibatches are to be drawn again, then which."""
    prefetch: Integers
    """(2 + PREFETCH,) Of a host among several: how many were drawn, how many put in, then a ring of minibatches."""
    more: Integers
    """(1,) May more be put into the ring? A learner that finds it empty waits then."""
    claims: Integers
    """(L,) The minibatch a learner works on, NONE or TRAINED."""
    assigned: Integers
    """(L,) The next minibatch of a learner whose group has drawn it; NONE, EMPTY or END."""
    totals: Floats
    """(3, L) Frames, correct frames and loss of each learner as they will be when its minibatch is counted; written by
    the learner before its claim becomes TRAINED."""
    rounds: Integers
    """(L,) The next round of a synchronous learner. Under `roundelay.attach` each learner's own: steps in this segment,
    published when it begins one."""
    stop_round: Integers
    """(1,) The segment ends before this round."""
    hold: Integers
    """(1,) Synchronous learners begin no round while it is set."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        one, each = Table((1,)), Table((sizes.learners,))
        return {
            "next_index": one,
            "returned": Table((1 + 2 * sizes.learners,)),
            "prefetch": Table((2 + PREFETCH,)),
            "more": one,
            "claims": each,
            "assigned": each,
            "totals": Table((3, sizes.learners), np.float64),
            "rounds": each,
            "stop_round": one,
            "hold": one,
        }

    def begin_segment(self, first: int, first_round: int, end_round: int) -> None:
        """Nothing is claimed or was given back; the segment goes from minibatch `first`, in `first_round`, to
        `end_round`. By the parent, while no learner runs."""
        self.next_index[0], self.stop_round[0] = first, end_round
        self.rounds[:], self.claims[:], self.assigned[:] = first_round, NONE, NONE
        self.returned[0] = self.hold[0] = 0
