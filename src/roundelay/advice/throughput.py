"""Strategies that are considered for a cluster, with examples a second of each in the simulator, and of learners that
never talk."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Draw, Grad
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.runtime.hosts.options import AUTO, HostOptions
from roundelay.runtime.sim.cluster import Allreduce, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.simulation.scenario import Timed, time_strategy
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy, Traits

EVERYWHERE = (
    "ssgd",
    "delay-by-one",
    "bsp,period=5",
    "bsp,period=20",
    "bmuf,period=5",
    "bmuf,period=20",
    "bmuf,period=80",
    "slowmo,period=12",
    "diloco,period=50",
    "diloco,period=100",
    "diloco,period=500",
    "diloco,period=100,fragments=4,delay=10",
    "diloco,period=100,codec=int8",
    "gossip-diloco,period=50",
    "dpsgd:ring",
    "dpsgd:random-ring,order=consensus",
    "gossip-pga,period=6",
    "easgd,period=4",
    "easgd,period=16",
    "asgd",
    "async-diloco,period=50",
    "sparseloco,period=50",
    "a2cid2",
    "divshare",
    "adpsgd:random-ring",
)
"""Strategies considered for every cluster of two learners or more; on one machine, those for one host."""
WITH_A_QUORUM = ("bsp,period=20,quorum=0.75", "bmuf,period=20,quorum=0.75", "diloco,period=50,quorum=0.75")
"""Strategies considered too where some learners may be slower than others, and a quarter of all is at least one."""


@final
@dataclass(frozen=True)
class Candidate:
    """A strategy that may be advised, with its options for a run on several hosts.

    strategy   as `--strategy` takes it
    wire       codec between hosts, as `--wire` takes it
    fragments  of exchanges between hosts, as `--fragments` takes it
    """

    strategy: str
    wire: str = AUTO
    fragments: int = 1

    @property
    def made(self) -> Strategy:
        """The strategy itself."""
        return make_strategy(self.strategy)

    @property
    def codec(self) -> Codec:
        """The codec of rows and gradients between hosts, before a link's measured capacity has changed it."""
        if self.wire == AUTO:
            return CODECS["bf16"] if self.made.traits.paced_by_links else FP32
        return CODECS[self.wire]

    @property
    def flags(self) -> str:
        """The options of `roundelay train` that choose this candidate."""
        more = f" --fragments {self.fragments}" if self.fragments > 1 else ""
        return f"--strategy {self.strategy}{more}" + (f" --wire {self.wire}" if self.wire != AUTO else "")


def candidates(cluster: VirtualCluster) -> list[Candidate]:
    """Return all candidates for a cluster; one learner alone is always among them."""
    return [Candidate("sgd"), *(_of_many(cluster) if cluster.learners > 1 else ())]


def _of_many(cluster: VirtualCluster) -> Iterator[Candidate]:
    """Yield the candidates for a cluster of several learners: strategies and their codecs."""
    machines = cluster.machines()
    nodes = {machine.learners for machine in machines}
    texts = list(EVERYWHERE)
    if cluster.learners >= 4 and _unequal(cluster):
        texts += WITH_A_QUORUM
    if len(machines) > 1 and len(nodes) == 1 and nodes != {1}:
        texts.append(f"hadpsgd,node_size={nodes.pop()}")
    for text in texts:
        strategy = make_strategy(text)
        if len(machines) == 1 or not strategy.traits.one_host:
            yield Candidate(text)
        if len(machines) == 1:
            continue
        if text == "ssgd":
            yield Candidate(text, "bf16")


def _unequal(cluster: VirtualCluster) -> bool:
    """Return True if learners of the cluster are not, or not always, equally fast."""
    compute, kinds = cluster.compute, {(one.speed, one.cores, one.learners) for one in cluster.machines()}
    return bool(cluster.stragglers or compute.sigma or compute.trace) or len(kinds) > 1


MINIBATCHES = 3_000
"""Minibatches simulated for a candidate, over all learners, unless its period asks for more."""
RESTART = 1.1
"""`VirtualLink.restart` in seconds of links between nodes, where a cluster does not give it (docs/advice.md)."""
INSIDE = VirtualLink(latency=1.3e-3, bandwidth=2.7e9)
"""Link inside a node whose learners keep its cores busy: a mean takes 3 ms of them, and 0.4 ns a byte of each learner's
vector (docs/advice.md)."""
CARRYING = 1.1e-9
"""Seconds of a core that exchanges take for each byte a link carries meanwhile: 0.13 of a core where 1 Gbit/s is full
(docs/exchanges.md)."""
PERIODS = 2
"""Fewest periods that are simulated, for a strategy with a period."""


@final
@dataclass(frozen=True)
class NeverTalks(Strategy):
    """A strategy under which learners train alone and never exchange anything: the largest throughput there is."""

    name: ClassVar[str] = "never talking"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=0, waits="none")

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            me.step(await Grad(me.snapshot(), batch))


