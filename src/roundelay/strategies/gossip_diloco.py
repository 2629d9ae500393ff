"""DiLoCo without an allreduce: at the end of a period a learner has its outer step on the mean of a few models, its own
among them (NoLoCo: Kolehmainen et al. 2025, arXiv 2506.10911).

Every learner i has an anchor W_i and an outer momentum of its own. With G the learners of its group in this period,

    u_i = W_i - mean_{j in G} x_j
    v_i <- mu v_i + u_i
    W_i <- W_i - rate (u_i + mu v_i)          it goes on from W_i

Groups are cut from a permutation of all learners, drawn anew for every period; learners left over make a smaller group.
The mean of all W_i moves as DiLoCo's one W does, and u_i pulls each towards the others of its group.

Source: the authors' code (`sparse_optimizer_c.py` of their repository), which writes u_i as the mean of the group's
outer gradients W_j - x_j and a pull W_i - mean_j W_j at the same rate; the two add up to the line above. Where we
differ: its outer momentum is a heavy ball, W_i <- W_i - rate v_i (`nesterov: false`), ours torch's Nesterov form, as in
`diloco`, which this is when all learners are one group; its learners cannot be left over; means are not weighted by
frames.

Sent: one model (4 P bytes) a learner and partner every `period` steps. Waits: each learner for its partners, every
period.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

from torch import Tensor

from roundelay.algorithms.outer_momentum import outer_heavy_ball_, outer_nesterov_
from roundelay.core.bounds import Count, Positive, ShareBelowOne
from roundelay.core.effects import Mix
from roundelay.core.state import Me
from roundelay.core.topology import random_ring
from roundelay.strategies.base import HostOption, Traits
from roundelay.strategies.periodic import Blocks, LocalMomentum, OuterMomentum


@dataclass(frozen=True)
class GossipDiLoCo(OuterMomentum, Blocks):
    """An outer Nesterov step of each learner on the mean of a few models."""

    period: Count = 50
    local_momentum: LocalMomentum = "reset"
    rate: Positive | None = None
    momentum: ShareBelowOne = 0.9
    partners: Count | None = 1
    """Other learners that a learner averages with at the end of a period; null for all."""
    nesterov: bool = True
    """Nesterov's outer momentum, as diloco has it; false for a heavy ball, NoLoCo's own."""

    name: ClassVar[str] = "gossip-diloco"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_momentum")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        alone_is_sgd=False,
        waits="all for its partners, every period",
        rows="own",
    )

    @property
    def label(self) -> str:
        return f"{super().label} partners {'all' if self.partners is None else self.partners}" + (
            " heavy ball" * (not self.nesterov)
        )

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset()  # groups mix as neighbours do

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["outer_anchor"].copy_(me.x)

    async def _end_block(self, me: Me, frames: float) -> None:
        anchor, outer = (me.memory[name] for name in self.memory)
        momentum, rate = self.settled(me)
        group = self.group(me)
        outer_step_ = outer_nesterov_ if self.nesterov else outer_heavy_ball_
        outer_step_(anchor, outer, await _mean(me, group, me.x), rate, momentum)
        me.replace(anchor)
        if len(group) > 1:
            await self.settle_momentum(me, partial(_mean, me, group))

    def group(self, me: Me) -> Sequence[int]:
        """Return the ranks of the learners that average with this one at the end of this period, itself included."""
        living, learners = me.living, len(me.living)
        size = learners if self.partners is None else min(self.partners + 1, learners)
        if size == learners:
            return living
        place = me.rank if learners == me.learners else living.index(me.rank)
        return [living[other] for other in _groups(learners, size, me.seed, me.steps)[place]]


def _mean(me: Me, group: Sequence[int], vector: Tensor) -> Mix:
    """Return the mix that averages `vector` (P,) over a group, whose members change every time."""
    return Mix(tuple((rank, 1.0) for rank in group), tuple(rank for rank in group if rank != me.rank), vector)


@lru_cache(maxsize=8)  # all learners ask for the same period
def _groups(learners: int, size: int, seed: int, step: int) -> list[list[int]]:
    """Return the group of every learner after step number `step`, by rank."""
    order, found = random_ring(learners, seed, step), [[0]] * learners
    for first in range(0, learners, size):
        group = sorted(order[first : first + size])
        for rank in group:
            found[rank] = group
    return found
