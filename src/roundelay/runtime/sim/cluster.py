"""A virtual cluster: which machines there are, how fast they compute, the links between them, and their faults.

Data only, read from YAML; costs in nanoseconds that follow from it are in cost.py. Learners are numbered node by node.
All times are virtual seconds, sizes are bytes, bandwidths bytes per second. docs/simulator.md explains every key.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from roundelay.core.bounds import Bounds, Count, NonNegative, Positive
from roundelay.core.configure import build, check_values, read_yaml
from roundelay.core.errors import UserError
from roundelay.runtime.base import Straggler

GRADIENT_SECONDS = 0.1
"""Seconds of a minibatch's gradient by default."""


@dataclass(frozen=True)
class Node:
    """`count` equal machines with `learners` each.

    speed      factor on the speed of `compute`
    cores      processors; more learners than processors share them evenly; None: each has a processor of its own
    slowdown   measured: factor on the per-frame part of a minibatch by the number of learners on the machine, for
               resources that they share unseen (memory, buses, input). 1 for one learner; straight lines between the
               given numbers, and the last one's slope beyond it
    """

    learners: Count = 1
    count: Count = 1
    speed: Positive = 1.0
    cores: Positive | None = None
    slowdown: Mapping[str, float] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise a UserError if a value is not possible; it begins with `where`."""
        for learners, factor in _by_number(self.slowdown, f"{where}.slowdown"):
            if learners < 2 or not 1 <= factor < math.inf:
                raise UserError(
                    f"{where}.slowdown.{learners} is {factor}: give, for 2 or more learners, a factor of 1 or more."
                )

    def slowed(self, learners: int) -> float:
        """Return the factor on the per-frame part of a minibatch when `learners` compute on one machine."""
        points = [(1, 1.0), *_by_number(self.slowdown, "slowdown")]
        if len(points) == 1 or learners <= 1:
            return 1.0
        (n0, f0), (n1, f1) = next(
            (pair for pair in pairwise(points) if learners <= pair[1][0]), (points[-2], points[-1])
        )
        return f0 + (f1 - f0) * (learners - n0) / (n1 - n0)


@dataclass(frozen=True)
class Compute:
    """Seconds of a gradient on a node of speed 1, its local update included.

    seconds            a minibatch of any size (default 0.1, or 0 where `seconds_per_frame` or `trace` is given)
    seconds_per_frame  seconds added for each frame
    update             the local update after each gradient
    sigma              of a log-normal factor with mean 1 on the gradient, drawn for every learner and step; 0: none
    trace              measured seconds of minibatches, instead of `seconds`
    order              cycle: learner l begins at entry l of the trace and goes through it again and again;
                       random: every learner and step draws one
    """

    seconds: NonNegative | None = None
    seconds_per_frame: NonNegative = 0.0
    update: NonNegative = 0.0
    sigma: NonNegative = 0.0
    trace: tuple[NonNegative, ...] = ()
    order: Literal["cycle", "random"] = "cycle"

    @property
    def fixed(self) -> float:
        """Seconds of a minibatch without those for its frames; 0 if there is a trace."""
        if self.seconds is not None:
            return self.seconds
        return 0.0 if self.trace or self.seconds_per_frame else GRADIENT_SECONDS


@dataclass(frozen=True)
class VirtualLink:
    """A link between learners: a message of M bytes takes latency + M / bandwidth seconds.

    shared: all transfers over it go one after another; inside a node it is then a bus, between nodes the one network
    interface of each node. restart: a mean of models after `idle` seconds without one takes `restart` times as long.
    """

    latency: NonNegative = 0.0
    bandwidth: Annotated[float, Bounds(above=0)] = math.inf
    shared: bool = False
    restart: Positive = 1.0
    idle: NonNegative = 0.2

    def seconds(self, size: float) -> float:
        """Return the seconds of one message of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class VirtualLinks:
    """The links between learners of one node, and of different nodes."""

    inside: VirtualLink = VirtualLink(latency=5e-6, bandwidth=12e9)
    between: VirtualLink = VirtualLink(latency=50e-6, bandwidth=1.25e9)


