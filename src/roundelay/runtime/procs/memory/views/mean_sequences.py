"""Numbers by which learners take part in means: what each has sent, and what it has read.

The protocol is in runtime/procs/coordination/means.py.
"""

from dataclasses import dataclass

import numpy as np

from roundelay.runtime.procs.memory.views.view import Floats, Integers, L, View, table


@dataclass(frozen=True)
class MeanSequences(View):
    """A learner writes its own column: first the vector and the facts about it, then the sequence number, published.
    Items of learners on other hosts are written by threads of this host's own process (runtime/hosts/means.py)."""

    PUBLISHED = ("sent_seq", "acked_seq")

    sent_seq: Integers = table(L)  # Number of the last mean a learner has sent its vector to
    acked_seq: Integers = table(L)  # Number of the last mean a learner has done its reading for
    source: Integers = table(2, L)
    """For means with an even and with an odd number: which of `Means.SOURCES` has a learner's vector."""
    weights: Floats = table(2, L, kind=np.float64)  # The same for its weight

    def begin_part(self) -> None:
        """Numbers begin at 0. By the parent, while no learner runs."""
        self.sent_seq[:] = self.acked_seq[:] = 0
