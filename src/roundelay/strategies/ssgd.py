"""Synchronous SGD: allreduce of gradients, every step.

    g = sum_l n_l grad f(x; b_l) / sum_l n_l        n_l frames of learner l's minibatch
    x <- x - lr * g                                 on every learner, so all rows stay equal bit for bit

Sent: one gradient (4 P bytes) a learner and step. Waits: everybody for the slowest, every step. The mean is weighted by
frames, so the last, uneven round of an epoch needs no special case: L learners do exactly what one learner does with a
minibatch L times as large.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.effects import Draw, GradMean
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Strategy, Traits


@dataclass(frozen=True)
class Ssgd(Strategy):
    """Allreduce SGD."""

    name: ClassVar[str] = "ssgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="everybody for the slowest, every step",
        rows="equal",
        mixes=False,
    )

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset(("wire", "means"))

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            me.step(await GradMean(me.snapshot(), batch, me.everyone))
