"""DiLoCo: many local steps, then one Nesterov step on the mean of their changes (Douillard et al. 2023, arXiv
2311.08105).

The equation is in algorithms/outer_momentum.py. The paper's local optimizer is AdamW (`optimizer.name=adamw`); any will
do. `rate` and `momentum` are the outer step's. `rate: null` moves as far as one learner does in as many examples, and
is at most 0.7, our default, which `LARGEST_RATE` there gives its reason for: 7 learners and more with a minibatch each
have it, and for fewer it would overshoot. The paper's rate and momentum were not read; torchft's tests have 0.7
and 0.9.

Where we differ: first moments of the local optimizer start from zero after an outer step (`local_momentum: keep` is
torchft's way), second moments stay.

With another `codec` than fp32 learners send their changes, coded, instead of their models:

    g_i  = W - x_i                        the outer gradient of learner i
    Wbar = W - sum_i p_i decode(encode(g_i + e_i))
    e_i  = g_i + e_i - decode(encode(g_i + e_i))

Four bits are Streaming DiLoCo's (Douillard et al. 2025, arXiv 2501.18512), without its e_i.

Of that paper are also `fragments` F, `delay` tau and `mix` alpha. The model is cut into F parts; in every period H part
f has an outer step of its own, after H (f + 1) / F local ones, on the part as it was tau steps before:

    v_f, W_f <- outer step on the mean of x_f as it was tau steps ago
    x_f      <- (1 - alpha) W_f + alpha x_f           alpha: weight of the learner's own part

so that the most that is sent at once is a part, while learners go on. With 1, 0 and 0 that is DiLoCo. The equations and
the times are those of torchft's DiLoCo (its `fragment_sync_delay` and `fragment_update_alpha`), which were read, and
whose records hold this file; the paper's own text was not. Where we differ: parts are runs of the row, not sets of
layers; means are weighted by the frames since the period began; a segment that ends within a period ends with the
outer steps that are left of it, and every segment with W in all rows; the next takes learners' own models up again.

Sent: one model (4 P bytes; by int8 about P, by int4 about P / 2) a learner every `period` steps, which may be hundreds.
Waits: all learners for the slowest, every `period` steps; with `delay` only for learners that many steps behind.
"""

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.algorithms.outer_momentum import outer_nesterov_
from roundelay.core.bounds import Count, Positive, Share, ShareBelowOne, Whole
from roundelay.core.codec import Codec
from roundelay.core.configure import one_of
from roundelay.core.effects import Begin, Draw, Effect, Grad, Mean, Wait
from roundelay.core.errors import UserError
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Traits
from roundelay.strategies.periodic import LocalMomentum, OuterMomentum, Periodic, PlainSetting
from roundelay.strategies.quorate import Quorate

ANCHOR, MOMENTUM, CHANGE, LEFT = "outer_anchor", "outer_momentum", "outer_change", "outer_left"
"""Names of the vectors W, v, room for g, and e."""
LOCAL = "outer_local"
"""Name of the vector with the learner's own model, where that is not W between two segments."""


@dataclass(frozen=True)
class Turn:
    """The outer step of a fragment: the steps of a period after which its mean is begun, and taken."""

    fragment: VectorFragment
    begun: int
    taken: int


