"""GASLoC: gossip with an outer momentum after many local steps (Cagnasso, Belilovsky and Oyallon 2026, "Unifying local
communications and local updates for LLM pretraining", arXiv 2606.11081).

Every `period` steps, with T the mixing matrix of `dpsgd`, W_i where learner i began and x_i where it has come to:

    y_i  = W_i + rate (x_i - W_i)                          its proposal
    z_i  = y_i + mixing (sum_j T_ij y_j - y_i)             the proposal after gossip
    W_i <- z_i + momentum (y_i - y_i')                     y': of the last time, W_i at first; it goes on from W_i

The mean of all W_i moves as diloco's one W does: y + momentum (y - y') is Nesterov's step. With `accelerated: mixed`
the momentum is of z_i - z_i', the change after gossip; then the complete graph is diloco, on every learner.

Source: the equation above (`proposed`) as others quote it, who also say that the complete graph is DiLoCo; the paper's
own text was not read beyond its abstract, and `mixed` is our reading of that sentence. Where we differ: all take
equally many local steps (theirs may be unequal: `async-gasloc`). First moments of the local optimizer start from zero
after an outer step, as in diloco (`local_momentum: keep` leaves them).

Sent: one model (4 P bytes) a learner and neighbour every `period` steps. Waits: each learner for its neighbours, every
period.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from roundelay.core.bounds import Count, Positive, ShareAboveZero, ShareBelowOne
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Traits
from roundelay.strategies.dpsgd import Gossip, Topology
from roundelay.strategies.periodic import Blocks, LocalMomentum, OuterMomentum


@dataclass(frozen=True)
class GasLoC(OuterMomentum, Gossip, Blocks):
    """Gossip of models after many local steps, with a momentum of each learner's."""

    period: Count = 50
    local_momentum: LocalMomentum = "reset"
    topology: Topology = "random-ring"
    mixing: ShareAboveZero = 1.0
    """Share by which learners give in to their neighbours, above 0 and up to 1."""
    rate: Positive | None = None
    momentum: ShareBelowOne = 0.9
    accelerated: Literal["proposed", "mixed"] = "proposed"
    """Models whose change the outer momentum follows: learners' proposals, or these after gossip (mixed)."""

    name: ClassVar[str] = "gasloc"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_before")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        alone_is_sgd=False,
        waits="all for its neighbours, every period",
        rows="own",
    )

    @property
    def label(self) -> str:
        return f"{super().label} period {self.period}" + f" {self.accelerated}" * (self.accelerated != "proposed")

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset()  # mixes of neighbours go as they are

    def start(self, me: Me) -> None:
        if me.steps == 0:
            for name in self.memory:
                me.memory[name].copy_(me.x)

    async def _end_block(self, me: Me, frames: float) -> None:
        anchor, before = (me.memory[name] for name in self.memory)
        momentum, rate = self.settled(me)
        mix = self.mix(me, -(-me.steps // self.period))  # a segment may end with a shorter block
        anchor.lerp_(me.x, rate)
        mixed = await replace(mix, vector=anchor)
        proposed = anchor.clone()
        anchor.lerp_(mixed, self.mixing)
        newest = proposed if self.accelerated == "proposed" else anchor.clone()
        anchor.add_(newest.sub(before), alpha=momentum)
        before.copy_(newest)
        me.replace(anchor)
        if me.learners > 1:
            await self.settle_momentum(me, lambda vector: replace(mix, vector=vector))
