"""Cost of a mean over two hosts, along the chain and by gloo: CPU time of both ends together, and seconds, on loopback.

    python benchmarks/means.py [--parameters 43000000] [--rounds 5] [--only chain gloo]

Two processes stand for two hosts with a learner each; gradients are there before the mean begins. Ways are taken in
turns, round by round, each with links of its own; a first mean, which makes the communicator, does not count. CPU time
includes what the kernel does in the calls of each process. Printed are medians over rounds, and ratios to the chain of
the same round.
"""

import argparse
import multiprocessing
import os
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from roundelay.runtime.hosts.mean_transports.group import GroupOptions
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkOptions
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences

SECONDS = 120.0
"""Patience of everybody."""
PAIR = (0, 1)


@dataclass(frozen=True)
class Way:
    """A way of means."""

    encrypts: bool = True
    group: GroupOptions | None = None


WAYS = {
    "chain": Way(),
    "chain, not encrypted": Way(encrypts=False),
    "gloo": Way(group=GroupOptions("gloo", "127.0.0.1", SECONDS)),
}


def fail(reason: str) -> None:
    """A link is gone."""
    print(reason, flush=True)
    os._exit(1)


class End:
    """One of the two hosts."""

    def __init__(self, rank: int, parameters: int) -> None:
        torch.set_num_threads(1)
        layout = Layout(2, parameters, views=(HostMeanSequences, BellTable))
        self._rank, self._patience = rank, Patience(rank, SECONDS)
        self._arena = Arena(create_file(layout), layout, self._patience)
        self._arena.liveness.alive[:] = 1
        self._arena.vector("gradient", rank).normal_(generator=torch.Generator().manual_seed(rank))

    @contextmanager
    def part(self, number: int, links: dict[str, Link], way: Way) -> Iterator[Means]:
        """Means of one part by this way."""
        self._arena.sequences.begin_part()
        other = 1 - self._rank
        for link in links.values():
            link.largest = 4 * self._arena.layout.parameters
        by = MeanLinks([[0], [1]], self._rank, {other: links["chain"]}, {other: links["mix"]})
        host = HostMeans(self._arena, by, number, fail, group=way.group)
        host.start()
        try:
            yield Means(self._arena, self._rank, self._patience, [self._rank], forwards=True)
        finally:
            host.stop()
            for link in links.values():
                link.close()


def take_mean(means: Means) -> None:
    """Take part in a mean with the gradient as it lies."""
    means.publish_gradient(1.0, PAIR)
    means.collect(PAIR)


def follow(pipe: Connection, parameters: int, secret: bytes) -> None:
    """Be the second host: a way and the address of the first, then as many means as it says, part after part."""
    end, number = End(1, parameters), 0
    while (name := pipe.recv()) is not None:
        way, address = WAYS[name], pipe.recv()
        links = {what: dial(address, secret, way, what) for what in ("chain", "mix")}
        with end.part(number, links, way) as means:
            while pipe.recv():
                take_mean(means)
                pipe.send(time.process_time())
        number += 1


def dial(address: Address, secret: bytes, way: Way, what: str) -> Link:
    """A link of one kind to the first host."""
    return Link.connect(address, secret, {"what": what}, SECONDS, options=LinkOptions(way.encrypts))


def accepted(listener: Listener) -> dict[str, Link]:
    """Both links of the second host, by kind."""
    found = {}
    for _ in range(2):
        link = listener.accept(SECONDS)
        assert link is not None
        found[str(link.hello["what"])] = link
    return found


def measure(end: End, pipe: Connection, number: int, name: str, secret: bytes) -> tuple[float, float]:
    """Milliseconds of CPU time of both ends, and milliseconds, of one mean by this way."""
    way = WAYS[name]
    listener = Listener(("127.0.0.1", 0), secret, options=LinkOptions(way.encrypts))
    pipe.send(name)
    pipe.send(listener.address)
    links = accepted(listener)
    listener.close()

    def together(means: Means) -> float:
        pipe.send(True)
        take_mean(means)
        return float(pipe.recv())

    with end.part(number, links, way) as means:
        there = together(means)
        here, started = time.process_time(), time.monotonic()
        there = together(means) - there
        seconds, here = time.monotonic() - started, time.process_time() - here
        pipe.send(False)
    return 1000 * (here + there), 1000 * seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=43_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(WAYS), nargs="+", default=list(WAYS))
    options = parser.parse_args()
    secret, context = secrets.token_bytes(32), multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=follow, args=(theirs, options.parameters, secret), daemon=True)
    process.start()
    end, found = End(0, options.parameters), {name: list[tuple[float, float]]() for name in options.only}
    for round_ in range(options.rounds):
        for place, name in enumerate(options.only):
            found[name].append(measure(end, ours, round_ * len(options.only) + place, name, secret))
    ours.send(None)
    process.join()
    first = found[options.only[0]]
    for name, rounds in found.items():
        cpu, wall = (statistics.median(one) for one in zip(*rounds, strict=True))
        ratios = [_ratio(place, rounds, first) for place in (0, 1)]
        print(f"{name:22} cpu {cpu:7.1f} ms ({ratios[0]:.2f})  wall {wall:7.1f} ms ({ratios[1]:.2f})")


def _ratio(place: int, rounds: list[tuple[float, float]], first: list[tuple[float, float]]) -> float:
    """Median over rounds of a number of these through that of those."""
    return statistics.median(one[place] / other[place] for one, other in zip(rounds, first, strict=True))


if __name__ == "__main__":
    main()
