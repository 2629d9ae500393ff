"""ASGD: a parameter server whose model is the centre row (Li et al. 2017, equation 2; Dean et al. 2012).

Each learner trains its own row for `period` steps, then reports its change to the centre and goes on from the
centre (algorithms/parameter_server.py). `period` 1 is the classical form, in which the centre moves by gradients that
are as many updates old as others have reported meanwhile; a larger period is the delta form that was run for the paper.

There is no server process: the centre is one more row, and a report is an atomic exchange with it.

With `max_delay` R a report of age R or more is dropped, and its learner goes on from the centre as it is now:
Ringmaster ASGD (Maranjyan, Tyurin and Richtarik 2025, arXiv 2501.16168, algorithm 4). So a learner far behind does no
harm.

Where we differ from it: age counts dropped reports too, for they are exchanges with the centre like others, so R must
be at least the number of learners. Then the fastest learner, whom every other has passed at most once since it read the
centre, is never dropped. A minibatch whose report is dropped counts as trained: no learner computes it again.

Sent: one model each way (8 P bytes) a report. Waits: no learner for a slow one; reports queue up at the centre.
Staleness counts updates of the centre between reading it and reporting back. The centre is the model.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.parameter_server import Report
from roundelay.core.bounds import Count, Positive
from roundelay.core.effects import Draw, Exchange, Fetch, Grad
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


class Reporting(Strategy):
    """The base of strategies whose learners report to the centre, and go on from it."""

    memory: ClassVar[tuple[str, ...]] = ("pulled",)
    traits: ClassVar[Traits] = Traits(
        synchronous=False,
        conserves=False,
        staleness_bound=None,
        waits="none for the slowest; all for the centre",
        model="centre",
        ages="centre",
        rebuilt_from="pulled",
    )

    async def pull(self, me: Me) -> int | None:
        """Copy the centre into the row; return the version read."""
        read = await Fetch(me.centre, me.memory["pulled"])
        me.replace(me.memory["pulled"])
        return read


@dataclass(frozen=True)
class Asgd(Reporting):
    """Asynchronous SGD with a parameter server."""

    period: Count = 1
    """Local steps between two communications."""
    rate: Positive = 1.0
    """Factor on a learner's report at the parameter server."""
    staleness_aware: bool = False
    """Divide a learner's report by its staleness."""
    max_delay: Count | None = None
    """Updates of the centre after which a learner's report is dropped; null for none."""

    name: ClassVar[str] = "asgd"

    def check(self, learners: int) -> None:
        super().check(learners)
        if self.max_delay is not None and self.max_delay < learners:
            raise UserError(
                f"asgd.max_delay is {self.max_delay} with {learners} learners, who report one after the other: in the "
                f"end every report would be older and be dropped. Give {learners} or more, or fewer learners."
            )

    @property
    def label(self) -> str:
        threshold = "" if self.max_delay is None else f" max delay {self.max_delay}"
        return f"{self.name} period {self.period}" + " staleness-aware" * self.staleness_aware + threshold

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        each = learners / max(1, learners - 1) if self.staleness_aware else learners  # a report of age L - 1 is divided
        return self.rate * each / minibatches_a_round

    async def learn(self, me: Me) -> None:
        report = Report(self.rate, self.staleness_aware, self.max_delay or 0)
        pulled, steps, read = me.memory["pulled"], 0, await self.pull(me)
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            steps += 1
            if steps % self.period == 0:
                read = await Exchange(me.centre, report, (pulled,), since=read)
        if steps % self.period:
            await Exchange(me.centre, report, (pulled,), since=read)