@dataclass(frozen=True)
class Allreduce:
    """The algorithm of a mean over a group, or the seconds it was measured to take (by the number of learners).

    ring          2 (L - 1) / L * M / bandwidth + 2 (L - 1) latency, over the slowest link on the ring
    tree          up and down: 2 ceil(log2 L) messages, those between nodes first
    chain         as hosts here do: 2 (L - 1) pieces of at most 1 MiB, then the rest of M / bandwidth behind them
    server        naive: one learner receives all other models and sends the mean to each: 2 (L - 1) messages
    hierarchical  a ring inside every node, and a ring between nodes
    seconds       measured, by the number of learners; straight lines between, and beyond the last as the ring grows
    inside        measured seconds for a group on one node, if that is cheaper; empty: as any other group
    """

    algorithm: Literal["ring", "tree", "chain", "server", "hierarchical"] = "ring"
    seconds: Mapping[str, NonNegative] = field(default_factory=dict)
    inside: Mapping[str, NonNegative] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise a UserError if a value is not possible; it begins with `where`."""
        for name in ("seconds", "inside"):
            for learners, _ in _by_number(getattr(self, name), f"{where}.{name}"):
                if learners < 2:
                    raise UserError(f"{where}.{name}.{learners}: an allreduce has 2 or more learners.")


def measured(table: Mapping[str, float], learners: int) -> float:
    """Return the seconds of a mean among `learners`, from a table (not empty) of measured ones by number of
    learners."""
    points = [(1, 0.0), *_by_number(table, "seconds")]
    last, seconds = points[-1]
    if learners >= last:
        return seconds * ring_share(learners) / ring_share(last)
    (n0, s0), (n1, s1) = next(pair for pair in pairwise(points) if learners <= pair[1][0])
    return s0 + (s1 - s0) * (learners - n0) / (n1 - n0)


@dataclass(frozen=True)
class Handicap:
    """Learner `rank` takes `factor` times as long plus `seconds`, for gradients begun in `window` (virtual seconds)."""

    rank: int
    factor: float = 1.0
    seconds: float = 0.0
    window: tuple[float, float] = (0.0, math.inf)

    def check(self, where: str) -> None:
        """Raise a UserError if a value is not possible; it begins with `where`."""
        try:
            Straggler(self.rank, self.factor, self.seconds)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        low, high = self.window
        if not 0 <= low < high:
            raise UserError(f"{where}.window is [{low:g}, {high:g}]: give the seconds it begins and ends, in order.")


@dataclass(frozen=True)
class Moment:
    """A death or a join of learner `rank` at virtual second `at`."""

    rank: int
    at: NonNegative


@dataclass(frozen=True)
class VirtualCluster:
    """A virtual cluster: everything that decides how long effects take, and which learners are present.

    nodes        machines, in the order in which learners are numbered
    compute      the cost of a gradient
    links        latency and bandwidth, from which exchanges and means follow
    exchange     measured seconds of one exchange, instead of those that follow from the links
    allreduce    how means are made
    mix          measured seconds of one mix with all neighbours, instead of those that follow from links or `exchange`
    background   effects that a learner begins go on while it computes; false: it does them itself, as on one host
    centre_node  the node that holds the centre row (the parameter server), if the strategy has one
    model_bytes  the size of a row on the wire; None: 4 bytes a parameter
    stragglers   learners that are slow, and when
    deaths       learners that stop at a moment
    joins        learners that come, or come back: without an earlier death they are not there at first
    """

    name: str = "one node"
    nodes: tuple[Node, ...] = (Node(),)
    compute: Compute = Compute()
    links: VirtualLinks = VirtualLinks()
    exchange: NonNegative | None = None
    allreduce: Allreduce = Allreduce()
    mix: NonNegative | None = None
    background: bool = True
    centre_node: int = 0
    model_bytes: Positive | None = None
    stragglers: tuple[Handicap, ...] = ()
    deaths: tuple[Moment, ...] = ()
    joins: tuple[Moment, ...] = ()

    def __post_init__(self) -> None:
        check_values(self, "")
        if not self.nodes:
            raise UserError("nodes is empty: a cluster has at least one node.")
        for index, node in enumerate(self.nodes):
            node.check(f"nodes[{index}]")
            if node.slowdown and not self.compute.seconds_per_frame:
                raise UserError(
                    f"nodes[{index}].slowdown slows the frames of a minibatch, but compute.seconds_per_frame is 0: "
                    "give the seconds a frame takes."
                )
        if self.compute.seconds is not None and self.compute.trace:
            raise UserError("compute.seconds and compute.trace both say how long a minibatch takes: give one.")
        self.allreduce.check("allreduce")
        machines = sum(node.count for node in self.nodes)
        if not 0 <= self.centre_node < machines:
            raise UserError(f"centre_node is {self.centre_node}: nodes are 0 to {machines - 1}.")
        for name in ("stragglers", "deaths", "joins"):
            items: Sequence[Handicap | Moment] = getattr(self, name)
            for index, item in enumerate(items):
                if not 0 <= item.rank < self.learners:
                    raise UserError(
                        f"{name}[{index}].rank is {item.rank}: learners are 0 to {self.learners - 1}, node by node."
                    )
        for index, handicap in enumerate(self.stragglers):
            handicap.check(f"stragglers[{index}]")
        self._check_lives()

    def _check_lives(self) -> None:
        """Check that each learner dies when it is there, and joins when it is not."""
        for rank in sorted({moment.rank for moment in (*self.deaths, *self.joins)}):
            told = sorted(
                [(m.at, "deaths") for m in self.deaths if m.rank == rank]
                + [(m.at, "joins") for m in self.joins if m.rank == rank]
            )
            for (at, what), (next_at, following) in pairwise(told):
                if what == following or at == next_at:
                    raise UserError(
                        f"{following}: learner {rank} has {what} at {at:g} s and {following} at {next_at:g} s. "
                        "Between two deaths there is a join, and the other way round, each at a second of its own."
                    )
        if not any(self.alive_at(rank, -1) for rank in range(self.learners)):
            raise UserError("joins: no learner is there at the beginning; leave one out of joins.")

    @property
    def learners(self) -> int:
        """Number of learners on all nodes."""
        return sum(node.learners * node.count for node in self.nodes)

    def first(self, learners: int) -> "VirtualCluster":
        """Return this cluster with its first `learners` learners only, and their stragglers, deaths and joins.

        Raises:
            UserError: the cluster has fewer learners, or none of the first ones is present at the beginning.
        """
        if learners > self.learners:
            raise UserError(
                f"cluster {self.name!r} has {self.learners} learners on its nodes, but {learners} are to train."
            )
        nodes: list[Node] = []
        left = learners
        for node in self.nodes:
            whole = min(node.count, left // node.learners)
            left -= whole * node.learners
            nodes += [replace(node, count=whole)] if whole else []
            if whole < node.count:
                if left:
                    nodes.append(replace(node, learners=left, count=1))
                break
        machines = sum(node.count for node in nodes)
        return replace(
            self,
            nodes=tuple(nodes),
            centre_node=min(self.centre_node, machines - 1),
            stragglers=tuple(one for one in self.stragglers if one.rank < learners),
            deaths=tuple(one for one in self.deaths if one.rank < learners),
            joins=tuple(one for one in self.joins if one.rank < learners),
        )

    @property
    def flat(self) -> bool:
        """True if no cost depends on the size of the model."""
        return self.exchange is not None and bool(self.allreduce.seconds)

    def alone(self, frames: int) -> float:
        """Return the average seconds of a minibatch on the first node with no other learner on it."""
        compute = self.compute
        fixed = sum(compute.trace) / len(compute.trace) if compute.trace else compute.fixed
        return (fixed + compute.seconds_per_frame * frames) / self.nodes[0].speed + compute.update

    def placement(self) -> list[int]:
        """Return the number of each learner's node, by rank."""
        places: list[int] = []
        machine = 0
        for node in self.nodes:
            for _ in range(node.count):
                places += [machine] * node.learners
                machine += 1
        return places

    def machines(self) -> list[Node]:
        """Return all machines, as nodes with a count of 1, by number."""
        return [node for node in self.nodes for _ in range(node.count)]

    def lives(self) -> list[tuple[int, int, bool]]:
        """Return all deaths and joins in order: (virtual nanosecond, rank, whether it joins)."""
        told = [(m, False) for m in self.deaths] + [(m, True) for m in self.joins]
        return sorted((round(m.at * 1e9), m.rank, joins) for m, joins in told)

    def alive_at(self, rank: int, now_ns: int) -> bool:
        """Return True if learner `rank` is present at this virtual nanosecond."""
        mine = self._lives_of.get(rank, [])
        before = [joins for at, joins in mine if at <= now_ns]
        return before[-1] if before else not (mine and mine[0][1])

    @cached_property
    def _lives_of(self) -> dict[int, list[tuple[int, bool]]]:
        found: dict[int, list[tuple[int, bool]]] = {}
        for at, rank, joins in self.lives():
            found.setdefault(rank, []).append((at, joins))
        return found


def load_cluster(path: Path) -> VirtualCluster:
    """Return the cluster a YAML file describes.

    Raises:
        UserError: a value is missing or not possible; names the file and the dotted key.
    """
    mapping = read_yaml(path)  # its errors name the file
    try:
        return build(VirtualCluster, {"name": path.stem, **mapping})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def ring_share(learners: int) -> float:
    """Return how many models each member of a ring allreduce sends: 2 (L - 1) / L."""
    return 2 * (learners - 1) / learners


def _by_number(mapping: Mapping[str, float], where: str) -> list[tuple[int, float]]:
    """Return the entries of a mapping by number of learners, in order."""
    try:
        return sorted((int(key), value) for key, value in mapping.items())
    except ValueError:
        raise UserError(f"{where}: its keys are numbers of learners, not {', '.join(mapping)}.") from None
