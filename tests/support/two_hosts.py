"""Hosts that talk over loopback, all in this process: an arena, a client, a server and a listener each."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.core.flat import CHUNK
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import SegmentPlan, wall_clock
from roundelay.runtime.gathering import Gatherings
from roundelay.runtime.hosts.exchange.carrier import RowLeases
from roundelay.runtime.hosts.exchange.client import ExchangeClient
from roundelay.runtime.hosts.exchange.links import HostNetwork
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.exchange.server import ExchangeServer
from roundelay.runtime.hosts.terms import identity
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.stream import Stream
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkOptions, RejectedConnections
from roundelay.runtime.procs.coordination.collectives import rows_on_devices
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import NONE
from roundelay.runtime.procs.worker import SegmentAnswer, Worker, WorkerSpec
from support.clusters import cluster
from support.until import together

SECRET = b"of these tests"
LONG = 3 * CHUNK + 17
"""Parameters: three whole chunks and a short one."""
PATIENCE = 60.0


class Host:
    """A host. `homes` are the hosts of all learners, by rank; `device`: where this host's learners have their rows."""

    def __init__(
        self,
        number: int,
        homes: Sequence[int],
        name: str,
        parameters: int,
        row_format: RowFormat | None = None,
        patience: float = PATIENCE,
        device: torch.device | None = None,
        **optimizer: Any,
    ) -> None:
        self.number, self.homes = number, homes
        self.here = tuple(rank for rank, home in enumerate(homes) if home == number)
        self.cluster = cluster(name, len(homes), Quadratic(parameters=parameters), **optimizer)
        strategy, centre = self.cluster.strategy, self.cluster.centre
        about: dict[str, Any] = {"centre_memory": strategy.centre_memory, "weighed": strategy.weighed}
        self.layout = Layout(len(homes), parameters, self.cluster.memory, centre, **about)
        descriptor = create_file(self.layout)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.there = rows_on_devices(self.cluster, self.layout, device, self.here)
        self.arena = Arena(descriptor, self.layout, Patience(NONE, PATIENCE), self.there)
        self.arena.liveness.alive[:] = 1
        self.rows = self.arena.rows()
        for rank, row in enumerate(self.rows):
            row.vector.copy_(start(rank, parameters))
        self.rejected = RejectedConnections()
        self.listener = Listener(
            ("127.0.0.1", 0), SECRET, identity(self.here[0]), PATIENCE, options=LinkOptions(rejected=self.rejected)
        )
        network = HostNetwork(number, homes, SECRET, patience=patience, rejected=self.rejected)
        self.client = ExchangeClient(self.arena.with_copies(), network, RowLeases(), row_format)
        self.server = ExchangeServer(self.client, PATIENCE, self.cluster.strategy)
        self._porter = threading.Thread(target=self._welcome)
        self._porter.start()
        self.workers: dict[int, Worker] = {}

    def _welcome(self) -> None:
        while link := self.listener.accept(None):
            self.server.serve(link)

    def go(self, addresses: dict[int, Address]) -> None:
        """Start the client and the learners."""
        self.client.peers_changed(addresses)
        self.client.start()
        for rank in self.here:
            self.workers[rank] = Worker(self.spec(rank))

    def spec(self, rank: int) -> WorkerSpec:
        """Return the description that learner `rank` is started by."""
        return WorkerSpec(
            *(rank, self.cluster, self.layout, self.path, PATIENCE, 1),
            here=self.here,
            outbox_wake=self.client.wake[rank],
            on_devices=self.there,
        )

    def begin(self, plan: SegmentPlan) -> None:
        """Begin a segment with the work of this host alone; gatherings, if the centre is here, are of all hosts."""
        Gatherings(self.arena.gatherings).begin_part(wall_clock())
        self.arena.queue.begin_segment(plan.first, plan.first_round, plan.end_round)

    def close(self) -> None:
        """End the learners, the client and the server of this host."""
        self.client.close()
        assert not self.client.error, self.client.error
        self.listener.close()
        self._porter.join()
        self.server.close()
        assert not self.server.error, self.server.error
        for worker in self.workers.values():
            worker.arena.close()
        self.arena.close()


