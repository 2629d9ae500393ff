"""Stochastic gradient descent on one learner: the measure of all others.

    x <- x - lr * grad f(x; b)

Nothing is sent, no learner waits.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.effects import Draw, Grad
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Strategy, Traits


@dataclass(frozen=True)
class SerialSgd(Strategy):
    """Plain minibatch SGD on one learner."""

    name: ClassVar[str] = "sgd"
    traits: ClassVar[Traits] = Traits(synchronous=True, conserves=True, staleness_bound=0, waits="none", mixes=False)

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset()

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))

    def check(self, learners: int) -> None:
        super().check(learners)
        if learners != 1:
            raise UserError(
                f"strategy sgd is for one learner, not {learners}. For several choose ssgd, adpsgd or delay-by-one."
            )
