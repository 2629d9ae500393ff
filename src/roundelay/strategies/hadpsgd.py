"""H-ADPSGD: hierarchical asynchronous decentralized SGD (Zhang et al. 2019, arXiv 1907.05701).

The learners of a node are one super-learner: they hold the same model, and average their gradients in every step. The
super-learners run AD-PSGD among themselves (adpsgd.py), so a ring of 64 learners becomes a ring of 8 and mixes as fast
as that. For node s with members M_s, on its own clock:

    read      y   <- x_s                                       the first member's row, handed to all members
    exchange  x_s, x_r <- (x_s + x_r) / 2                      with a neighbouring node r
    gradient  g   <- sum_l n_l grad f(y; b_l) / sum_l n_l      over M_s
    update    x_s <- x_s - lr * g

With `weights` "progress" rows x_s are weighed by the steps of their nodes, as adpsgd weighs those of learners.

One learner per node is adpsgd; one node is ssgd. The first member's row is the super-learner's model; the others' are
copies, brought up to date at the beginning of each step. Minibatches are drawn for a whole node at once.

Nodes are runs of `node_size` neighbouring ranks, the last one smaller if need be. A node that has lost a member in a
segment forms again without it in the next (the lost one's place is taken again when it comes back).

Sent: inside a node, one gradient and one model (8 P bytes) a learner and step; between nodes, one model each way an
exchange. Waits: each learner for its node, every step; none for another node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from roundelay.core.bounds import Count
from roundelay.core.effects import Begin, Draw, GradMean, Mean, Wait
from roundelay.core.errors import UserError
from roundelay.core.state import Me, Snapshot
from roundelay.strategies.adpsgd import PairAverages
from roundelay.strategies.base import Traits

Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HAdPsgd(PairAverages):
    """AD-PSGD between nodes, synchronous SGD inside each."""

    node_size: Count = 2
    """Learners of a node."""

    name: ClassVar[str] = "hadpsgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=False,
        conserves=True,
        staleness_bound=None,
        waits="all for its node, every step",
        joins="next segment",
        rows="own",
        paced_by_links=True,
    )

    @property
    def label(self) -> str:
        return f"{super().label} nodes of {self.node_size}"

    @property
    def node_learners(self) -> int:
        return self.node_size

    def on_host(self, ranks: Sequence[int], chosen: bool) -> "HAdPsgd":
        """Return the strategy for several hosts, of which one has these `ranks`: each host is a node, unless the user
        has `chosen` the size.

        Raises:
            UserError: a node would be on two hosts.
        """
        found = self if chosen else replace(self, node_size=len(ranks))
        if ranks[0] % found.node_size:
            raise UserError(
                f"{self.name}.node_size is {found.node_size}, but a host begins with learner {ranks[0]}: a node must "
                "be on one host. Give a node_size that divides the learners of every host."
            )
        return found

    def nodes(self, ranks: tuple[int, ...]) -> Nodes:
        """Return the members of each node among the living `ranks`; a node without any is left out."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(rank // self.node_size, []).append(rank)
        return tuple(tuple(members) for members in found.values())

    def holders(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(node[0] for node in self.nodes(ranks))

    async def learn(self, me: Me) -> None:
        nodes = self.nodes(me.living)
        place = next(number for number, members in enumerate(nodes) if me.rank in members)
        node, mixing = nodes[place], None
        peers = self.peers(place, len(nodes), me.seed, me.steps)
        first = me.rank == node[0]
        while batch := await Draw(node):
            here = me.snapshot()
            if first and len(nodes) > 1 and (mixing is None or mixing.done):
                mixing = await Begin(self.average(nodes[next(peers)][0], len(nodes)))
            if len(node) > 1:
                here = await self._together(me, node, here)
            me.step(await GradMean(here, batch, node))
        if mixing is not None:
            await Wait(mixing)

    async def _together(self, me: Me, node: tuple[int, ...], here: Snapshot) -> Snapshot:
        """Return the first member's snapshot on all members of a node, by a mean in which the others weigh nothing."""
        first = me.rank == node[0]
        model = await Mean(node, here.vector, 1.0 if first else 0.0)
        if first:
            return Snapshot(model, here.version)
        me.replace(model)
        return me.snapshot()
