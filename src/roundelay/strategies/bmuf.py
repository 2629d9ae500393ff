"""BMUF: model averaging whose change from block to block is filtered by a momentum (Chen and Huo 2016; Li et al. 2017).

The equations are in algorithms/block_momentum.py. Every learner holds the same anchor and block momentum, and computes
the same update from the same mean, so only models are sent.

Sent: one model (4 P bytes) a learner every `period` steps. Waits: everybody for the slowest, every `period` steps.
`momentum: null` is 1 - 1/N for N learners; the block learning rate is 1. With Nesterov block momentum the model
evaluated is the anchor W, which is what rows hold between segments; the next segment starts again from the broadcast
model. Where we differ: means are weighted by frames, and a segment ends with a block, a shorter one if need be.

`bmuf-fairseq` is the recursion of fairseq with `use_nbm`, which has no anchor apart from the broadcast model: classical
block momentum with 1 + momentum times the block rate.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.block_momentum import block_update_, block_update_single_
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive, share
from roundelay.strategies.periodic import Periodic

TRAITS = Traits(synchronous=True, conserves=False, staleness_bound=0, waits="everybody for the slowest, every period")


@dataclass(frozen=True)
class Bmuf(Periodic):
    """Blockwise model-update filtering, classical or with Nesterov block momentum, in the strict form."""

    period: int = 20
    momentum: float | None = None
    rate: float = 1.0
    nesterov: bool = False

    name: ClassVar[str] = "bmuf"
    memory: ClassVar[tuple[str, ...]] = ("block_anchor", "block_delta", "block_broadcast")
    traits: ClassVar[Traits] = TRAITS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is not None:
            share(self.name, "momentum", self.momentum)
        positive(self.name, "rate", self.rate)

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
        anchor, delta, broadcast = (me.memory[name] for name in self.memory)
        momentum = default_momentum(me.learners) if self.momentum is None else self.momentum
        block_update_(anchor, delta, broadcast, mean, momentum, self.rate, self.nesterov)
        me.replace(broadcast)

    def finish(self, me: Me) -> None:
        me.replace(me.memory["block_anchor"])


@dataclass(frozen=True)
class BmufFairseq(Periodic):
    """Nesterov block momentum without an anchor of its own."""

    period: int = 20
    momentum: float | None = None
    rate: float = 1.0

    name: ClassVar[str] = "bmuf-fairseq"
    memory: ClassVar[tuple[str, ...]] = ("block_model", "block_delta")
    traits: ClassVar[Traits] = TRAITS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is not None:
            share(self.name, "momentum", self.momentum)
        positive(self.name, "rate", self.rate)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["block_model"].copy_(me.x)

    def end_block(self, me: Me, mean: Tensor) -> None:
        momentum = default_momentum(me.learners) if self.momentum is None else self.momentum
        model = me.memory["block_model"]
        block_update_single_(model, me.memory["block_delta"], mean, momentum, self.rate)
        me.replace(model)


def default_momentum(learners: int) -> float:
    """1 - 1/N: with block rate 1, N learners' blocks then add up to what one learner would have moved."""
    return 1 - 1 / learners
