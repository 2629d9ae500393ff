"""Asynchronous DiLoCo: each learner has an outer step with the centre when it is ready (Liu et al. 2024, arXiv
2401.09135).

A learner trains from the centre for `period` local steps, reports its change, and goes on from the centre as
it is then. The outer optimizer is delayed Nesterov (algorithms/delayed_nesterov.py): every report moves the centre by
its N-th part, and every N-th report the momentum, too. With `by_speed` a learner takes as many steps as its speed says,
so that all report equally often (their dynamic local updates).

`rate` and `momentum` are the outer step's. N is `reports`; null for the number of learners. `rate: null` is as in
diloco: the centre moves as far as one learner in as many examples, and the rate is at most 0.7. One learner with N = 1
is diloco of one learner, to the bit.

Two remedies for late reports (algorithms/stale_reports.py): `decay` and `cutoff` weigh a report by its age in outer
rounds (CGAD), `keep` turns one whose cosine with the outer momentum is smaller (HeLoCo). Off by default.

Where we differ: `period` is for a learner of the mean speed, torchft's for the fastest, since a learner knows its
share of all minibatches drawn and no other learner's; in loops that draw for themselves (attach) speed is not known,
and all take `period` steps. First moments of the local optimizer start from zero after a report (`local_momentum: keep`
leaves them). A segment ends with a report, of fewer steps if need be. Torchft's grace period for reports that come
together is left out.

Sent: one model each way (8 P bytes) a report. Waits: no learner for a slow one; reports queue up at the centre.
Staleness counts reports of others between reading the centre and reporting back. The centre is the model.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from roundelay.algorithms.delayed_nesterov import OuterReport, local_steps
from roundelay.core.bounds import Bounds, Count, NonNegative, Positive, ShareBelowOne
from roundelay.core.effects import Draw, Exchange, Grad
from roundelay.core.state import Me
from roundelay.strategies.asgd import Reporting
from roundelay.strategies.base import Traits
from roundelay.strategies.periodic import OuterMomentum

BESIDE = ("momentum", "gathered")


@dataclass(frozen=True)
class AsyncDiLoCo(OuterMomentum, Reporting):
    """Asynchronous DiLoCo: outer steps of each learner with the centre, by delayed Nesterov momentum."""

    period: Count = 50
    local_momentum: Literal["reset", "keep"] = "reset"
    """Treatment of a learner's optimizer when it reports; reset sets its momentum to zero."""
    rate: Positive | None = None
    momentum: ShareBelowOne = 0.9
    reports: Count | None = None
    """Reports to one step of the outer momentum; null for as many as learners."""
    by_speed: bool = False
    """Take as many local steps as a learner's speed says, so that all report equally often."""
    decay: NonNegative = 0.0
    """Weight that a report loses with every outer round that it is old, as exp(-decay rounds); 0 for none."""
    cutoff: Positive | None = None
    """Outer rounds at which a report is too old to count; null for none."""
    keep: Annotated[float, Bounds(above=-1, most=1)] | None = None
    """Cosine between a report and the outer momentum below which it is turned towards it; null for never."""

    name: ClassVar[str] = "async-diloco"
    centre_memory: ClassVar[tuple[str, ...]] = BESIDE
    traits: ClassVar[Traits] = replace(Reporting.traits, alone_is_sgd=False)

    @property
    def label(self) -> str:
        late = f" decay {self.decay:g}" * (self.decay > 0)
        late += "" if self.cutoff is None else f" cutoff {self.cutoff:g}"
        late += "" if self.keep is None else f" keep {self.keep:g}"
        return f"{self.name} period {self.period}" + " by speed" * self.by_speed + late

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        return super().distance(learners, minibatches_a_round) * learners / (self.reports or learners)

    async def learn(self, me: Me) -> None:
        read = await self.pull(me)
        steps, due, first = 0, self.period, -1
        while batch := await Draw():
            if steps == 0:
                if self.by_speed and first >= 0:
                    due = local_steps(self.period, me.learners, due, batch.index - first)
                first = batch.index
            me.step(await Grad(me.snapshot(), batch))
            steps += 1
            if steps == due:
                read, steps = await self._report(me, read), 0
        if steps:
            await self._report(me, read)

    async def _report(self, me: Me, read: int | None) -> int | None:
        momentum, rate = self.settled(me)
        late = self.decay, self.cutoff or 0.0, -1.0 if self.keep is None else self.keep
        report = OuterReport(rate, momentum, self.reports or me.learners, read or 0, *late)
        version = await Exchange(me.centre, report, (me.memory["pulled"],), since=read, theirs=BESIDE)
        if me.learners > 1 and self.local_momentum == "reset":
            me.reset_momentum()
        return version
