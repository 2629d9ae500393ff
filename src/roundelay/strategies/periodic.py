"""What the model-averaging family shares: train alone for `period` steps, then do something with the mean of all
models.

A segment ends with a block, a shorter one if need be, so that all rows are equal whenever a model is evaluated. Means
are weighted by the frames each learner has trained since the last one, so unequal shards need no special case.
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, at_least


@dataclass(frozen=True)
class Periodic(Strategy):
    """The loop; a strategy adds what happens at the end of a block."""

    period: int = 5

    def __post_init__(self) -> None:
        at_least(self.name, "period", self.period)

    @property
    def label(self) -> str:
        return f"{self.name} period {self.period}"

    @property
    def block(self) -> int:
        return self.period

    async def learn(self, me: Me) -> None:
        self.start(me)
        steps, frames = 0, 0
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            steps, frames = steps + 1, frames + batch.frames
            if steps == self.period:
                self.end_block(me, await Mean(me.everyone, me.x, float(frames)))
                steps, frames = 0, 0
        if steps:
            self.end_block(me, await Mean(me.everyone, me.x, float(frames)))
        self.finish(me)

    def start(self, me: Me) -> None:
        """Before the first block of a segment."""

    @abstractmethod
    def end_block(self, me: Me, mean: Tensor) -> None:
        """Given the mean (P,) of all models, which is the same on all learners, leave in the row where to go on."""

    def finish(self, me: Me) -> None:
        """After the last block of a segment: leave in the row the model to evaluate."""
