"""Asynchronous SGD with a parameter server (Li et al. 2017, equation 2), in the form that was run for that paper.

The centre w~ is the model a server would hold. A learner remembers the centre as it last read it, p, and trains its own
row w from there. When it reports, under the locks of both:

    d  = w - p                    its change since
    w~ = w~ + rate * scale * d
    w  = p = w~

After one local step of plain SGD, d = -lr * grad f(p): the classical delayed gradient, w~ <- w~ - lr * grad f(w~ as it
was `age` updates ago). After several it is the delta form. Age is the number of updates of the centre, by any learner,
since this learner last read it.

Staleness-aware (Zhang, Gupta, Lian and Liu 2016): scale = 1 / max(1, age) instead of 1.

With a largest delay R (Maranjyan, Tyurin and Richtarik 2025, "Ringmaster ASGD", arXiv 2501.16168) a report of age R or
more is dropped: w~ stays, and w = p = w~.

A centre that gathers (Rennala SGD: Tyurin and Richtarik 2023, arXiv 2305.12387, method 4) moves by the mean of B
reports. Beside it are G, the sum of those taken since it last moved, n, their number, and r, the number of all since:

    age <= r:   G <- G + d,  n <- n + 1           else it has moved since p was read, and the report is dropped
    r <- r + 1
    n = B:      w~ <- w~ + rate G / B,  G, n, r <- 0
    w = p = w~

Legend: C elements of a chunk.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Report:
    """The exchange of a learner's row with the centre under ASGD."""

    rate: float = 1.0
    staleness_aware: bool = False
    max_delay: int = 0  # 0: none is dropped

    def __call__(self, mine: Tensor, centre: Tensor, pulled: Tensor, age: int) -> None:
        """Update `mine`, `centre` and `pulled` (C,) in place."""
        if not self.max_delay or age < self.max_delay:
            scale = 1 / max(1, age) if self.staleness_aware else 1.0
            mine.sub_(pulled)
            centre.add_(mine, alpha=self.rate * scale)
        mine.copy_(centre)
        pulled.copy_(centre)


@dataclass(frozen=True)
class GatheredReport:
    """The exchange of a learner's row with a centre that gathers several changes before it applies them. Counts are
    vectors with all elements equal, since an exchange gets nothing but vectors."""

    batch: int
    rate: float = 1.0
    stale: bool = False

    def __call__(
        self, mine: Tensor, centre: Tensor, pulled: Tensor, gathered: Tensor, taken: Tensor, reports: Tensor, age: int
    ) -> None:
        """Update `mine`, `centre`, `pulled`, and G, n and r, (C,) each, in place."""
        if self.stale or age <= int(reports[0]):
            gathered.add_(mine.sub_(pulled))
            taken.add_(1)
        reports.add_(1)
        if int(taken[0]) == self.batch:
            centre.add_(gathered, alpha=self.rate / self.batch)
            for vector in (gathered, taken, reports):
                vector.zero_()
        mine.copy_(centre)
        pulled.copy_(centre)
