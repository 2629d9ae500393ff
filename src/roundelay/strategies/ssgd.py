"""Synchronous SGD: allreduce of gradients, every step.

    g = sum_l n_l grad f(x; b_l) / sum_l n_l        n_l frames of learner l's minibatch
    x <- x - lr * g                                 on every learner, so all rows stay equal bit for bit

With another `codec` than fp32 each learner's gradient goes coded, and the part that the codec leaves out, e_l, is added
to its next one:

    q_l = decode(encode(grad f(x; b_l) + e_l)),   e_l <- grad f(x; b_l) + e_l - q_l,   g = sum_l n_l q_l / sum_l n_l

By 1bit that is 1-bit SGD (Seide et al. 2014). Where we differ: there each learner sums a part of the gradient and codes
the sum once more, with a rest of its own; here every learner gets all the q_l. Their AdaGrad and double buffering are
left out.

Sent: one gradient (4 P bytes, or as many as the codec makes) a learner and step. Waits: all learners for the slowest,
every step. The mean is weighted by frames, so the last, uneven round of an epoch needs no special case: L learners do
exactly what one learner does with a minibatch L times as large.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.core.codec import FP32, Codec
from roundelay.core.configure import one_of
from roundelay.core.effects import Draw, GradMean
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Strategy, Traits

GRADIENT_LEFT = "gradient_left"
"""Name of the vector e, the part of gradients that was left out."""


@dataclass(frozen=True)
class Ssgd(Strategy):
    """Synchronous SGD: a step on the mean of all learners' gradients."""

    codec: str = one_of(CODECS, "fp32")
    """Form in which gradients are sent; the part it leaves out is sent later."""

    name: ClassVar[str] = "ssgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="all for the slowest, every step",
        rows="equal",
        mixes=False,
    )

    @property
    def label(self) -> str:
        return self.name + f" {self.codec}" * (not self.form.exact)

    @property
    def memory(self) -> tuple[str, ...]:
        return () if self.form.exact else (GRADIENT_LEFT,)

    @property
    def gives_vectors(self) -> bool:
        return not self.form.exact

    @property
    def form(self) -> Codec:
        return codec_named(self.codec, memory=GRADIENT_LEFT)

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset(("wire", "means") if self.form.exact else ())

    async def learn(self, me: Me) -> None:
        form = self.form if me.learners > 1 else FP32  # one alone sends nothing
        while batch := await Draw():
            me.step(await GradMean(me.snapshot(), batch, me.everyone, form))
