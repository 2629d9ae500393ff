"""BMUF: model averaging whose change from block to block is filtered by a momentum (Chen and Huo 2016; Li et al. 2017).

The equations are in algorithms/block_momentum.py. Every learner holds the same anchor and block momentum, and computes
the same update from the same mean, so only models are sent.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: all learners for the slowest, every `period` steps.
Block momentum and rate are by default those with which a block moves as far as one learner does (`settle_block`): where
each of N learners has a minibatch of its own 1 - 1/N and 1; where they share one, momentum makes up for the loss of the
local optimizer's momentum, which starts anew in every block, as it does in CNTK. With Nesterov block momentum the model
evaluated is the anchor W, which rows hold between segments; the next segment starts again from the broadcast model.
Where we differ: means are weighted by frames, and a segment ends with a block, a shorter one if need be.

`bmuf-fairseq` is the recursion of fairseq with `use_nbm`, which has no anchor apart from the broadcast model: classical
block momentum with 1 + momentum times the block rate.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.block_momentum import block_update_, block_update_single_, settle_block
from roundelay.core.bounds import Count, Positive, ShareBelowOne
from roundelay.core.state import Me
from roundelay.strategies.periodic import LocalMomentum, OuterStep, PlainSetting, Setting
from roundelay.strategies.quorate import Quorate


@dataclass(frozen=True)
class BlockMomentum(OuterStep, Quorate):
    """The base of strategies that filter the change of a block by a momentum."""

    period: Count = 20
    local_momentum: LocalMomentum = "reset"
    momentum: ShareBelowOne | None = None
    """Block momentum; null follows from the minibatch, the local momentum and the period."""
    rate: Positive | None = None
    """Block rate; null for 1, or for the rate that follows from a given momentum."""

    def settled(self, me: Setting) -> tuple[float, float]:
        return settle_block(self.momentum, self.rate, self.shortfall(me))


@dataclass(frozen=True)
class Bmuf(BlockMomentum):
    """Blockwise model-update filtering, classical or with Nesterov block momentum, in the strict form."""

    nesterov: bool = False
    """Nesterov's block momentum instead of the classical one."""

    name: ClassVar[str] = "bmuf"
    block_memory: ClassVar[tuple[str, ...]] = ("block_anchor", "block_delta", "block_broadcast")

    @property
    def label(self) -> str:
        return super().label + " nesterov" * self.nesterov

    def start(self, me: Me) -> None:
        anchor, broadcast = me.memory["block_anchor"], me.memory["block_broadcast"]
        if me.steps == 0:
            anchor.copy_(me.x)
            broadcast.copy_(me.x)
        me.replace(broadcast)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, delta, broadcast = (me.memory[name] for name in self.block_memory)
        momentum, rate = self.settled(me)
        block_update_(anchor, delta, broadcast, mean, momentum, rate, self.nesterov)
        me.replace(broadcast)

    def finish(self, me: Me) -> None:
        me.replace(me.memory["block_anchor"])


@dataclass(frozen=True)
class BmufFairseq(BlockMomentum):
    """BMUF as fairseq has it: Nesterov block momentum without an anchor."""

    name: ClassVar[str] = "bmuf-fairseq"
    block_memory: ClassVar[tuple[str, ...]] = ("block_model", "block_delta")

    def settled(self, me: Setting) -> tuple[float, float]:
        return settle_block(self.momentum, self.rate, self.shortfall(me), single=True)

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        momentum, _ = self.settled(PlainSetting(learners, minibatches_a_round))
        return (1 + momentum) * super().distance(learners, minibatches_a_round)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["block_model"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        momentum, rate = self.settled(me)
        model = me.memory["block_model"]
        block_update_single_(model, me.memory["block_delta"], mean, momentum, rate)
        me.replace(model)
