"""Costs in virtual time. Delay belongs to the link and to the processor, never to a strategy.

Legend: L learners, M bytes of a row.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roundelay.algorithms.averaging import chain_piece
from roundelay.core.bounds import Count, NonNegative
from roundelay.core.codec import FP32, Codec
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.streams import stream
from roundelay.runtime.base import Straggler
from roundelay.runtime.sim.cluster import (
    Allreduce,
    Compute,
    Handicap,
    Node,
    VirtualCluster,
    VirtualLink,
    VirtualLinks,
    measured,
)

BLOCK = 256
"""Steps whose random factors are drawn at once, since opening a stream costs much more than a number of it."""


@dataclass(frozen=True)
class CostModel:
    """The cost section of a recipe: a few numbers in seconds, for equal learners, or a whole cluster.

    gradient              one minibatch on one learner; where given, per `frames_per_gradient` frames or per
                          `sequences_per_gradient` sequences of average length, in proportion
    jitter                sigma of a log-normal factor on it with mean 1, drawn for every learner and step (0: none)
    exchange              one atomic exchange of two rows; both are busy meanwhile, and further exchanges with either
                          queue up
    allreduce             one allreduce among two learners after the last of them arrived; a ring moves 2 (L - 1) / L
                          of the vector, so L learners pay that relative to two
    inside                one allreduce among two learners of one node, where the strategy has nodes (`hadpsgd`): ten
                          times as fast by default, as buses are beside networks
    cluster               a virtual cluster (cluster.py) instead of all these
    together              costs nothing in virtual time: compute gradients that are under way at once in one call, which
                          rounds differently; null: where that is faster and exact to the bit
    """

    gradient: NonNegative = 0.1
    """Simulator, seconds of a minibatch."""
    frames_per_gradient: Count | None = None
    """Simulator, frames that cost.gradient is for; null for any number."""
    sequences_per_gradient: Count | None = None
    """Simulator, sequences that cost.gradient is for, in place of frames_per_gradient."""
    jitter: NonNegative = 0.0
    """Simulator, spread of gradient times (sigma of a log-normal factor)."""
    exchange: NonNegative = 0.005
    """Simulator, seconds of an exchange between two learners."""
    allreduce: NonNegative = 0.03
    """Simulator, seconds of an allreduce of two learners."""
    inside: NonNegative = 0.003
    """Simulator, seconds of an allreduce of two learners of one node, for strategies that have nodes (hadpsgd)."""
    cluster: VirtualCluster | None = None
    """Simulator, a virtual cluster instead of these numbers, a YAML file (docs/simulator.md)."""
    together: bool | None = None
    """Simulator, compute simultaneous gradients in one call; null for where that is faster and exact."""

    def __post_init__(self) -> None:
        check_values(self, "cost")
        if self.frames_per_gradient is not None and self.sequences_per_gradient is not None:
            raise UserError("cost.frames_per_gradient and cost.sequences_per_gradient exclude each other: give one.")

    @property
    def gradient_size(self) -> str:
        """Text on the size of a minibatch whose gradient takes `gradient` seconds."""
        if self.sequences_per_gradient is not None:
            return f"{self.sequences_per_gradient} sequences"
        return "any size" if self.frames_per_gradient is None else f"{self.frames_per_gradient} frames"

    def per_minibatch(self, size: MinibatchSize) -> "CostModel":
        """Return these costs, with `gradient` for a minibatch of that size on one learner unless they name a size."""
        if self.frames_per_gradient is not None or self.sequences_per_gradient is not None:
            return self
        if size.unit == "sequences":
            return replace(self, sequences_per_gradient=size.number)
        return replace(self, frames_per_gradient=size.number)

    def virtual(self, learners: int, node: int = 1, sequence: float | None = None) -> VirtualCluster:
        """Return the virtual cluster with these costs and `learners` learners. Each `node` neighbouring ranks are a
        node of the strategy; `sequence` is the average number of frames in a sequence, if there are any.

        Raises:
            UserError: gradients are priced by sequences, and there are none.
        """
        if self.cluster is not None:
            return self.cluster
        fixed, per_frame = self.gradient, 0.0
        if self.frames_per_gradient is not None:
            fixed, per_frame = 0.0, self.gradient / self.frames_per_gradient
        if self.sequences_per_gradient is not None:
            if sequence is None:
                raise UserError(
                    f"cost.sequences_per_gradient is {self.sequences_per_gradient}, but what is trained is drawn as "
                    "single frames: give cost.frames_per_gradient."
                )
            fixed, per_frame = 0.0, self.gradient / (self.sequences_per_gradient * sequence)
        full, rest = divmod(learners, node) if node > 1 else (0, learners)
        nodes = (*([Node(node, full)] if full else []), *([Node(rest)] if rest else []))
        return VirtualCluster(
            nodes=nodes,
            compute=Compute(seconds=fixed, seconds_per_frame=per_frame, sigma=self.jitter),
            exchange=self.exchange,
            allreduce=Allreduce(seconds={"2": self.allreduce}, inside={"2": self.inside} if node > 1 else {}),
            links=VirtualLinks(VirtualLink(), VirtualLink()),
        )


class Prices:
    """A cluster's costs in nanoseconds, for rows of `model_bytes`; a runtime asks for one at every event.

    A vector in the form of another codec than FP32 has the bytes that the codec makes of as many elements; a cost that
    the cluster gives in seconds holds in any form. A fragment costs its share of the elements, and of such seconds.

    Every answer is a function of its arguments and of the living learners, so equal simulations cost the same.

    Raises:
        UserError: the cluster has another number of learners.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        learners: int,
        model_bytes: float,
        seed: int = 0,
        stragglers: Iterable[Straggler] = (),
    ) -> None:
        if cluster.learners != learners:
            raise UserError(
                f"cluster {cluster.name!r} has {cluster.learners} learners on its nodes, but {learners} are to train. "
                "Give the same number."
            )
        self.cluster, self.learners, self._seed = cluster, learners, seed
        self.bytes = cluster.model_bytes or model_bytes
        self.places = [*cluster.placement(), cluster.centre_node]  # the centre's row comes after all learners
        self._machines = cluster.machines()
        self._spells = _spells(learners, cluster.stragglers, stragglers)
        self._update = nanoseconds(cluster.compute.update)
        self._living: list[int] = []  # learners of every node
        self._ranks: list[list[int]] = [[] for _ in self._machines]  # of every node, dead ones too
        for rank in range(learners):
            self._ranks[self.places[rank]].append(rank)
        self._crowd, self._fixed, self._per_frame = [1.0] * learners, [0.0] * learners, [0.0] * learners
        self._varied = bool(cluster.compute.sigma or cluster.compute.trace)
        self._block = [-1] * learners
        self._factors: list[list[float]] = [[]] * learners
        self._traced: list[list[float]] = [[]] * learners
        self.restarts = cluster.links.between.restart != 1
        self._shares = cluster.links.inside.shared or cluster.links.between.shared
        self._reaches: dict[tuple[str, str, bool, int], int] = {}
        self._means: dict[tuple[int, ...], int] = {}
        self._other_means: dict[tuple[tuple[int, ...], Codec, int], int] = {}
        self.centre, self.rows = learners, learners + 1
        self.set_alive([cluster.alive_at(rank, 0) for rank in range(learners)])

    def set_alive(self, alive: Sequence[bool]) -> None:
        """Set which learners are alive, and so which share a node, from now on."""
        self._living = [sum(bool(alive[rank]) for rank in ranks) for ranks in self._ranks]
        for place in range(len(self._machines)):
            self._share_node(place)

    def change_alive(self, rank: int, lives: bool) -> None:
        """Note that learner `rank` has died or, if it `lives`, joined."""
        self._living[self.places[rank]] += 1 if lives else -1
        self._share_node(self.places[rank])

    def _share_node(self, place: int) -> None:
        """Set the costs of gradients on node `place` by the number of learners that share it."""
        node, there, compute = self._machines[place], self._living[place], self.cluster.compute
        crowd = (1.0 if node.cores is None else max(1.0, there / node.cores)) / node.speed
        fixed, per_frame = compute.fixed * crowd, compute.seconds_per_frame * node.slowed(there) * crowd
        for rank in self._ranks[place]:
            self._crowd[rank], self._fixed[rank], self._per_frame[rank] = crowd, fixed, per_frame

    # Gradients --------------------------------------------------------------------------------------------------------

    def gradient_ns(self, rank: int, frames: int, step: int, now_ns: int = 0) -> int:
        """Return the nanoseconds of one gradient of `rank` over `frames` at its local step `step`, begun at `now_ns`;
        the update included."""
        seconds = self._fixed[rank] + self._per_frame[rank] * frames
        if self._varied:
            block, at = divmod(step, BLOCK)
            if block != self._block[rank]:
                self._draw(rank, block)
            if self._traced[rank]:
                seconds += self._traced[rank][at] * self._crowd[rank]
            if self._factors[rank]:
                seconds *= self._factors[rank][at]
        for start, stop, factor, more in self._spells[rank]:
            if start <= now_ns < stop:
                seconds = seconds * factor + more
        return round(seconds * 1e9) + self._update

    def _draw(self, rank: int, block: int) -> None:
        compute = self.cluster.compute
        self._block[rank] = block
        if compute.trace:
            length = len(compute.trace)
            if compute.order == "cycle":
                first = rank + block * BLOCK
                self._traced[rank] = [compute.trace[(first + k) % length] for k in range(BLOCK)]
            else:
                chosen = stream(self._seed, "trace", rank, block).integers(0, length, BLOCK)
                self._traced[rank] = [compute.trace[k] for k in chosen.tolist()]
        if compute.sigma:
            normal = stream(self._seed, "jitter", rank, block).standard_normal(BLOCK)
            self._factors[rank] = np.exp(compute.sigma * normal - compute.sigma**2 / 2).tolist()

    # Exchanges --------------------------------------------------------------------------------------------------------

    def size(self, codec: Codec = FP32, fragments: int = 1) -> float:
        """Return the bytes of a row, or of one of its `fragments`, in the form of `codec`."""
        size = self.bytes / fragments
        return size if codec.exact else codec.bytes_of(round(size / 4))

    def reach_ns(
        self, rank: int, peer: int, there: Codec | None = FP32, back: Codec | None = FP32, fragments: int = 1
    ) -> int:
        """Return the nanoseconds of one effect on the row of `peer`, or on one of its `fragments`: a message goes over
        and, since the other row must be seen first, one comes back after it, each with a row in the form of the codec,
        or without one."""
        near = self.places[rank] == self.places[peer]
        place = "" if there is None else there.name, "" if back is None else back.name, near, fragments
        known = self._reaches.get(place)
        if known is None:
            known = self._reaches[place] = self._reach(self._link(rank, peer), fragments, there, back)
        return known

    def _reach(self, link: VirtualLink, fragments: int, *carried: Codec | None) -> int:
        if self.cluster.exchange is not None:
            return nanoseconds(self.cluster.exchange / fragments)
        sizes = [0 if codec is None else self.size(codec, fragments) for codec in carried]
        return nanoseconds(sum(link.seconds(size) for size in sizes))

    def mix_ns(self, rank: int, others: Sequence[int], codec: Codec = FP32) -> int:
        """Return the nanoseconds in which learner `rank` receives the rows of all `others`, one after another; over a
        shared link also those for its node's other learners, which mix in the same round."""
        if self.cluster.mix is not None:
            return nanoseconds(self.cluster.mix) if others else 0
        if self.cluster.exchange is not None:
            return len(others) * nanoseconds(self.cluster.exchange)
        size, there = self.size(codec), self._living[self.places[rank]]
        return nanoseconds(sum(_bus(self._link(rank, other), there, size) for other in others))

    def held(self, rank: int, peer: int) -> tuple[int, ...]:
        """Return resources that an effect on the row of `peer` may keep busy, as numbers below `resources`: both rows,
        the learner's own first, and links that are shared."""
        if not self._shares:
            return rank, peer
        a, b = self.places[rank], self.places[peer]
        links, nodes = self.cluster.links, len(self._machines)
        if a == b:
            return (rank, peer, self.rows + a) if links.inside.shared else (rank, peer)
        return (rank, peer, self.rows + nodes + a, self.rows + nodes + b) if links.between.shared else (rank, peer)

    @property
    def resources(self) -> int:
        """Number of resources: all rows, the bus of every node, the network interface of every node."""
        return self.rows + 2 * len(self._machines)

    def _link(self, rank: int, peer: int) -> VirtualLink:
        links = self.cluster.links
        return links.inside if self.places[rank] == self.places[peer] else links.between

    # Means ------------------------------------------------------------------------------------------------------------

    def mean_ns(self, group: tuple[int, ...], codec: Codec = FP32, fragments: int = 1) -> int:
        """Return the nanoseconds of one mean over the learners in `group`, of a row or of one of its `fragments`, after
        the last has arrived; 0 for one learner."""
        plain = codec.exact and fragments == 1
        known = self._means.get(group) if plain else self._other_means.get((group, codec, fragments))
        if known is None:
            known = nanoseconds(self._mean(group, self.size(codec, fragments), fragments))
            if plain:
                self._means[group] = known
            else:
                self._other_means[group, codec, fragments] = known
        return known

    def rested(self, group: tuple[int, ...], cost_ns: int, idle_ns: int) -> int:
        """Return the nanoseconds of a mean of models that usually costs `cost_ns`, after `idle_ns` without one."""
        link = self.cluster.links.between
        if link.restart == 1 or idle_ns < nanoseconds(link.idle) or len({self.places[rank] for rank in group}) == 1:
            return cost_ns
        return round(link.restart * cost_ns)

    def _mean(self, group: tuple[int, ...], size: float, fragments: int) -> float:
        if len(group) < 2:
            return 0.0
        allreduce = self.cluster.allreduce
        if allreduce.inside and len({self.places[rank] for rank in group}) == 1:
            return measured(allreduce.inside, len(group)) / fragments
        if allreduce.seconds:
            return measured(allreduce.seconds, len(group)) / fragments
        return _ALGORITHMS[self.cluster.allreduce.algorithm](self, group, size)

    def _ring(self, group: tuple[int, ...], size: float) -> float:
        """Return the seconds of 2 (L - 1) rounds in which all send M / L at once, each as slow as the slowest link of
        the ring.

        Where inside links are a bus, the L messages of a round pass it one after another.
        """
        members = self._by_node(group)
        inside, between = self.cluster.links.inside, self.cluster.links.between
        rounds, part = 2 * (len(group) - 1), size / len(group)
        slowest = max((_bus(inside, len(some), part) for some in members if len(some) > 1), default=0.0)
        if len(members) > 1:
            slowest = max(slowest, between.seconds(part))
        return rounds * slowest

    def _tree(self, group: tuple[int, ...], size: float) -> float:
        """Return the seconds of a tree, up and down: log2 of the largest node's members inside, and log2 of the nodes
        between."""
        members = self._by_node(group)
        inside, between = self.cluster.links.inside, self.cluster.links.between
        largest = max(len(some) for some in members)
        seconds, left = 0.0, largest
        while left > 1:  # a round halves the members; its messages share a bus
            seconds += _bus(inside, left // 2, size)
            left = -(-left // 2)
        return 2 * (seconds + math.ceil(math.log2(len(members))) * between.seconds(size))

    def _chain(self, group: tuple[int, ...], size: float) -> float:
        """Return the seconds of a chain, piece by piece from rank to rank and back, both ways at once: the first piece
        passes every link twice, and the others follow it as fast as the slowest link lets them. Inside links may be a
        bus for all of them."""
        members, links = self._by_node(group), self.cluster.links
        within, across = len(group) - len(members), len(members) - 1
        part = min(size, 4 * chain_piece(len(members), round(self.bytes / 4)))
        crowd = 2 * (max(map(len, members)) - 1) if links.inside.shared else 1
        rate = max(crowd / links.inside.bandwidth if within else 0.0, 1 / links.between.bandwidth if across else 0.0)
        return 2 * (within * links.inside.seconds(part) + across * links.between.seconds(part)) + (size - part) * rate

    def _server(self, group: tuple[int, ...], size: float) -> float:
        """Return the seconds of a server: the first of the group receives every other model, and sends the mean to
        each, one after another."""
        root, *others = group
        return 2 * sum(self._link(root, other).seconds(size) for other in others)

    def _hierarchical(self, group: tuple[int, ...], size: float) -> float:
        """Return the seconds of a ring inside every node at once, then one between nodes of the nodes' means, which
        each node spreads."""
        members = self._by_node(group)
        inside, between = self.cluster.links.inside, self.cluster.links.between
        largest, nodes = max(len(some) for some in members), len(members)
        within = 2 * (largest - 1) * _bus(inside, largest, size / largest) if largest > 1 else 0.0
        across = 2 * (nodes - 1) * between.seconds(size / nodes) if nodes > 1 else 0.0
        return within + across

    def _by_node(self, group: tuple[int, ...]) -> list[list[int]]:
        members: dict[int, list[int]] = {}
        for rank in group:
            members.setdefault(self.places[rank], []).append(rank)
        return list(members.values())


_ALGORITHMS: dict[str, Callable[[Prices, tuple[int, ...], float], float]] = {
    "ring": Prices._ring,
    "tree": Prices._tree,
    "chain": Prices._chain,
    "server": Prices._server,
    "hierarchical": Prices._hierarchical,
}


def _bus(link: VirtualLink, messages: int, size: float) -> float:
    """Return the seconds of `messages` simultaneous messages: side by side, or one after another on a bus."""
    return link.latency + (messages if link.shared else 1) * size / link.bandwidth


def _spells(
    learners: int, handicaps: Iterable[Handicap], stragglers: Iterable[Straggler]
) -> list[list[tuple[float, float, float, float]]]:
    """Return the times in which each learner is slow, and how: (from ns, to ns, factor, seconds)."""
    found: list[list[tuple[float, float, float, float]]] = [[] for _ in range(learners)]
    always = [(s.rank, (0.0, math.inf, s.factor, s.seconds)) for s in stragglers]
    spells = [(h.rank, (h.window[0] * 1e9, h.window[1] * 1e9, h.factor, h.seconds)) for h in handicaps]
    for rank, spell in (*always, *spells):
        if rank < learners and (spell[2] != 1 or spell[3]):
            found[rank].append(spell)
    return found


def nanoseconds(seconds: float) -> int:
    """Convert virtual seconds to whole nanoseconds, whose sums do not depend on the order of adding."""
    return round(seconds * 1e9)
