"""Speeds that the simulator predicts for benchmarks/two_hosts.py, given a step's seconds and the link."""

import math
import re
from dataclasses import dataclass

from two_hosts_learner import Way

BATCH = 256
"""Examples that a minibatch is said to have: throughput does not depend on it."""
PAYLOAD, LATENCY = 1448 / 1514, 1e-4
"""Of a frame of Ethernet, the share that TCP may fill; seconds a message, assumed: it hardly matters for 50 MB."""
UNSHAPED = "unshaped"
ATTACHED = 1e-3, 6e-10
"""Seconds that an attached step takes beside the loop's own, and those of each parameter: a rough estimate, made when
the row of `adpsgd` at 100 Mbit/s was known."""
LIKE = {
    "ddp": "ssgd",
    "decent-dp": "dpsgd:ring,order=consensus",
    "torchft-localsgd": "bsp",
    "torchft-diloco": "diloco",
    "accelerate-localsgd": "bsp",
    "hivemind": "bsp",
}
"""Strategies of ours that say as much as a rival does, as often, and behind the same work: Decent-DP waits for an
exchange in the next backward, so that only what takes longer than a step is waited for."""


@dataclass(frozen=True)
class Link:
    """The link of every host.

    Attributes:
        rate: as tc takes it, or UNSHAPED.
        delay: one way (s).
    """

    rate: str
    delay: float = 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes a second that TCP can fill."""
        if self.rate == UNSHAPED:
            return math.inf
        found = re.fullmatch(r"([\d.]+)([gmk])bit", self.rate)
        if found is None:
            raise ValueError(f"rate {self.rate!r}: write it like 100mbit, 1gbit or {UNSHAPED}")
        return float(found[1]) * {"g": 1e9, "m": 1e6, "k": 1e3}[found[2]] / 8 * PAYLOAD

    def __str__(self) -> str:
        return self.rate + (f" +{self.delay * 1e3:g} ms" if self.delay else "")


def steps_a_second(way: Way, link: Link, parameters: int, seconds: float, slower: float = 1.0) -> float:
    """Steps a second of both learners together, one on each host, by the model of links and processors that advice goes
    by (docs/advice.md).

    Args:
        seconds: of a step of a learner that talks to nobody.
        slower: factor on those of the second learner.
    """
    from roundelay.advice.candidates import Candidate
    from roundelay.advice.throughput import StepWork, never_talking, speed
    from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster, VirtualLink, VirtualLinks

    cluster = VirtualCluster(
        nodes=(Node(count=2, cores=1),),
        compute=Compute(seconds=seconds),
        links=VirtualLinks(between=VirtualLink(latency=LATENCY + link.delay, bandwidth=link.bandwidth)),
        stragglers=(Handicap(1, slower),) if slower > 1 else (),
    )
    work = StepWork(parameters, BATCH)
    if way.name == "never-talk":
        return never_talking(cluster, work) / BATCH
    return speed(Candidate(way.name, way.wire, way.fragments), cluster, work).examples_per_second / BATCH


def share_of_never_talking(mode: str, link: Link, parameters: int, seconds: float, slower: float = 1.0) -> float | None:
    """Throughput over that of never talking, of a way of --to-loss; None: nothing is known of it.

    Args:
        seconds: of a step of the first learner on its own.
    """
    from roundelay.core.strategy_text import parse_strategy

    way, step = Way.of(mode), seconds
    name, options = parse_strategy(way.name)
    if name in LIKE:
        period = f",period={options['period']}" if "period" in options else ""
        way = Way(LIKE[name] + period)
    elif name == "alone":
        return None
    else:
        step += ATTACHED[0] + ATTACHED[1] * parameters
    return steps_a_second(way, link, parameters, step, slower) * seconds / (1 + 1 / slower)
