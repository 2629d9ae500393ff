"""An effect that reaches another's row and has nothing but a class and a rule; a module of its own because learner
processes import it by name."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.core.codec import FP32
from roundelay.core.effects import Begin, Draw, Grad, Reach, Wait
from roundelay.core.flat import slices
from roundelay.core.state import Me
from roundelay.runtime.rows import REACH_RULES, ChunkWork, ReachRule, Row
from roundelay.runtime.trace import Access, Use
from roundelay.strategies.base import Strategy, Traits


@dataclass(frozen=True)
class Overwrite(Reach):
    """Copy the private vector `vector` (P,) over row `peer`."""

    vector: Tensor


def _prepare(mine: Row, theirs: Row, effect: Overwrite) -> ChunkWork:
    chunks = list(zip(theirs.parts, slices(effect.vector), strict=True))
    return lambda number: chunks[number][0].copy_(chunks[number][1])


REACH_RULES[Overwrite] = ReachRule(Access(theirs=Use.WRITTEN), _prepare, lambda effect: (FP32, None))


@dataclass(frozen=True)
class Overwriting(Strategy):
    """Every learner overwrites the next one's row by its own as it was, now and then; every other time begun."""

    name: ClassVar[str] = "overwriting"
    memory: ClassVar[tuple[str, ...]] = ("own",)
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=False, staleness_bound=None, waits="none")

    async def learn(self, me: Me) -> None:
        own, peer = me.memory["own"], (me.rank + 1) % me.learners
        while batch := await Draw():
            here = me.snapshot()
            own.copy_(here.vector)
            if me.steps % 3 == 0:
                await Overwrite(peer, own)
            begun = await Begin(Overwrite(peer, own)) if me.steps % 3 == 1 else None
            me.step(await Grad(here, batch))
            if begun is not None:
                await Wait(begun)
