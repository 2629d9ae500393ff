"""Machines to advise on: seconds of a gradient on this one, and the virtual cluster of several like it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import final

import numpy as np
import torch
from torch import nn

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.sim.cluster import Compute, Node, VirtualCluster, VirtualLink, VirtualLinks

WARM, LONGEST_SECONDS, MOST_STEPS = 2, 3.0, 20
"""Steps of a probe that are not timed, and the seconds or steps after which it ends."""
INPUTS, OUTPUTS, HIDDEN_LAYERS = 440, 2000, 5
"""Sizes of the network of linear layers that is timed where only a model's number of parameters is known."""
COPIED = 1 << 23
"""Elements copied to time the memory."""
PAYLOAD = 1448 / 1514
"""Share of an Ethernet frame that TCP can fill with data."""


@final
@dataclass(frozen=True)
class Machines:
    """Machines like this one, and the links between them.

    learners  on each machine
    count     of machines
    link      between two of them
    """

    learners: int
    count: int = 1
    link: VirtualLink = VirtualLinks().between


def probed_layers(parameters: float, frames: int, machines: Machines, processes: int = 1) -> VirtualCluster:
    """Time a network of linear layers with about `parameters` parameters on this machine; return the cluster of
    `machines` like it. Of the `processes` of each learner, one is timed."""
    width = max(
        1,
        round(
            (-(INPUTS + OUTPUTS) + ((INPUTS + OUTPUTS) ** 2 + 4 * HIDDEN_LAYERS * parameters) ** 0.5)
            / 2
            / HIDDEN_LAYERS
        ),
    )
    sizes = [INPUTS, *[width] * (HIDDEN_LAYERS + 1), OUTPUTS]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    network, x = nn.Sequential(*layers[:-1]), torch.randn(frames, INPUTS)
    optimizer, y = torch.optim.SGD(network.parameters(), lr=1e-3), torch.zeros(frames, dtype=torch.long)

    def step(_: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return cluster_of(seconds_of(step, machines.learners * processes), machines)


def cluster_of(seconds: float, machines: Machines) -> VirtualCluster:
    """Return the cluster of `machines`, where a step takes `seconds` while all learners of a machine are at work."""
    have = cores()
    return VirtualCluster(
        name="this machine" if machines.count == 1 else f"{machines.count} machines like this",
        nodes=(Node(machines.learners, count=machines.count, cores=have),),
        compute=Compute(seconds=seconds),
        links=VirtualLinks(VirtualLink(5e-6, memory_bandwidth() / 2, shared=True), machines.link),
    )


def memory_bandwidth() -> float:
    """Return the bytes a second at which one core copies rows that are in no cache."""
    rows, best = [np.zeros(COPIED, np.float32) for _ in range(2)], float("inf")
    for _ in range(3):
        begun = wall_clock()
        np.copyto(rows[0], rows[1])
        best = min(best, wall_clock() - begun)
    return 4 * COPIED / best


def seconds_of(step: Callable[[int], None], learners: int) -> float:
    """Return the median seconds of `step`, with as many threads as each of `learners` learners would have. `step` gets
    the number of the step."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // learners))
    try:
        times, begun = list[float](), wall_clock()
        while len(times) < WARM + 1 or (wall_clock() - begun < LONGEST_SECONDS and len(times) < MOST_STEPS):
            at = wall_clock()
            step(len(times))
            times.append(wall_clock() - at)
    finally:
        torch.set_num_threads(before)
    return median(times[WARM:])


def link_of(rate: str, bytes_per_second: float, milliseconds: float = 0.2) -> VirtualLink:
    """Return a link that carries `bytes_per_second`, with a round trip of `milliseconds`; `rate` is its name."""
    if not bytes_per_second > 0:
        raise UserError(f"--link {rate}: nothing passes a link of that rate.")
    return VirtualLink(latency=milliseconds / 2e3, bandwidth=bytes_per_second)


def bytes_per_second(rate: str) -> float:
    """Return the bytes of models a second that a link carries, from its rate as `tc` writes it: `100mbit`, `1gbit`.

    Raises:
        UserError: `rate` is written otherwise.
    """
    found = re.fullmatch(r"([\d.]+)([kmg])bit", rate)
    if found is None:
        raise UserError(f"rate {rate!r}: write a number and kbit, mbit or gbit, for example 100mbit.")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] / 8 * PAYLOAD
