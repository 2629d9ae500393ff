"""Speeds that the simulator predicts for benchmarks/two_hosts.py, given a step's seconds and the link."""

import math
import re
from dataclasses import dataclass

from two_hosts_learner import Way

BATCH = 256
"""Examples that a minibatch is said to have: throughput does not depend on it."""
PAYLOAD, LATENCY = 1448 / 1514, 1e-4
"""Of a frame of Ethernet, the share that TCP may fill; seconds a message, assumed: it hardly matters for 50 MB."""
UNSHAPED, ONE_HOST = "unshaped", "one-host"
"""Links without a rate: the kernel's between two hosts; two processes of one host."""
ATTACHED = 0.7e-3, 5e-10
"""Seconds that an attached step takes beside the loop's own, and those of each parameter, as measured on one learner of
0.8 million (docs/advice.md)."""
SPEAKING = 0.03
"""Share of a core for the process that speaks to other hosts, beside that allowed to exchanges (docs/log.md)."""
QUORUM = 0.1
"""Seconds between two looks of torchft's lighthouse for a quorum, which is made before every mean; its default."""
LIKE = {
    "ddp": "ssgd",
    "decent-dp": "dpsgd:ring,order=consensus",
    "torchft-localsgd": "bsp",
    "torchft-diloco": "diloco",
    "accelerate-localsgd": "bsp",
    "hivemind": "bsp",
}
"""Strategies of ours that say as much as a rival does, as often, and behind the same work: Decent-DP waits for an
exchange in the next backward, so that only an exchange longer than a step is waited for."""


@dataclass(frozen=True)
class Link:
    """The link of every host.

    Attributes:
        rate: rate of the link as tc takes it, UNSHAPED or ONE_HOST.
        delay: delay one way (s).
    """

    rate: str
    delay: float = 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes a second that TCP can send over the link."""
        if self.rate in (UNSHAPED, ONE_HOST):
            return math.inf
        found = re.fullmatch(r"([\d.]+)([gmk])bit", self.rate)
        if found is None:
            raise ValueError(f"rate {self.rate!r}: write it like 100mbit, 1gbit, {UNSHAPED} or {ONE_HOST}")
        return float(found[1]) * {"g": 1e9, "m": 1e6, "k": 1e3}[found[2]] / 8 * PAYLOAD

    def __str__(self) -> str:
        return self.rate + (f" +{self.delay * 1e3:g} ms" if self.delay else "")


def steps_a_second(
    way: Way, link: Link, parameters: int, seconds: float, slower: float = 1.0, ours: bool = True
) -> float:
    """Return the steps a second of both learners together, one on each host, by the model of links and processors that
    advice goes by (docs/advice.md).

    Args:
        seconds: seconds of a step of a learner that never talks.
        slower: factor on the second learner's seconds.
        ours: the learners are Roundelay's.
    """
    from roundelay.advice.throughput import Candidate, StepWork, never_talking, speed
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
    candidate = Candidate(way.name, way.wire, way.parts)
    return speed(candidate, cluster, work, way.share, ours).examples_per_second / BATCH


def share_of_never_talking(mode: str, link: Link, parameters: int, seconds: float, slower: float = 1.0) -> float | None:
    """Return the throughput of a way of --to-loss over that of learners that never talk; None: it is not known.

    Args:
        seconds: seconds of a step of the first learner on its own.
    """
    from roundelay.core.strategy_text import parse_strategy

    way, step, ours = Way.of(mode), seconds, True
    name, options = parse_strategy(way.name)
    if name in LIKE:
        period, ours = options.get("period"), False
        way = Way(LIKE[name] + (f",period={period}" if period else ""))
        if name.startswith("torchft"):
            step += QUORUM / (period or 1)
    elif name == "alone":
        return None
    else:
        step = (step + ATTACHED[0] + ATTACHED[1] * parameters) / (1 - SPEAKING)
    return steps_a_second(way, link, parameters, step, slower, ours) * seconds / (1 + 1 / slower)
