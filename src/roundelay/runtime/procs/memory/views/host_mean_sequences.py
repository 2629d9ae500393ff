"""Numbers by which learners of several hosts take part in means: an agreement between each learner and the threads of
its host's own process, which alone touch the network (runtime/hosts/means.py).
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.views.view import Integers, Sizes, Table, View


@dataclass(frozen=True)
class HostMeanSequences(View):
    """A learner writes its own items of `readers` and `codec`, and publishes those of `ready_from` and
    `global_sent_seq`; the threads publish `global_seq` and `forwarded_seq`."""

    PUBLISHED = ("global_sent_seq", "global_seq", "forwarded_seq", "ready_from")

    global_sent_seq: Integers
    """(L,) Number of the last mean of everybody that a learner has sent its vector to."""
    global_seq: Integers
    """(1,) Number of the last mean of everybody that is complete on this host."""
    forwarded_seq: Integers
    """(L,) Number of the last mean for which a learner's mailbox, and the facts about it, have been read here."""
    readers: Integers
    """(2, L, L) For even and odd numbers: 1 where the second learner will read the mailbox of the first."""
    codec: Integers
    """(2, L) For even and odd numbers: the codec by which a learner's mailbox travels, by its place in CODECS."""
    ready_from: Integers
    """(L,) From this element to the end, the gradient a learner takes part with is complete."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        each, learners = Table((sizes.learners,)), sizes.learners
        return {
            "global_sent_seq": each,
            "global_seq": Table((1,)),
            "forwarded_seq": each,
            "readers": Table((2, learners, learners)),
            "codec": Table((2, learners)),
            "ready_from": each,
        }

    def begin_part(self) -> None:
        """Numbers begin at 0. By the host's own process, while no learner runs."""
        for table in vars(self).values():
            table[:] = 0
