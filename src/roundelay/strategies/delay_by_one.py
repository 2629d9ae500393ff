"""Delay-by-one: the allreduce of the models runs while the gradient is taken at the model not yet averaged.

Named and motivated in Zhang et al. 2020 (arXiv 2002.01119) and Cui et al. 2021 (arXiv 2110.11199), who hide the
communication of decentralized SGD behind the gradient. With T the matrix of 1/L:

    W_{k+1} = W_k T - lr * g(W_k)
    x_l <- mean_j x_j - lr * grad f(x_l; b_l)

It follows that the mean of all learners moves by the mean gradient, as in synchronous SGD, and that a learner is away
from that mean by exactly one step of its own gradient noise, for every L.

Sent: one model (4 P bytes) a learner and step. Waits: all learners for the slowest, but behind the gradient.
Not to be confused with SGD on a gradient one step old, which is another method. The papers' bodies could not be read
for this implementation; the model-averaging form is our reading of their published abstracts and source comments.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.effects import Begin, Draw, Grad, Mean, Wait
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class DelayByOne(Strategy):
    """D-PSGD on the complete graph, in consensus order, with the communication overlapped."""

    name: ClassVar[str] = "delay-by-one"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=1,
        waits="all for the slowest, behind the gradient",
        rows="own",
        mixes=False,
    )

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            mean = await Begin(Mean(me.everyone, me.x))
            gradient = await Grad(me.snapshot(), batch)
            me.replace(await Wait(mean))
            me.step(gradient)
