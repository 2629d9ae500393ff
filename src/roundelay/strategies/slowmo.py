"""SlowMo: local SGD with a slow momentum on the mean (Wang, Tantia, Ballas and Rabbat 2020, arXiv 1910.00643).

The equation is in algorithms/outer_momentum.py: classical BMUF whose momentum is kept in units of gradients, so that it
shrinks when the learning rate does.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: everybody for the slowest, every `period` steps.
Block momentum and rate are by default bmuf's, which follow from the minibatch; fairscale, whose code names the paper,
has the rate 1 and tries momenta up to 0.6.

Where we differ: the base is local SGD with the learner's own optimizer; the gossip base is not offered.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.block_momentum import settle_block
from roundelay.algorithms.outer_momentum import slow_momentum_
from roundelay.core.bounds import Count, Positive, ShareBelowOne
from roundelay.core.state import Me
from roundelay.strategies.base import Traits
from roundelay.strategies.periodic import LocalMomentum, OuterStep, Setting
from roundelay.strategies.quorate import Quorate


@dataclass(frozen=True)
class SlowMo(OuterStep, Quorate):
    """Slow momentum over local SGD."""

    period: Count = 12
    local_momentum: LocalMomentum = "reset"
    momentum: ShareBelowOne | None = None
    """Block momentum; null follows from the minibatch, the local momentum and the period."""
    rate: Positive | None = None
    """Block rate; null for 1, or what follows from a given momentum."""

    name: ClassVar[str] = "slowmo"
    block_memory: ClassVar[tuple[str, ...]] = ("slow_anchor", "slow_momentum")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        waits="everybody for the slowest, every period",
        mixes=False,
    )

    def settled(self, me: Setting) -> tuple[float, float]:
        return settle_block(self.momentum, self.rate, self.shortfall(me))

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["slow_anchor"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, slow = (me.memory[name] for name in self.block_memory)
        momentum, rate = self.settled(me)
        slow_momentum_(anchor, slow, mean, me.learning_rate, momentum, rate)
        me.replace(anchor)
