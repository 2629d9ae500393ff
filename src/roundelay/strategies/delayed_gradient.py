"""SGD on a gradient one step old: the allreduce of gradients hides behind the next gradient.

    x_{k+1} = x_k - lr * mean_l grad f(x_{k-1}; b_l)        the first step's late gradient is 0

The baseline that delay-by-one must not be confused with: here all rows stay equal bit for bit, and the gradient is
late. On a quadratic it is stable up to lr x curvature 1 only, half of what synchronous SGD bears (docs/stability.md).

Sent: one gradient (4 P bytes) a learner and step. Waits: all learners for the slowest, but behind the gradient. The
mean still to be applied is kept from one segment to the next, so evaluating, or stopping and going on, changes nothing;
the last one of a run is never applied.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.effects import Begin, Draw, Grad, Mean, Wait
from roundelay.core.state import Gradient, Me, Statistics
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class DelayedGradient(Strategy):
    """Pipelined allreduce SGD."""

    name: ClassVar[str] = "delayed-gradient"
    memory: ClassVar[tuple[str, ...]] = ("delayed",)
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=1,
        waits="all for the slowest, behind the gradient",
        alone_is_sgd=False,
        rows="equal",
        mixes=False,
    )

    async def learn(self, me: Me) -> None:
        delayed, version = me.memory["delayed"], me.snapshot().version - 1
        late = None
        while batch := await Draw():
            here = me.snapshot()
            gradient = await Grad(here, batch)
            if late is not None:
                delayed.copy_(await Wait(late))
            me.step(Gradient(delayed, version, Statistics()))
            delayed.copy_(gradient.vector)
            late, version = await Begin(Mean(me.everyone, delayed, gradient.weight)), here.version
        if late is not None:
            delayed.copy_(await Wait(late))
