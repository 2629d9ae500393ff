"""Counts of a host among 2, 4, 8, ...: addresses, memory, sockets, threads, bytes into the first host, CPU time.

    python benchmarks/scale.py                                     # small rows, rows of 4 MB, 43 million parameters
    python benchmarks/scale.py --learners 2 4 8 --parameters 1e9 --strategies adpsgd

A virtual host is a process with an arena, the endpoint of its exchanges and its links, as a run has them, on the
loopback; its learner computes nothing, and there is one a host. The largest count of any host is shown.

    adpsgd    every learner averages its row with that of every other, in an order of its own
    ssgd      all take means, for which hosts need the chain alone
    dpsgd     learners mix with two neighbours, for which hosts have links to all others

Of rows of more than 4 MB an exchange carries one chunk (`fragments`), so that memory that is not touched costs nothing.
The bytes into the first host are those of rows when a segment has ended: learners' own (`adpsgd`, `dpsgd`) or all alike
(`ssgd`). Counts do not depend on the machine's other work; CPU time does by some percent.
"""

import argparse
import gc
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.finding import open_router
from roundelay.runtime.hosts.control.host_links import HostLinks
from roundelay.runtime.hosts.control.messages import Piece, Replied
from roundelay.runtime.hosts.control.mirrors import names_alike
from roundelay.runtime.hosts.terms import CONTROL, HostTerms, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkOptions
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Dialect
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.coordination.outbox import Outbox
from roundelay.runtime.procs.memory.arena import ARENA_NAME, Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
from roundelay.strategies import make_strategy

LEARNERS = (2, 4, 8, 16, 32)
PARAMETERS = (1_000, 1_000_000, 43_000_000)
STRATEGIES = ("adpsgd", "ssgd", "dpsgd")
SECRET = b"a secret of this benchmark alone"
LARGEST_WHOLE = 1_000_000
"""Parameters up to which a row travels whole, and vectors are sent when a segment ends."""
MEANS = 10
"""Means, or mixes, of which the CPU time is taken."""
PATIENCE_SECONDS = 600.0
COUNTS = {
    "addresses_mb": "addresses, MB",
    "maps": "maps of the arena",
    "pss_mb": "PSS, MB",
    "grown_mb": "of it since hosts have met",
    "buffers": "server buffers",
    "sockets": "sockets",
    "threads": "threads",
    "cpu_ms": "CPU a step, ms",
    "into_first_mb": "into the first, MB",
}
"""Columns: the heading, by the name of a host's number."""


