"""BMUF: model averaging whose change from block to block is filtered by a momentum (Chen and Huo 2016; Li et al. 2017).

The equations are in algorithms/block_momentum.py. Every learner holds the same anchor and block momentum, and computes
the same update from the same mean, so only models are sent.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: everybody for the slowest, every `period` steps. A
segment ends with a block, a shorter one if need be. `momentum: null` is 1 - 1/N for N learners; the block learning rate
is 1. Where we differ: with Nesterov block momentum the model evaluated is the anchor W, as in the paper, which is what
rows hold between segments; the next segment starts again from the broadcast model.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.block_momentum import block_update_
from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Bmuf(Strategy):
    """Blockwise model-update filtering, classical or with Nesterov block momentum."""

    period: int = 20
    momentum: float | None = None
    rate: float = 1.0
    nesterov: bool = False

    name: ClassVar[str] = "bmuf"
    memory: ClassVar[tuple[str, ...]] = ("block_anchor", "block_delta", "block_broadcast")
    traits: ClassVar[Traits] = Traits(
        synchronous=True, conserves=False, staleness_bound=0, waits="everybody for the slowest, every period"
    )

    def __post_init__(self) -> None:
        if self.period < 1:
            raise UserError(f"bmuf.period is {self.period}: give 1 or more steps.")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise UserError(f"bmuf.momentum is {self.momentum}: choose a number from 0 up to, not including, 1.")
        if not self.rate > 0:
            raise UserError(f"bmuf.rate is {self.rate}: it must be above 0; 1 is usual.")

    @property
    def label(self) -> str:
        return f"{self.name} period {self.period}" + " nesterov" * self.nesterov

    @property
    def block(self) -> int:
        return self.period

    async def learn(self, me: Me) -> None:
        anchor, broadcast = me.memory["block_anchor"], me.memory["block_broadcast"]
        if me.steps == 0:
            anchor.copy_(me.x)
            broadcast.copy_(me.x)
        me.replace(broadcast)
        steps, frames = 0, 0
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            steps, frames = steps + 1, frames + batch.frames
            if steps == self.period:
                await self._end_block(me, frames)
                steps, frames = 0, 0
        if steps:
            await self._end_block(me, frames)
        me.replace(anchor)

    async def _end_block(self, me: Me, frames: int) -> None:
        momentum = 1 - 1 / me.learners if self.momentum is None else self.momentum
        anchor, delta, broadcast = (me.memory[name] for name in self.memory)
        mean = await Mean(me.everyone, me.x, float(frames))
        block_update_(anchor, delta, broadcast, mean, momentum, self.rate, self.nesterov)
        me.replace(broadcast)
