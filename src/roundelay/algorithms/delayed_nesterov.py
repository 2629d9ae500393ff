"""Delayed Nesterov: an outer optimizer for reports that come one by one (Liu et al. 2024, "Asynchronous Local-SGD
Training for Language Modeling", arXiv 2401.09135).

The centre is W, with a momentum m and a buffer D beside it, both zero at first. Report number t (from 1) brings
d = p - w: p is the centre as its learner last read it, w where it has come from there.

    D <- D + d
    t mod N != 0:   W <- W - rate d / N
    t mod N == 0:   m <- mu m + D / N
                    W <- W - rate (d / N + mu m),   D <- 0

and the learner goes on from w = p = W. So the momentum of late reports does not add up: over N of them W goes as by one
Nesterov step on their mean. With N = 1 and one learner that is DiLoCo's outer step, to the bit.

Reports that come late may weigh less, and be turned towards the momentum, before all of this (stale_reports.py).

Source: torchft's asynchronous DiLoCo, which names it as algorithm 3 of that paper, and has a rate of 0.7 and a momentum
of 0.9 by default; of the paper itself the abstract was read.

Legend: C elements of a chunk.
"""

from dataclasses import dataclass

from torch import Tensor

from roundelay.algorithms.stale_reports import turn_, weight_of_age


@dataclass(frozen=True)
class OuterReport:
    """The exchange of a learner's row with the centre."""

    rate: float
    momentum: float
    reports: int
    """N: the reports between two steps of the momentum."""
    read: int
    """Version of the centre that the learner has read: the number of reports before it."""
    decay: float = 0.0
    cutoff: float = 0.0
    """Age, in outer steps, from which a report weighs nothing; 0: none is too old."""
    keep: float = -1.0
    """Cosine between a report and the momentum below which it is turned; -1: none is."""

    def __call__(self, mine: Tensor, centre: Tensor, pulled: Tensor, outer: Tensor, gathered: Tensor, age: int) -> None:
        """Change five vectors (C,) in place: my row, the centre, my copy of the centre as last read, and m and D beside
        the centre."""
        change = pulled - mine
        if self.keep > -1:
            turn_(change, outer, self.keep, 1 - self.momentum)
        if self.decay or self.cutoff:
            change.mul_(weight_of_age(age // self.reports, self.decay, self.cutoff))
        if self.reports > 1:
            gathered.add_(change)
            change.div_(self.reports)
        if (self.read + age + 1) % self.reports == 0:
            outer.mul_(self.momentum)
            if self.reports > 1:
                outer.add_(gathered, alpha=1 / self.reports)
                gathered.zero_()
            else:
                outer.add_(change)
            change.add_(outer, alpha=self.momentum)
        centre.sub_(change, alpha=self.rate)
        mine.copy_(centre)
        pulled.copy_(centre)


def local_steps(period: int, learners: int, taken: int, drawn: int) -> int:
    """Return the steps of a learner until its next report, by its speed, so that all report equally often (the paper's
    DyLU): `period` times its speed over that of the mean learner, rounded down, at least 1.

    Args:
        taken: steps of the learner since its last report, while all learners together drew `drawn` minibatches.
    """
    if drawn < taken:  # minibatches of a dead learner are drawn again
        return period
    return max(1, period * learners * taken // drawn)
