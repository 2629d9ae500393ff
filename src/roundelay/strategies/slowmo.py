"""SlowMo: local SGD with a slow momentum on the mean (Wang, Tantia, Ballas and Rabbat 2020, arXiv 1910.00643).

The equation is in algorithms/outer_momentum.py: classical BMUF whose momentum is kept in units of gradients, so that it
shrinks when the learning rate does.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: everybody for the slowest, every `period` steps.
Where we differ: the base is local SGD with the learner's own optimizer, whose momentum is neither reset nor averaged.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.outer_momentum import slow_momentum_
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive, share
from roundelay.strategies.periodic import Periodic


@dataclass(frozen=True)
class SlowMo(Periodic):
    """Slow momentum over local SGD."""

    period: int = 12
    momentum: float = 0.5
    rate: float = 1.0

    name: ClassVar[str] = "slowmo"
    memory: ClassVar[tuple[str, ...]] = ("slow_anchor", "slow_momentum")
    traits: ClassVar[Traits] = Traits(
        synchronous=True, conserves=False, staleness_bound=0, alone_is_sgd=False,
        waits="everybody for the slowest, every period",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        share(self.name, "momentum", self.momentum)
        positive(self.name, "rate", self.rate)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["slow_anchor"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, momentum = (me.memory[name] for name in self.memory)
        slow_momentum_(anchor, momentum, mean, me.learning_rate, self.momentum, self.rate)
        me.replace(anchor)
