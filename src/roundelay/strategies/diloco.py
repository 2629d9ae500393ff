"""DiLoCo: many local steps, then one Nesterov step on what they have in common (Douillard et al. 2023, arXiv
2311.08105).

The equation is in algorithms/outer_momentum.py. The paper's local optimizer is AdamW (`optimizer.name=adamw`); any will
do. `rate` and `momentum` are the outer step's. The local optimizer's memory stays local from round to round.

Sent: one model (4 P bytes) a learner every `period` steps, which may be hundreds. Waits: everybody for the slowest,
every `period` steps.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.outer_momentum import outer_nesterov_
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive, share
from roundelay.strategies.periodic import Periodic


@dataclass(frozen=True)
class DiLoCo(Periodic):
    """An outer Nesterov step on the mean of all models."""

    period: int = 50
    rate: float = 0.7
    momentum: float = 0.9

    name: ClassVar[str] = "diloco"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_momentum")
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
            me.memory["outer_anchor"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, momentum = (me.memory[name] for name in self.memory)
        outer_nesterov_(anchor, momentum, mean, self.rate, self.momentum)
        me.replace(anchor)