class VirtualHost:
    """A host, number `number` of `learners`, with one learner."""

    def __init__(self, number: int, learners: int, parameters: int, strategy: str) -> None:
        self.number, self.learners, self.strategy = number, learners, make_strategy(strategy)
        whole = parameters <= LARGEST_WHOLE
        terms = HostTerms(
            patience_seconds=PATIENCE_SECONDS,
            host_patience=PATIENCE_SECONDS,
            fragments=1 if whole else -(-parameters // CHUNK),
            exchange_share=1.0,
        )
        listen = ("127.0.0.1", 0)
        self.place = HostPlace((number,), learners, address=listen[0], listen=listen, secret=SECRET)
        self.layout = Layout(learners, parameters, views=(HostMeanSequences, BellTable))
        self.descriptor = create_file(self.layout)
        self.arena = Arena(self.descriptor, self.layout, Patience(number, PATIENCE_SECONDS))
        self.arena.liveness.alive[:] = 1
        self.router = open_router(self.place, terms)
        self.links = HostLinks(self.place, terms, self.router, self.strategy)
        wake = self.links.endpoint.open(self.arena)[number]
        patience = Patience(number, PATIENCE_SECONDS)
        self.outbox = Outbox(self.arena, number, (number,), wake, patience)
        self.hosts = [(rank,) for rank in range(learners)]
        self.into_first, self._pss_met = 0, 0.0

    def meet(self, addresses: Sequence[Address]) -> None:
        """Connect to the other hosts, which listen at `addresses`."""
        self.links.settle(self.number, self.hosts, self.layout.parameters)
        self.links.meet(addresses)
        self.links.endpoint.peers(addresses, self.hosts)

    def begin(self) -> None:
        """Note the memory of this process, once all hosts have connected."""
        self._pss_met = pss_mb()

    def work(self) -> float:
        """Take all steps; return the CPU milliseconds of a step."""
        if self.strategy.traits.synchronous:
            return self._means()
        others = [rank for rank in range(self.learners) if rank != self.number]
        began = time.process_time()
        for serial, peer in enumerate(np.random.default_rng(self.number).permutation(others), 1):
            self.outbox.ask(Exchange(int(peer), pair_average_))
            if self.outbox.wait(serial) is None:
                raise RuntimeError(f"learner {self.number} has not reached {peer}: {self.links.endpoint.error}")
        return 1000 * (time.process_time() - began) / len(others)

    def _means(self) -> float:
        self.links.begin_part(self.arena, 1)
        everybody, rank = tuple(range(self.learners)), self.number
        mixes = self.strategy.mixes
        means = Means(self.arena, rank, Patience(rank, PATIENCE_SECONDS), [rank], mixes)
        ring = sorted({(rank - 1) % self.learners, (rank + 1) % self.learners})
        vector = self.arena.vector("row", rank)[:LARGEST_WHOLE]
        began = time.process_time()
        for _ in range(MEANS):
            if mixes:
                means.publish(vector, 1.0, readers=ring)
                means.collect_neighbours([(other, 1.0) for other in sorted({rank, *ring})])
            else:
                means.publish(vector, 1.0, everybody)
                means.collect(everybody)
        return 1000 * (time.process_time() - began) / MEANS

    def end_segment(self, addresses: Sequence[Address]) -> None:
        """Send the learner's row to the first host, which receives them all, unless rows are all alike."""
        alike = names_alike(self.strategy, ())
        if self.layout.parameters > LARGEST_WHOLE:
            return
        if self.number:
            with Link.connect(
                addresses[0],
                SECRET,
                {"what": CONTROL, "host": self.number},
                PATIENCE_SECONDS,
                options=LinkOptions(),
                expected=identity(0),
            ) as link:
                laid_out = link.receive(PATIENCE_SECONDS).header["laid_out"]
                bulk.give(MonitoredLink(link, PATIENCE_SECONDS), self.arena, "row", [self.number], laid_out)
                MonitoredLink(link, PATIENCE_SECONDS).say(Replied())
                link.receive(PATIENCE_SECONDS)
            return
        laid_out = bulk.lay_out(self.arena, alike, 0, range(1, self.learners))
        came, pieces = take_links(self.router, self.learners - 1), Dialect(Piece, Replied, rank=self.learners - 1)
        for link in came:
            link.send("give", {"laid_out": laid_out})
        for link in came:
            while isinstance(message := pieces.read(link.receive(PATIENCE_SECONDS)), Piece):
                bulk.take_piece(self.arena, message, range(self.learners))
            self.into_first += link.received_bytes
            link.send("thanks", {})

    def counts(self) -> dict[str, float]:
        """Return the counts of this process, by name."""
        gc.collect()
        inode, about = str(os.fstat(self.descriptor).st_ino), Path("/proc/self/status").read_text()
        maps = Path("/proc/self/maps").read_text().splitlines()
        pss = pss_mb()
        size = re.search(r"^VmSize:\s+(\d+)", about, re.MULTILINE)
        assert size is not None
        server = self.links.endpoint.server
        return {
            "addresses_mb": int(size[1]) / 1e3,
            "maps": sum(line.split()[4] == inode and ARENA_NAME in line for line in maps),
            "pss_mb": pss,
            "grown_mb": pss - self._pss_met,
            "buffers": 0 if server is None else server.buffers.peak,
            "sockets": sum(_is_socket(one) for one in Path("/proc/self/fd").iterdir()) - 1,  # its pipe
            "threads": len(os.listdir("/proc/self/task")),
            "into_first_mb": self.into_first / 1e6,
        }

    def close(self) -> None:
        """Close the host's links."""
        self.links.end_part()
        self.router.close()
        self.links.close()
        self.links.endpoint.close()


def pss_mb() -> float:
    """Return the memory of this process in MB, with its share of pages that several processes have."""
    found = re.search(r"^Pss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1e3


def _is_socket(path: Path) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:  # the descriptor by which the folder was read
        return False


def take_links(router: Router, count: int) -> list[Link]:
    """Return `count` links for orders, once they have come in at `router`."""
    found: list[Link] = []
    router.give(CONTROL, found.append)
    while len(found) < count:
        time.sleep(0.01)
    return found


def lead(pipe: Connection, number: int, learners: int, parameters: int, strategy: str) -> None:
    """Be a virtual host, which obeys commands that come through `pipe`."""
    torch.set_num_threads(1)
    for path in list(Path("/proc/self/fd").iterdir()):  # this process's sockets of hosts before it
        if _is_socket(path) and int(path.name) != pipe.fileno():
            os.close(int(path.name))
    try:
        host = VirtualHost(number, learners, parameters, strategy)
        pipe.send(host.router.listener.address)
        addresses = pipe.recv()
        host.meet(addresses)
        pipe.send("met")
        pipe.recv()
        host.begin()
        cpu = host.work()
        pipe.send("worked")
        pipe.recv()
        found = host.counts()
        pipe.send("counted")
        pipe.recv()
        host.end_segment(addresses)
        pipe.send({**found, "cpu_ms": cpu, "into_first_mb": host.into_first / 1e6})
        pipe.recv()
        host.close()
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}".partition("\n")[0])
        traceback.print_exc()
    finally:
        os._exit(0)


def measure(learners: int, parameters: int, strategy: str) -> dict[str, Any]:
    """Return the largest count of any host, by name; or `failed` and the reason."""
    context = multiprocessing.get_context("fork")  # torch is loaded once
    pipes, processes = [], []
    try:
        for number in range(learners):
            ours, theirs = context.Pipe()
            process = context.Process(target=lead, args=(theirs, number, learners, parameters, strategy), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        said = [hear(pipe) for pipe in pipes]
        for order in ([*said], "work", "count", "give"):
            for pipe in pipes:
                pipe.send(order)
            said = [hear(pipe) for pipe in pipes]
        for pipe in pipes:
            pipe.send("end")
        return {name: max(one[name] for one in said) for name in COUNTS}
    except (EOFError, RuntimeError) as error:
        return {"failed": str(error) or "a host has ended"}
    finally:
        for process in processes:
            process.join(0.1 if sys.exc_info()[0] else 60)
            process.kill()
            process.join()


def hear(pipe: Connection) -> Any:
    """Wait for the next answer of a host, and return it.

    Raises:
        RuntimeError: the host has failed; says why.
    """
    said = pipe.recv()
    if isinstance(said, str) and said not in ("met", "worked", "counted"):
        raise RuntimeError(said)
    return said


def shown(found: dict[str, Any]) -> list[str]:
    """Return the cells of a line of the table."""
    if "failed" in found:
        return [found["failed"], *[""] * (len(COUNTS) - 1)]
    return [f"{found[name]:,.0f}" if found[name] >= 10 else f"{found[name]:,.3g}" for name in COUNTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=LEARNERS, metavar="L")
    parser.add_argument("--parameters", type=lambda text: int(float(text)), nargs="+", default=PARAMETERS, metavar="P")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    options = parser.parse_args()
    print("| " + " | ".join(["strategy", "parameters", "learners", *COUNTS.values()]) + " |")
    print("|---" * (3 + len(COUNTS)) + "|")
    for strategy, parameters, learners in product(options.strategies, options.parameters, options.learners):
        if strategy == "adpsgd" or parameters <= LARGEST_WHOLE:
            cells = [strategy, f"{parameters:,}", str(learners), *shown(measure(learners, parameters, strategy))]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
