"""Strategies that are considered for a cluster: periods, fragments, codecs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from roundelay.algorithms.codecs import CODECS
from roundelay.core.codec import FP32, Codec
from roundelay.runtime.hosts.options import AUTO
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

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
"""Considered for every cluster of two learners or more, those of one host where there is one machine."""
WITH_A_QUORUM = ("bsp,period=20,quorum=0.75", "bmuf,period=20,quorum=0.75", "diloco,period=50,quorum=0.75")
"""Considered where some learners may be slower than others, and a quarter of them is one at least."""


@final
@dataclass(frozen=True)
class Candidate:
    """A strategy, and the options of a run on several hosts that go with it.

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
        """The codec of rows and gradients between hosts, as it is before a link has shown what it bears."""
        if self.wire == AUTO:
            return CODECS["bf16"] if self.made.traits.paced_by_links else FP32
        return CODECS[self.wire]

    @property
    def flags(self) -> str:
        """Options of `roundelay train` that say the same."""
        more = f" --fragments {self.fragments}" if self.fragments > 1 else ""
        return f"--strategy {self.strategy}{more}" + (f" --wire {self.wire}" if self.wire != AUTO else "")


def candidates(cluster: VirtualCluster) -> list[Candidate]:
    """Return everything that is considered for this cluster; one learner alone is always among it."""
    return [Candidate("sgd"), *(_of_many(cluster) if cluster.learners > 1 else ())]


def _of_many(cluster: VirtualCluster) -> Iterator[Candidate]:
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
    """Return True if learners are not, or not always, equally fast."""
    compute, kinds = cluster.compute, {(one.speed, one.cores, one.learners) for one in cluster.machines()}
    return bool(cluster.stragglers or compute.sigma or compute.trace) or len(kinds) > 1
