"""Local SGD whose period doubles: means are many while models move fast, and few later.

    x <- mean_l x_l       after p, 2 p, 4 p, ... p 2^d steps, and from there on after every p 2^d

with `period` p and `doublings` d. Stich 2019 ("Local SGD converges fast and communicates little") averages models after
equal periods; they double here for the example.

Sent: one model (4 P bytes) a learner and block. Waits: all learners for the slowest, every block.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.bounds import Count, Whole
from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Doubling(Strategy):
    """Periodic averaging whose period doubles."""

    period: Count = 2
    """Local steps of the first block."""
    doublings: Whole = 4
    """Times that the period doubles."""

    name: ClassVar[str] = "doubling"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="all for the slowest, every block",
        mixes=False,
    )

    @property
    def label(self) -> str:
        return f"doubling period {self.period} to {self.block}"

    @property
    def block(self) -> int:
        return self.period << self.doublings

    def is_due(self, steps: int) -> bool:
        """Return True if a block ends after so many steps."""
        blocks, rest = divmod(steps, self.period)
        return steps % self.block == 0 or (steps < self.block and rest == 0 and blocks.bit_count() == 1)

    async def learn(self, me: Me) -> None:
        alone = False
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            if alone := not self.is_due(me.steps):
                continue
            me.replace(await Mean(me.everyone, me.x))
        if alone:
            me.replace(await Mean(me.everyone, me.x))
