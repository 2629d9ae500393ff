"""Strategies whose every message is coded; a module of its own because learner processes import it by name."""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs import codec_named
from roundelay.core.codec import Codec
from roundelay.core.effects import Begin, Draw, Exchange, Grad, GradMean, Handle, Mean, Mix, Wait
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Together(Strategy):
    """A mean of gradients, one of rows that was begun before, and a mix with one neighbour, each with a memory of its
    own. The last learner has no weight in the mean of rows."""

    codec: str = "fp32"

    name: ClassVar[str] = "together"
    memory: ClassVar[tuple[str, ...]] = ("gradients left", "means left", "mixes left")
    traits: ClassVar[Traits] = Traits(synchronous=True, conserves=False, staleness_bound=0, waits="everybody")

    def codec_with(self, memory: str) -> Codec:
        """Return the codec, with the vector `memory` for what it leaves out."""
        return codec_named(self.codec, memory=memory)

    async def learn(self, me: Me) -> None:
        gradients, means, mixes = map(self.codec_with, self.memory)
        before, after = (me.rank - 1) % me.learners, (me.rank + 1) % me.learners
        weights = tuple(sorted({me.rank: 0.75, before: 0.25}.items()))
        while batch := await Draw():
            me.step(await GradMean(me.snapshot(), batch, me.everyone, gradients))
            weight = float(me.learners - 1 - me.rank)
            handle = await Begin(Mean(me.everyone, me.x, weight, means))
            me.replace(await Wait(handle))
            me.replace(await Mix(weights, (after,) if after != me.rank else (), me.x, mixes))


@dataclass(frozen=True)
class Pairs(Strategy):
    """Every learner averages with the next one after every step, and the exchange is begun with the step."""

    codec: str = "fp32"
    remembers: bool = True

    name: ClassVar[str] = "pairs"
    memory: ClassVar[tuple[str, ...]] = ("rows left",)
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=None, waits="none")

    async def learn(self, me: Me) -> None:
        codec = codec_named(self.codec, memory=self.memory[0] if self.remembers else "")
        under_way: Handle[int | None] | None = None
        while batch := await Draw():
            here = me.snapshot()
            if under_way is None or under_way.done:
                peer = (me.rank + 1) % me.learners
                under_way = await Begin(Exchange(peer, pair_average_, codec=codec))
            me.step(await Grad(here, batch))
        if under_way is not None:
            await Wait(under_way)
