"""SlowMo: local SGD with a slow momentum on the mean (Wang, Tantia, Ballas and Rabbat 2020, arXiv 1910.00643).

The equation is in algorithms/outer_momentum.py: classical BMUF whose momentum is kept in units of gradients, so that it
shrinks when the learning rate does.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: all learners for the slowest, every `period` steps.
Block momentum and rate are by default bmuf's, which follow from the minibatch; fairscale, whose code names the paper,
has the rate 1 and tries momenta up to 0.6.

Where we differ: the base is local SGD with the learner's own optimizer; the gossip base is not offered.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.outer_momentum import slow_momentum_
from roundelay.core.bounds import Count
from roundelay.core.state import Me
from roundelay.strategies.bmuf import BlockMomentum


@dataclass(frozen=True)
class SlowMo(BlockMomentum):
    """SlowMo: a slow momentum on the mean of models trained by local SGD."""

    period: Count = 12

    name: ClassVar[str] = "slowmo"
    block_memory: ClassVar[tuple[str, ...]] = ("slow_anchor", "slow_momentum")

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["slow_anchor"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, slow = (me.memory[name] for name in self.block_memory)
        momentum, rate = self.settled(me)
        slow_momentum_(anchor, slow, mean, me.learning_rate, momentum, rate)
        me.replace(anchor)
