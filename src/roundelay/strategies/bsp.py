"""BSP model averaging: every learner trains alone for `period` steps, then all take the mean of their models.

    x <- sum_l n_l x_l / sum_l n_l        n_l frames learner l has trained since the last mean      (Li et al. 2017, eq.
    1)

Sent: one model (4 P bytes) a learner every `period` steps. Waits: everybody for the slowest, every `period` steps. A
segment ends with a mean, so all rows are equal whenever a model is evaluated. Momentum buffers stay local.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Bsp(Strategy):
    """Periodic model averaging."""

    period: int = 5

    name: ClassVar[str] = "bsp"
    traits: ClassVar[Traits] = Traits(
        synchronous=True, conserves=False, staleness_bound=0, waits="everybody for the slowest, every period"
    )

    def __post_init__(self) -> None:
        if self.period < 1:
            raise UserError(f"bsp.period is {self.period}: give 1 or more steps.")

    @property
    def label(self) -> str:
        return f"{self.name} period {self.period}"

    @property
    def block(self) -> int:
        return self.period

    async def learn(self, me: Me) -> None:
        steps, frames = 0, 0
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            steps, frames = steps + 1, frames + batch.frames
            if steps == self.period:
                me.replace(await Mean(me.everyone, me.x, float(frames)))
                steps, frames = 0, 0
        if steps:
            me.replace(await Mean(me.everyone, me.x, float(frames)))
