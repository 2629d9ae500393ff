"""DiLoCo: many local steps, then one Nesterov step on what they have in common (Douillard et al. 2023, arXiv
2311.08105).

The equation is in algorithms/outer_momentum.py. The paper's local optimizer is AdamW (`optimizer.name=adamw`); any will
do. `rate` and `momentum` are the outer step's. `rate: null` moves as far as one learner does in as many examples, and
is at most the paper's 0.7: that is for 7 learners and more with a minibatch each, and overshoots for fewer.

Where we differ: first moments of the local optimizer start from zero after an outer step (`local_momentum: keep` is the
paper's), second moments stay.

With another `codec` than fp32 learners send what they have changed, coded, instead of their models:

    g_i  = W - x_i                        the outer gradient of learner i
    Wbar = W - sum_i p_i decode(encode(g_i + e_i))
    e_i  = g_i + e_i - decode(encode(g_i + e_i))

Four bits are Streaming DiLoCo's (Douillard et al. 2025, arXiv 2501.18512), without its e_i.

Sent: one model (4 P bytes; by int8 about P, by int4 about P / 2) a learner every `period` steps, which may be hundreds.
Waits: everybody for the slowest, every `period` steps.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.algorithms.outer_momentum import outer_nesterov_
from roundelay.core.codec import Codec
from roundelay.core.configure import one_of
from roundelay.core.effects import Mean
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive, share
from roundelay.strategies.periodic import LocalMomentum, Periodic, PlainSetting, Setting

PAPER_RATE = 0.7
"""Of the outer step, with outer momentum 0.9 and a minibatch for each learner."""
ANCHOR, MOMENTUM, CHANGE, LEFT = "outer_anchor", "outer_momentum", "outer_change", "outer_left"
"""Vectors: W, v, room for g, and e."""


@dataclass(frozen=True)
class DiLoCo(Periodic):
    """An outer Nesterov step on the mean of all models."""

    period: int = 50
    local_momentum: LocalMomentum = "reset"
    rate: float | None = None
    momentum: float = 0.9
    codec: str = one_of(CODECS, "fp32")

    name: ClassVar[str] = "diloco"
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
        codec_named(self.codec, f"{self.name}.codec")

    @property
    def memory(self) -> tuple[str, ...]:
        return (ANCHOR, MOMENTUM) if self.form.exact else (ANCHOR, MOMENTUM, CHANGE, LEFT)

    @property
    def label(self) -> str:
        return super().label + f" {self.codec}" * (not self.form.exact)

    @property
    def form(self) -> Codec:
        """The codec of what is sent."""
        return codec_named(self.codec, memory=LEFT)

    def settled(self, me: Setting) -> tuple[float, float]:
        """Momentum and rate of the outer step."""
        if self.rate is not None:
            return self.momentum, self.rate
        return self.momentum, min(PAPER_RATE, (1 - self.momentum) / self.shortfall(me))

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        plain = PlainSetting(learners, minibatches_a_round)
        momentum, rate = self.settled(plain)
        return self.shortfall(plain) * rate / (1 - momentum)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory[ANCHOR].copy_(me.x)

    def given(self, me: Me, frames: float) -> Mean:
        codec = self.form
        if codec.exact:
            return super().given(me, frames)
        return Mean(me.everyone, torch.sub(me.memory[ANCHOR], me.x, out=me.memory[CHANGE]), frames, codec)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor, outer = me.memory[ANCHOR], me.memory[MOMENTUM]
        momentum, rate = self.settled(me)
        if not self.form.exact:
            mean = torch.sub(anchor, mean, out=me.memory[CHANGE])
        outer_nesterov_(anchor, outer, mean, rate, momentum)
        me.replace(anchor)
