"""CHOCO-SGD: D-PSGD whose learners send changes in few bytes, and the rest later (Koloskova, Stich and Jaggi 2019,
arXiv 1902.00340; Koloskova, Lin, Stich and Jaggi 2020, arXiv 1907.09356).

With T the mixing matrix of `dpsgd`, Q a codec, and x^_i the model that the others know learner i by, 0 at first:

    y_i   = x_i - lr g(x_i)
    q_i   = Q(y_i - x^_i)                              the message
    x^_i <- x^_i + q_i                                 on all who hear of it
    x_i  <- y_i + mixing sum_j T_ij (x^_j - x^_i)

So the part that Q leaves out of a message is in the difference that the next one codes. Kept is d_i = sum_j T_ij x^_j -
x^_i, by d_i <- d_i + sum_j T_ij q_j - q_i, and not the sum itself: changes are small, and so are their rounding errors.
That is for one matrix, so topologies are those that stay: ring, complete, graph. By fp32 it is dpsgd in its order atc
with the same `mixing`.

Source: the authors' code (github.com/epfml/ChocoSGD); the papers' listings were not read. Where we differ: both of
their programs (`convex_code/logistic.py`, `dl_code/pcode/optim/parallel_choco_v.py`) mix by the x^ known before the
step, and then send Q of the result; by fp32 that is the order consensus. Here a step is sent before rows mix, so that
it is in the mean. Blocks of Q are runs of the row; there it is top-k, random-k, QSGD or a sign with a norm.

Sent: one coded change a learner and neighbour, every step (by int4 about P / 2 bytes). Waits: each learner for its
neighbours, every step. No learner goes on without one that dies: its x^ is in the d of its neighbours.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.bounds import ShareAboveZero
from roundelay.core.codec import Codec
from roundelay.core.configure import one_of
from roundelay.core.effects import Draw, Grad
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Traits
from roundelay.strategies.dpsgd import Gossip

STAYING = ("ring", "complete", "graph")
"""Topologies whose mixing matrix is the same in every round."""


@dataclass(frozen=True)
class ChocoSgd(Gossip):
    """Decentralized SGD with compressed gossip."""

    mixing: ShareAboveZero = 0.5
    """Share by which learners give in to their neighbours, above 0 and up to 1."""
    codec: str = one_of(CODECS, "int4")
    """Form in which a learner sends its changes; the part it leaves out is sent later."""
    density: ShareAboveZero | None = None
    """Instead of a codec, share of the elements of every block that a learner sends, the largest, as they are; null for
    codec."""

    name: ClassVar[str] = "choco-sgd"
    memory: ClassVar[tuple[str, ...]] = ("gossip_known", "gossip_apart")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="all for its neighbours, every step",
        rows="own",
        goes_on=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology not in STAYING:
            raise UserError(
                f"{self.name}.topology is {self.topology}, whose neighbours change from round to round, but a learner "
                f"knows its neighbours by all that they have sent: choose one of {', '.join(STAYING)}."
            )

    @property
    def label(self) -> str:
        form = self.codec if self.density is None else f"density {self.density:g}"
        return f"{super().label} {form} mixing {self.mixing:g}"

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset()  # mixes of neighbours go as the strategy says

    @property
    def form(self) -> Codec:
        """The codec of changes, Q."""
        return codec_named(self.codec) if self.density is None else Sparse("", self.density, two_bits=False)

    async def learn(self, me: Me) -> None:
        known, apart = (me.memory[name] for name in self.memory)
        form = self.form
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))
            change = me.x - known
            form.send(change, None, change)  # as it arrives; to code it once more for the way changes nothing
            known.add_(change)
            mixed = await replace(self.mix(me, 0), vector=change, codec=form)
            apart.add_(mixed).sub_(change)
            me.replace(torch.add(me.x, apart, alpha=self.mixing))
