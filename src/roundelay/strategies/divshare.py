"""DivShare: AD-PSGD whose model goes in fragments, each to a peer of its own (Biswas et al. 2025, arXiv 2410.12918).

With every gradient a learner l begins an exchange for each of its `fragments` parts f, with a peer j_f that is drawn
anew for each:

    x_l[f], x_j[f] <- (x_l[f] + x_j[f]) / 2        (atomic, f = 0 ... F - 1)

The rest is adpsgd: gradients at a snapshot, applied to the row as mixed meanwhile. So a step sends one model, as
there, but to F peers; a part that is still under way on a slow link holds up no other part. One fragment is
adpsgd:random, to the bit.

Sent: one model each way (8 P bytes) a step, in F exchanges. Waits: no learner; a part whose exchange is still in flight
is skipped. Versions, and so staleness, count every exchange of a part.

Where we differ: there a fragment goes one way, and its receiver takes, before its next gradients, the mean of its own
and of all that have come; parts are drawn at random among all elements, and each may go to several peers. Here
exchanges are pair averages, which keep the sum of all rows, and parts are runs of the row. Between
hosts the parts of a learner are under way one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.bounds import Count
from roundelay.core.effects import Begin, Draw, Exchange, Grad, Handle, Wait
from roundelay.core.flat import VectorFragment
from roundelay.core.state import Me
from roundelay.core.streams import stream
from roundelay.strategies.base import HostOption, Strategy, Traits


@dataclass(frozen=True)
class DivShare(Strategy):
    """Asynchronous decentralized SGD with pair averages of fragments, each with another peer."""

    fragments: Count = 10
    """Parts of the model, each of which goes to a peer of its own."""

    name: ClassVar[str] = "divshare"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=None, waits="none", rows="own")

    @property
    def cuts_rows(self) -> bool:
        return self.fragments > 1

    @property
    def host_options(self) -> frozenset[HostOption]:
        """Options for traffic between hosts; codec and fragments only for whole rows, since this strategy's fragments
        travel uncoded."""
        return frozenset(("exchange_share", *(("wire", "fragments") if self.fragments == 1 else ())))

    @property
    def label(self) -> str:
        return f"{self.name} fragments {self.fragments}"

    def peers(self, me: Me, number: int) -> Iterator[int]:
        """Yield the peers of fragment `number`, from the learner's step on."""
        for k in count(me.steps):
            other = int(stream(me.seed, "peer", me.rank, k, *[number] * (number > 0)).integers(me.learners - 1))
            yield other + (other >= me.rank)

    async def learn(self, me: Me) -> None:
        parts = [VectorFragment(number, self.fragments) for number in range(self.fragments * (me.learners > 1))]
        peers = [self.peers(me, part.number) for part in parts]
        mixing: dict[VectorFragment, Handle[int | None]] = {}
        while batch := await Draw():
            here = me.snapshot()
            for part, peer in zip(parts, peers, strict=True):
                if part not in mixing or mixing[part].done:
                    mixing[part] = await Begin(Exchange(next(peer), pair_average_, fragment=part))
            me.step(await Grad(here, batch))
        for under_way in mixing.values():
            await Wait(under_way)