@dataclass(frozen=True)
class DiLoCo(OuterMomentum, Quorate):
    """DiLoCo: an outer Nesterov step on the mean of all models."""

    period: Count = 50
    local_momentum: LocalMomentum = "reset"
    rate: Positive | None = None
    momentum: ShareBelowOne = 0.9
    codec: str = one_of(CODECS, "fp32")
    """Form in which learners send their changes; the part it leaves out is sent later."""
    fragments: Count = 1
    """Parts of the model, each with an outer step of its own in every period."""
    delay: Whole = 0
    """Local steps between the taking of an outer gradient and the outer step, while it is sent."""
    mix: Share = 0.0
    """Share of its own model in the one that a learner goes on from, from 0 to 1."""

    name: ClassVar[str] = "diloco"
    traits: ClassVar[Traits] = replace(Periodic.traits, alone_is_sgd=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fragments > self.period:
            raise UserError(
                f"{self.name}.fragments is {self.fragments} with a period of {self.period}: each needs a step of its "
                "own, so give as many at most."
            )
        if self.delay >= (apart := self.period // self.fragments):
            raise UserError(
                f"{self.name}.delay is {self.delay}, but outer steps are {apart} steps apart (period {self.period} by "
                f"{self.fragments} fragments): give less."
            )
        if self.gathers and (self.streams or self.delay or not self.form.exact):
            raise UserError(
                f"{self.name}.quorum and guard are of whole models as they are: leave codec, fragments, delay and mix "
                "out."
            )

    @property
    def block_memory(self) -> tuple[str, ...]:
        coded = () if self.form.exact else (CHANGE, LEFT)
        return ANCHOR, MOMENTUM, *coded, *([LOCAL] if self.streams else [])

    @property
    def streams(self) -> bool:
        """True if learners go on from other models than W at the end of a period."""
        return self.fragments > 1 or self.mix > 0

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The outer steps of a period, in order; one is taken before the next is begun."""
        parts = (VectorFragment(number, self.fragments) for number in range(self.fragments))
        ends = [(part, part.within(self.period).stop) for part in parts]
        return tuple(Turn(part, end - self.delay, end) for part, end in ends)

    @property
    def cuts_rows(self) -> bool:
        return self.fragments > 1

    @property
    def label(self) -> str:
        codec = f" {self.codec}" * (not self.form.exact)
        streaming = f" fragments {self.fragments} delay {self.delay} mix {self.mix:g}"
        return super().label + codec + streaming * (self.streams or self.delay > 0)

    @property
    def host_options(self) -> frozenset[HostOption]:
        whole = self.form.exact or self.local_momentum == "average"  # a coded vector goes to each learner by itself
        return super().host_options if whole else frozenset()

    @property
    def form(self) -> Codec:
        """The codec of the messages between learners."""
        return codec_named(self.codec, memory=LEFT)

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        momentum, rate = self.settled(PlainSetting(learners, minibatches_a_round))
        outer, seen = rate / (1 - momentum), 1 - (1 - self.mix) * self.delay / self.period
        return super().distance(learners, minibatches_a_round) * seen / (1 - self.mix + self.mix * outer)

    def learn(self, me: Me) -> Coroutine[Effect[Any], Any, None]:
        return super().learn(me) if self.gathers else self._stream(me)

    async def _stream(self, me: Me) -> None:
        begun, taken = ({getattr(turn, at): turn.fragment for turn in self.turns} for at in ("begun", "taken"))
        self.start(me)
        steps, frames = 0, 0.0
        mean: Mean | Wait[Tensor] | None = None
        while batch := await Draw():
            gradient = await Grad(me.snapshot(), batch)
            me.step(gradient)
            steps, frames = steps + 1, frames + gradient.weight
            if steps in begun:
                mean = self.given(me, frames, begun[steps])
                mean = Wait(await Begin(mean)) if self.delay else mean
            if steps in taken and mean is not None:
                await self._end_turn(me, mean, frames, taken[steps])
                mean = None
            if steps == self.period:
                steps, frames = 0, 0.0
        for turn in self.turns:
            if turn.taken > steps > 0:
                await self._end_turn(me, mean or self.given(me, frames, turn.fragment), frames, turn.fragment)
                mean = None
        self.finish(me)

    async def _end_turn(self, me: Me, mean: Mean | Wait[Tensor], frames: float, fragment: VectorFragment) -> None:
        self.end_block(me, await mean, fragment)
        await self._settle_momentum(me, frames, fragment)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory[ANCHOR].copy_(me.x)
        elif self.streams:
            me.replace(me.memory[LOCAL])

    def given(self, me: Me, frames: float, fragment: VectorFragment = WHOLE) -> Mean:
        codec, part = self.form, fragment.within(len(me.x))
        given = me.x[part]
        if not codec.exact:
            given = torch.sub(me.memory[ANCHOR][part], given, out=me.memory[CHANGE][part])
        return Mean(me.everyone, given, frames, codec, fragment)

    def end_block(self, me: Me, mean: Tensor, fragment: VectorFragment = WHOLE) -> None:
        part = fragment.within(len(me.x))
        anchor, outer = me.memory[ANCHOR][part], me.memory[MOMENTUM][part]
        momentum, rate = self.settled(me)
        if not self.form.exact:
            mean = torch.sub(anchor, mean, out=me.memory[CHANGE][part])
        outer_nesterov_(anchor, outer, mean, rate, momentum)
        if not self.streams:
            me.replace(anchor)
            return
        local = me.memory[LOCAL].copy_(me.x)
        local[part].lerp_(anchor, 1 - self.mix)
        me.replace(local)

    def finish(self, me: Me) -> None:
        if self.streams:
            me.memory[LOCAL].copy_(me.x)
            me.replace(me.memory[ANCHOR])
