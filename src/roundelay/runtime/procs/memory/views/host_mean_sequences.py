"""Numbers by which learners of several hosts take part in means: an agreement between each learner and the threads of
its host's own process, which alone touch the network (runtime/hosts/means.py).
"""

from dataclasses import dataclass

import numpy as np

from roundelay.algorithms.codecs import MOST_NUMBERS
from roundelay.runtime.procs.memory.views.view import Floats, Integers, L, View, table


@dataclass(frozen=True)
class HostMeanSequences(View):
    """A learner writes its own items of `readers`, `codec`, `codec_numbers` and `elements`, and publishes those of
    `ready_from` and `global_sent_seq`; the threads write `total`, and publish `global_seq` and `forwarded_seq`."""

    PUBLISHED = ("global_sent_seq", "global_seq", "forwarded_seq", "ready_from")

    global_sent_seq: Integers = table(L)  # Number of the last mean of everybody that a learner has sent its vector to
    global_seq: Integers = table(1)  # Number of the last mean of everybody that is complete on this host
    total: Floats = table(2, kind=np.float64)
    """For means of everybody with an even and with an odd number: the sum of the weights."""
    forwarded_seq: Integers = table(L)
    """Number of the last mean for which a learner's mailbox, and the facts about it, have been read here."""
    readers: Integers = table(2, L, L)
    """For even and odd numbers: 1 where the second learner will read the mailbox of the first."""
    codec: Integers = table(2, L)
    """For even and odd numbers: the codec by which a learner's mailbox travels, by its place in FORMS."""
    codec_numbers: Floats = table(2, L, MOST_NUMBERS, kind=np.float64)  # For even and odd numbers: its options
    elements: Integers = table(2, L)  # For even and odd numbers: elements of the vector in a learner's mailbox
    ready_from: Integers = table(L)  # From this element to the end, the gradient a learner takes part with is complete

    def begin_part(self) -> None:
        """Numbers begin at 0. By the host's own process, while no learner runs."""
        for numbers in vars(self).values():
            numbers[:] = 0
