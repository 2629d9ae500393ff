"""Rennala SGD: a parameter server that gathers gradients at one point before it moves (Tyurin and Richtarik 2023, arXiv
2305.12387, method 4).

As in asgd each learner takes one step from the centre as it last read it and reports it; but the centre moves by the
mean of `batch` reports at a time, and a report from a point that it has left since is dropped
(algorithms/parameter_server.py). So every move is a step of SGD with the minibatches of `batch` learners, as under
ssgd, and no learner waits: a slow learner's report is dropped, and its place is taken by further reports of fast ones.

`batch: null` is the number of learners. With `stale` no report is dropped; and with a batch of 1 that is asgd, to the
bit.

Where we differ: a minibatch whose report is dropped counts as trained, and no learner computes it again. Of equally
fast learners L - 1 are at the old point when the centre moves, so that it moves L times in L + `batch` - 1 rounds of
them; there, too, by later papers of its authors, a worker goes on with the gradient it has begun.

Sent: one model each way (8 P bytes) a report. Waits: no learner for a slow one; reports queue up at the centre.
Staleness counts updates of the centre between reading it and reporting back, dropped reports too. The centre is the
model.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.parameter_server import GatheredReport
from roundelay.core.bounds import Count, Positive
from roundelay.core.effects import Draw, Exchange, Grad
from roundelay.core.state import Me
from roundelay.strategies.asgd import Reporting

GATHERED = ("gathered", "taken", "reports")


@dataclass(frozen=True)
class Rennala(Reporting):
    """Asynchronous minibatch SGD with a parameter server, whose gradients are all of one point."""

    batch: Count | None = None
    """Reports of one point by whose mean the centre moves; null for as many as learners."""
    rate: Positive = 1.0
    """Rate of the centre's moves, as a share of the mean of its reports."""
    stale: bool = False
    """Take reports from points that the centre has left, too."""

    name: ClassVar[str] = "rennala"
    centre_memory: ClassVar[tuple[str, ...]] = GATHERED

    @property
    def label(self) -> str:
        batch = "" if self.batch is None else f" batch {self.batch}"
        return self.name + batch + " stale" * self.stale

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        batch = self.batch or learners
        dropped = 0 if self.stale else learners - 1  # after each move, where all are equally fast
        return self.rate * learners / (batch + dropped) / minibatches_a_round

    async def learn(self, me: Me) -> None:
        report = GatheredReport(self.batch or me.learners, self.rate, self.stale)
        pulled, read = me.memory["pulled"], await self.pull(me)
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            read = await Exchange(me.centre, report, (pulled,), since=read, theirs=GATHERED)
