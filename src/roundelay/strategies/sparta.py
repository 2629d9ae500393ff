"""SPARTA: every step learners average one part of the model, drawn at random, and train on (Beton, Reed, Howes, Cheema
and Baioumy 2025, "Improving the efficiency of distributed training using sparse parameter averaging").

    x_l    <- x_l - lr g(x_l)
    x_l[f] <- mean_j x_j[f]              every `period` steps, f one of `fragments` parts, drawn anew each time

A part is a share of 1 / `fragments` of all parameters; after n rounds a share 1 - (1 - 1 / fragments)^n of them has
been averaged at least once. With one fragment and period 1 it is bsp of period 1 for minibatches of one size, and
gossip-pga of period 1 for any.

Source: the code of its authors (EXO Gym, `sparta.py`), which averages elements drawn one by one with a probability of
0.005, each worker alike; the paper's own text was not read. Where we differ: a part is a run of the row, so that no
places need to be sent. Not here: averages that come some steps late, and DiLoCo around it.

Sent: 4 P / fragments bytes a learner every `period` steps, in an allreduce. Waits: all learners for the slowest, every
`period` steps.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.bounds import Count
from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.flat import VectorFragment
from roundelay.core.state import Me
from roundelay.core.streams import stream
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Sparta(Strategy):
    """SPARTA: local SGD with means of random parts of the model."""

    fragments: Count = 200
    """Parts of the model, of which one is averaged each time."""
    period: Count = 1
    """Local steps between two communications."""

    name: ClassVar[str] = "sparta"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="all for the slowest, every period",
        rows="own",
        mixes=False,
    )

    @property
    def cuts_rows(self) -> bool:
        return self.fragments > 1

    @property
    def label(self) -> str:
        return f"{self.name} fragments {self.fragments}" + f" period {self.period}" * (self.period > 1)

    def drawn(self, me: Me) -> VectorFragment:
        """Return the part of the model that all learners average after this learner's present step."""
        return VectorFragment(int(stream(me.seed, "slice", me.steps).integers(self.fragments)), self.fragments)

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            if me.steps % self.period:
                continue
            fragment = self.drawn(me)
            part = fragment.within(len(me.x))
            row = me.x.clone()
            row[part] = await Mean(me.everyone, me.x[part], fragment=fragment)
            me.replace(row)
