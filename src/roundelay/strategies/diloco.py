"""DiLoCo: many local steps, then one Nesterov step on what they have in common (Douillard et al. 2023, arXiv
2311.08105).

The equation is in algorithms/outer_momentum.py. The paper's local optimizer is AdamW (`optimizer.name=adamw`); any will
do. `rate` and `momentum` are the outer step's. `rate: null` moves as far as one learner does in as many examples, and
is at most the paper's 0.7: that is for 7 learners and more with a minibatch each, and overshoots for fewer.

Where we differ: first moments of the local optimizer start from zero after an outer step (`local_momentum: keep` is the
paper's), second moments stay.

Sent: one model (4 P bytes) a learner every `period` steps, which may be hundreds. Waits: everybody for the slowest,
every `period` steps.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.outer_momentum import outer_nesterov_
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive, share
from roundelay.strategies.periodic import LocalMomentum, Periodic, Setting

PAPER_RATE = 0.7
"""Of the outer step, with outer momentum 0.9 and a minibatch for each learner."""


@dataclass(frozen=True)
class DiLoCo(Periodic):
    """An outer Nesterov step on the mean of all models."""

    period: int = 50
    local_momentum: LocalMomentum = "reset"
    rate: float | None = None
    momentum: float = 0.9

    name: ClassVar[str] = "diloco"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_momentum")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        alone_is_sgd=False,
        waits="everybody for the slowest, every period",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        share(self.name, "momentum", self.momentum)
        if self.rate is not None:
            positive(self.name, "rate", self.rate)

    def settled(self, me: Setting) -> tuple[float, float]:
        """Momentum and rate of the outer step."""
        if self.rate is not None:
            return self.momentum, self.rate
        return self.momentum, min(PAPER_RATE, (1 - self.momentum) / self.shortfall(me))

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["outer_anchor"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, outer = (me.memory[name] for name in self.memory)
        momentum, rate = self.settled(me)
        outer_nesterov_(anchor, outer, mean, rate, momentum)
        me.replace(anchor)
