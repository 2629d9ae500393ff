"""Speeds that the simulator predicts for benchmarks/two_hosts.py, given a step's seconds and the link."""

import math
import re
from dataclasses import dataclass

from two_hosts_learner import Way

PAYLOAD, LATENCY = 1448 / 1514, 1e-4
"""Of a frame of Ethernet, the share that TCP may fill; seconds a message, assumed: it hardly matters for 50 MB."""
UNSHAPED = "unshaped"
ROUNDS = 2000


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
    """Steps a second of both learners together, one on each host.

    Args:
        seconds: of a step of a learner that talks to nobody.
        slower: factor on those of the second learner.
    """
    import talk

    from roundelay.algorithms.codecs import CODECS
    from roundelay.runtime.sim.cluster import (
        Allreduce,
        Compute,
        Handicap,
        Node,
        VirtualCluster,
        VirtualLink,
        VirtualLinks,
    )
    from roundelay.simulation.timing import time_strategy
    from roundelay.strategies import make_strategy, parse_strategy

    strategy = talk.NeverTalk() if way.name == "never-talk" else make_strategy(*parse_strategy(way.name))
    between = VirtualLink(latency=LATENCY + link.delay, bandwidth=link.bandwidth)
    cluster = VirtualCluster(
        nodes=(Node(count=2),),
        compute=Compute(seconds=seconds),
        allreduce=Allreduce("ring"),
        links=VirtualLinks(between=between),
        model_bytes=CODECS[way.wire].bytes_of(parameters) / way.fragments,
        stragglers=(Handicap(1, slower),) if slower > 1 else (),
    )
    return time_strategy(strategy, cluster, talk.BATCH, ROUNDS).frames_per_second / talk.BATCH