@final
@dataclass(frozen=True)
class StepWork:
    """One learner's step: the sizes of the model and of its minibatch.

    parameters  of the model
    frames      of a learner's minibatch: examples of any kind
    """

    parameters: float
    frames: int = 256

    def __post_init__(self) -> None:
        if not self.parameters >= 1 or self.frames < 1:
            raise UserError(
                f"a model of {self.parameters:g} parameters and minibatches of {self.frames}: give at least one each."
            )


@final
@dataclass(frozen=True)
class Speed:
    """The simulated speed of a candidate.

    examples_per_second  of all learners together
    steps_an_exchange    steps of a learner for each exchange of a whole row that it has begun; 1 where the strategy
                         has none, or says itself how often
    end                  seconds in which learners wait at the end of an epoch for exchanges that are under way
    """

    examples_per_second: float
    steps_an_exchange: float = 1.0
    end: float = 0.0


def speed(
    candidate: Candidate, cluster: VirtualCluster, work: StepWork, share: float | None = None, ours: bool = True
) -> Speed:
    """Return the speed of a candidate on a cluster.

    Args:
        share: the run's `exchange_share`; None: the default.
        ours: True for learners of Roundelay; False for other software, of which only the bytes sent are known.
    """
    strategy = candidate.made
    if strategy.name == "sgd":
        return Speed(_alone(cluster, work))
    strategy.check(cluster.learners)
    sent = candidate.codec.bytes_of(round(work.parameters)) / candidate.fragments
    busy = cluster
    if ours:
        share = HostOptions().exchange_share if share is None else share
        busy = _with_busy_cores(cluster)
        busy = as_hosts_do(busy) if strategy.traits.synchronous else _with_carriers(busy, share)
    found = _timed(strategy, replace(busy, model_bytes=sent), work)
    counts, steps = found.outcome.counts, 1.0
    if strategy.traits.paced_by_links and counts.exchanges.any():
        steps = float(counts.steps.sum() / counts.exchanges.sum()) * candidate.fragments
    return Speed(found.frames_per_training_second, steps, found.seconds - found.drained)


def never_talking(cluster: VirtualCluster, work: StepWork) -> float:
    """Return the examples a second of all learners together if none of them ever sends or waits."""
    return _timed(NeverTalks(), replace(cluster, model_bytes=4 * work.parameters), work).frames_per_training_second


def _timed(strategy: Strategy, cluster: VirtualCluster, work: StepWork) -> Timed:
    period = strategy.block
    rounds = max(PERIODS * period, min(400, MINIBATCHES // cluster.learners), 20)
    rounds = -(-rounds // period) * period
    return time_strategy(strategy, cluster, work.frames, rounds)


def _alone(cluster: VirtualCluster, work: StepWork) -> float:
    """Return the cluster cut down to one learner, on its fastest node."""
    fastest = max(cluster.machines(), key=lambda machine: machine.speed)
    one = replace(
        cluster,
        nodes=(replace(fastest, learners=1, count=1),),
        centre_node=0,
        stragglers=(),
        deaths=(),
        joins=(),
    )
    return never_talking(one, work)


def as_hosts_do(cluster: VirtualCluster) -> VirtualCluster:
    """Return the cluster as Roundelay uses one: means go along a chain of hosts, and connections between nodes begin
    slowly after a pause, unless `cluster` says otherwise."""
    if len(cluster.machines()) > 1 and cluster.allreduce == Allreduce():
        cluster = replace(cluster, allreduce=Allreduce("chain"))
    links = cluster.links
    if links.between.restart != 1:
        return cluster
    return replace(cluster, links=replace(links, between=replace(links.between, restart=RESTART)))


def _with_carriers(cluster: VirtualCluster, share: float) -> VirtualCluster:
    """Return the cluster with slower learners where they keep all cores of their node busy: carrying rows to other
    nodes takes as much of these cores as a full link asks for, at most `share`."""
    machines = cluster.machines()
    if len(machines) == 1:
        return cluster
    share = min(share, CARRYING * cluster.links.between.bandwidth)

    def left(speed: float, full: bool) -> float:
        return speed * (1 - share) if full else speed

    nodes = tuple(
        replace(node, speed=left(node.speed, node.cores is not None and node.learners >= node.cores))
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def _with_busy_cores(cluster: VirtualCluster) -> VirtualCluster:
    """Return the cluster with links inside a node as fast as its busy cores copy and add, unless `cluster` says
    otherwise."""
    full = [one.learners / one.cores for one in cluster.machines() if one.cores and one.learners >= max(2.0, one.cores)]
    if not full or cluster.links.inside != VirtualLinks().inside:
        return cluster
    return replace(
        cluster, links=replace(cluster.links, inside=replace(INSIDE, bandwidth=INSIDE.bandwidth / max(full)))
    )