def start(rank: int, parameters: int = LONG) -> Tensor:
    """Return the first row of a learner, (P,)."""
    return torch.randn(parameters, generator=torch.Generator().manual_seed(rank))


@contextmanager
def hosts(
    homes: Sequence[int],
    name: str = "adpsgd",
    parameters: int = LONG,
    row_format: RowFormat | None = None,
    patience: float = PATIENCE,
    addresses: dict[int, Address] | None = None,
    device: torch.device | None = None,
    **optimizer: Any,
) -> Iterator[list[Host]]:
    """Run two or more hosts while the body lasts."""
    found = [Host(n, homes, name, parameters, row_format, patience, device, **optimizer) for n in range(max(homes) + 1)]
    try:
        for host in found:
            elsewhere = {other.number: other.listener.address for other in found if other is not host}
            host.go({**elsewhere, **(addresses or {})})
        yield found
    finally:
        for host in found:
            host.close()


def train(found: Sequence[Host], plan: SegmentPlan) -> list[SegmentAnswer]:
    """Train all learners of all hosts through `plan`, each host with minibatches of its own; return their answers."""
    answers: list[SegmentAnswer] = []
    command = {"do": "segment", **plan.to_json(), "living": list(range(len(found[0].homes))), "number": 0}
    for host in found:
        host.begin(plan)
    workers = [worker for host in found for worker in host.workers.values()]
    together(*(lambda worker=worker: answers.append(worker.segment(command)) for worker in workers))
    return answers


class Impostor:
    """A process that knows the secret, poses as the host of learner 1, and treats every link as it is told to."""

    def __init__(self, behave: Callable[[Link], None]) -> None:
        self.listener = Listener(("127.0.0.1", 0), SECRET, identity(1), PATIENCE, options=LinkOptions(largest=1 << 30))
        self.address, self.met, self._behave = self.listener.address, 0, behave
        self._links: list[Link] = []
        self._threads = [threading.Thread(target=self._welcome)]
        self._threads[0].start()

    @staticmethod
    def half(link: Link, header: dict[str, Any], payload: bytes) -> None:
        """Send an answer, and close the link in the middle of it."""
        whole, sent = Stream.write, 0

        def write(self: Stream, views: list[memoryview]) -> None:
            nonlocal sent
            for view in views:
                left = max(0, len(payload) // 2 - sent)
                whole(self, [view[:left]])
                sent += len(view)

        link.write = write.__get__(link)  # type: ignore[method-assign]
        link.send("row", header, [payload])
        link.close()

    def _welcome(self) -> None:
        while link := self.listener.accept(None):
            self.met += 1
            self._links.append(link)
            self._threads.append(threading.Thread(target=self._behave, args=(link,)))
            self._threads[-1].start()

    def close(self) -> None:
        """End the impostor."""
        self.listener.close()
        self._threads[0].join()
        for link in self._links:
            link.close()
        for thread in self._threads[1:]:
            thread.join()


def ask(worker: Worker, effect: Any) -> Any:
    """Have a learner perform an effect; return the reply."""
    return worker.engine.perform(effect)


def even(*found: Host) -> bool:
    """Return True if no row of these hosts is half written."""
    return not any(host.arena.row_versions.versions.astype(int).sum() % 2 for host in found)


def break_links(monkeypatch: pytest.MonkeyPatch, when: str) -> list[str]:
    """Break the link during the first message of a kind, and right after the second. Return a list that gets an entry
    for each link broken."""
    broken: list[str] = []
    whole = Link.send

    def send(link: Link, kind: str, header: dict[str, Any], payload: Any = ()) -> None:
        if kind == when and len(broken) < 2:
            broken.append(kind)
            if len(broken) == 2:
                whole(link, kind, header, payload)
            link.close()
        whole(link, kind, header, payload)

    monkeypatch.setattr(Link, "send", send)
    return broken
