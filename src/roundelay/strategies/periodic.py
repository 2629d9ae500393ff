"""The model-averaging family: train alone for `period` steps, then do something with the mean of all models.

A segment ends with a block, a shorter one if need be, so that all rows are equal whenever a model is evaluated. Means
are weighted by the frames each learner has trained since the last one, so unequal shards need no special case.

At a block's end the local optimizer's momentum (its first moments) is, by `local_momentum`,

    reset      set to zero: the model goes on from another place than the one the momentum was gathered at
    keep       left as it is, each learner's own
    average    replaced by the mean over all learners, weighted as models are; this sends each vector beside the model

With one learner nothing moves at a block's end, and momentum is kept.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from roundelay.algorithms.outer_momentum import settle_outer
from roundelay.core.bounds import Count, Positive, ShareBelowOne
from roundelay.core.effects import Draw, Effect, Grad, Mean
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.core.state import Me
from roundelay.strategies.base import Strategy, Traits

LocalMomentum = Literal["reset", "keep", "average"]


class Setting(Protocol):
    """The part of a learner (`core.state.Me`) that the default block momentum and rate follow from."""

    @property
    def learners(self) -> int: ...

    @property
    def minibatches_a_round(self) -> int: ...

    def share_after_reset(self, steps: int) -> float: ...


@dataclass(frozen=True)
class PlainSetting:
    """A setting of learners without local momentum."""

    learners: int
    minibatches_a_round: int

    def share_after_reset(self, steps: int) -> float:
        """Return 1: no step is smaller for being the first."""
        return 1.0


class LocalSteps(Strategy):
    """The base of strategies whose learners train alone for `period` steps, then do something together."""

    period: Count
    """Local steps between two communications."""
    local_momentum: LocalMomentum
    """Treatment of the learners' optimizers when models are averaged; reset sets their momentum to zero."""

    def shortfall(self, me: Setting) -> float:
        """Return the distance that the mean of all models moves in a round under a constant gradient, as a share of the
        distance that one learner moves in the steps that the round stands for.

        1/L where every learner has a minibatch of its own (L of them are one step of each; Li et al. 2017), 1 where
        they share one minibatch; less where local momentum starts from zero in every block.
        """
        resets = self.local_momentum == "reset" and me.learners > 1
        return (me.share_after_reset(self.period) if resets else 1.0) / me.minibatches_a_round

    async def settle_momentum(self, me: Me, mean: Callable[[Tensor], Effect[Tensor]]) -> None:
        """Keep, reset or average the local optimizer's momentum, as `local_momentum` says, after models were averaged;
        `mean` averages a vector."""
        if self.local_momentum == "reset":
            me.reset_momentum()
        elif self.local_momentum == "average":
            for vector in me.momentum.values():
                vector.copy_(await mean(vector))


class OuterStep(LocalSteps):
    """The base of strategies with an outer step, with a momentum and a rate, after learners have trained alone."""

    momentum: ShareBelowOne | None
    """Momentum of the outer step."""
    rate: Positive | None
    """Rate of the outer step; null moves as far as one learner does on as many examples, at most 0.7."""

    @abstractmethod
    def settled(self, me: Setting) -> tuple[float, float]:
        """Return the momentum and rate of the outer step, as given or as they follow from the setting."""

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        plain = PlainSetting(learners, minibatches_a_round)
        momentum, rate = self.settled(plain)
        return self.shortfall(plain) * rate / (1 - momentum)


class OuterMomentum(OuterStep):
    """The base of outer steps with a given momentum, from which the rate follows as in `diloco`."""

    momentum: ShareBelowOne

    def settled(self, me: Setting) -> tuple[float, float]:
        return self.momentum, settle_outer(self.momentum, self.rate, self.shortfall(me))


@dataclass(frozen=True)
class Blocks(LocalSteps):
    """The loop of blocks: train alone for `period` steps, then end the block together, as a strategy says."""

    period: Count = 5
    local_momentum: LocalMomentum = "keep"

    @property
    def label(self) -> str:
        return f"{self.name} period {self.period}"

    @property
    def block(self) -> int:
        return self.period

    async def learn(self, me: Me) -> None:
        self.start(me)
        steps, frames = 0, 0.0
        while batch := await Draw():
            gradient = await Grad(me.snapshot(), batch)
            me.step(gradient)
            steps, frames = steps + 1, frames + gradient.weight
            if steps == self.period:
                await self._end_block(me, frames)
                steps, frames = 0, 0.0
        if steps:
            await self._end_block(me, frames)
        self.finish(me)

    @abstractmethod
    async def _end_block(self, me: Me, frames: float) -> None:
        """Leave in the row the model to go on from, after a block in which this learner has trained `frames` frames."""

    def start(self, me: Me) -> None:
        """Prepare the learner's memory before the first block of a segment."""

    def finish(self, me: Me) -> None:
        """Finish after the last block of a segment: leave in the row the model to evaluate."""


@dataclass(frozen=True)
class Periodic(Blocks):
    """Blocks that end with the mean of all models; a strategy adds what is done with it."""

    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        waits="all for the slowest, every period",
        mixes=False,
    )

    async def _end_block(self, me: Me, frames: float) -> None:
        self.end_block(me, await self.given(me, frames))
        await self._settle_momentum(me, frames)

    async def _settle_momentum(self, me: Me, frames: float, fragment: VectorFragment = WHOLE) -> None:
        if me.learners == 1 or self.local_momentum == "keep":
            return
        if self.local_momentum == "reset" and fragment == WHOLE:
            me.reset_momentum()
            return
        for vector in me.momentum.values():
            part = vector[fragment.within(len(vector))]
            if self.local_momentum == "reset":
                part.zero_()
            else:
                part.copy_(await Mean(me.everyone, part, frames, fragment=fragment))

    def given(self, me: Me, frames: float) -> Mean:
        """Return the mean that a block ends with: of all models, by the frames each was trained with."""
        return Mean(me.everyone, me.x, frames)

    @abstractmethod
    def end_block(self, me: Me, mean: Tensor) -> None:
        """Leave in the row the model to go on from, given the mean (P,) of all models (or of what `given` says), which
        is the same on all learners."""
