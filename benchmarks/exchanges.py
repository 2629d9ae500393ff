"""Cost of an exchange between two hosts for their processors: milliseconds of CPU time at both ends, over loopback.

    python benchmarks/exchanges.py [--parameters 12500000] [--rows 5] [--no-encrypt] [--only fp32]

Two processes stand for two hosts; the learner of one asks for pair averages with the learner of the other, one after
the other. CPU time includes what the kernel does in the calls of each process. A "row" is as many exchanges as carry
the whole row once; printed are medians over rows. Wall time is that of loopback: over a real link add bytes through
bits per second, once each way.

First, unless `--no-floors`, what an exchange of a whole row in full precision consists of, each part alone and by the
plainest means there is: a copy of the row, records of it sealed and opened in cache, its bytes through a bare pair of
sockets (both ends together, with buffers as links have them), and the average of two rows. An exchange is one copy,
two averages, and everything else once each way. The sum is what is left if all that joins these parts costs nothing.
"""

import argparse
import json
import multiprocessing
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.core.flat import slices
from roundelay.runtime.hosts.exchange.client import ExchangeClient
from roundelay.runtime.hosts.exchange.links import HostNetwork
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.exchange.row_leases import RowLeases
from roundelay.runtime.hosts.exchange.server import ExchangeServer
from roundelay.runtime.hosts.terms import identity
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.seal import KEY_BYTES, RECORD_BYTES, TAG_BYTES, Sealer, cut
from roundelay.runtime.hosts.transport.stream import NEAR_BYTES
from roundelay.runtime.hosts.transport.wire import Address, LinkOptions
from roundelay.runtime.procs.coordination.outbox import Outbox
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.patience import Patience

PATIENCE = Patience(0, 60.0)
CARRIAGES = {
    "fp32": RowFormat(),
    "fp32/8": RowFormat(fragments=8),
    "bf16": RowFormat("bf16"),
    "bf16/8": RowFormat("bf16", 8),
}
"""Form of rows, and fragments."""
KEY = bytes(KEY_BYTES)
"""Of floors, where nothing is secret."""


def arena(parameters: int) -> Arena:
    """One host's, with rows for both learners."""
    layout = Layout(2, parameters)
    descriptor = create_file(layout)
    found = Arena(descriptor, layout, PATIENCE)
    found.liveness.alive[:] = 1
    for rank, row in enumerate(found.rows()):
        row.vector.normal_(generator=torch.Generator().manual_seed(rank))
    return found


def serve(pipe: Connection, parameters: int, secret: bytes, encrypts: bool) -> None:
    """Host 1: says where it listens, then what it has spent whenever it is asked."""
    torch.set_num_threads(1)
    shared = arena(parameters)
    server = ExchangeServer(ExchangeClient(shared, HostNetwork(1, (0, 1), secret), RowLeases()))
    listener = Listener(("127.0.0.1", 0), secret, identity(1), options=LinkOptions(encrypts))

    def welcome() -> None:
        while link := listener.accept(None):
            server.serve(link)

    threading.Thread(target=welcome, daemon=True).start()
    pipe.send(listener.address)
    while pipe.recv():
        pipe.send(time.process_time())
    listener.close()
    server.close()


def measure(row_format: RowFormat, parameters: int, rows: int, encrypts: bool) -> dict[str, float]:
    """Of one row."""
    secret = secrets.token_bytes(32)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, parameters, secret, encrypts), daemon=True)
    process.start()
    address: Address = ours.recv()
    shared = arena(parameters)
    network = HostNetwork(0, (0, 1), secret, {1: address}, encrypts=encrypts)
    client = ExchangeClient(shared, network, RowLeases(), row_format)
    client.start()
    outbox = Outbox(shared, 0, (0,), client.wake[0], PATIENCE)

    def exchange() -> None:
        outbox.ask(Exchange(1, pair_average_))
        if outbox.wait(1) is None:
            raise RuntimeError(f"the other host is gone: {client.error}")

    def their_seconds() -> float:
        ours.send(True)
        return float(ours.recv())

    exchange()
    before, spent = client.traffic()[1].sent_bytes, list[tuple[float, float, float]]()
    for _ in range(rows):
        here, there, started = time.process_time(), their_seconds(), time.monotonic()
        for _ in range(row_format.fragments):
            exchange()
        spent.append((time.process_time() - here, their_seconds() - there, time.monotonic() - started))
    sent = client.traffic()[1].sent_bytes - before
    ours.send(False)
    process.join()
    client.close()
    asker, asked, wall = (1000 * statistics.median(one) for one in zip(*spent, strict=True))
    both = 1000 * statistics.median(here + there for here, there, _ in spent)
    found = {"asker_ms": asker, "asked_ms": asked, "both_ms": both, "wall_ms": wall}
    return {"megabytes_each_way": sent / rows / 1e6, **found}


# Floors ---------------------------------------------------------------------------------------------------------------


def floors(parameters: int, tries: int, encrypts: bool) -> dict[str, float]:
    """Milliseconds of CPU time of each part of an exchange of a whole row, medians of so many tries, and their sum."""
    a, b = torch.zeros(parameters), torch.ones(parameters)
    records: list[memoryview] = list(cut([memoryview(np.ascontiguousarray(a.numpy())).cast("B")]))  # type: ignore[arg-type]
    room, place = memoryview(bytearray(RECORD_BYTES + TAG_BYTES)), memoryview(bytearray(RECORD_BYTES))
    first = memoryview(bytes(Sealer(KEY, encrypts).seal(records[0], room)))

    def seal() -> None:
        sealer = Sealer(KEY, encrypts)
        for record in records:
            sealer.seal(record, room)

    def open_() -> None:  # the same one again and again: one that has just come lies in cache, too
        for _ in records:
            Sealer(KEY, encrypts).open(first, place)

    def average() -> None:
        for x, y in zip(slices(a), slices(b), strict=True):
            pair_average_(x, y)

    with bare_sockets(records) as carry:
        parts: dict[str, tuple[int, Callable[[], object]]] = {
            "copy": (1, partial(b.copy_, a)),
            "average": (2, average),
            "seal": (2, seal),
            "open": (2, open_),
            "sockets": (2, carry),
        }
        found = {name: 1000 * statistics.median(cpu(do) for _ in range(tries)) for name, (_, do) in parts.items()}
    return {**found, "sum": sum(times * found[name] for name, (times, _) in parts.items())}


def cpu(do: Callable[[], object]) -> float:
    """Seconds of CPU time of all threads of this process that `do` takes."""
    begun = time.process_time()
    do()
    return time.process_time() - begun


@contextmanager
def bare_sockets(records: Sequence[memoryview]) -> Iterator[Callable[[], None]]:
    """Carries them over loopback to a thread that has one place for all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)
        near.connect(server.getsockname())
        far, _ = server.accept()

    def take() -> None:
        left, place = sum(map(len, records)), bytearray(RECORD_BYTES)
        while left:
            left -= far.recv_into(place, min(left, RECORD_BYTES))

    def carry() -> None:
        taker = threading.Thread(target=take)
        taker.start()
        for record in records:
            near.sendall(record)
        taker.join()

    with near, far:
        yield carry


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=12_500_000)
    parser.add_argument("--rows", type=int, default=5, help="whole rows to carry (5)")
    parser.add_argument("--no-encrypt", action="store_true", help="authenticate only")
    parser.add_argument("--no-floors", action="store_true")
    parser.add_argument("--only", choices=list(CARRIAGES), nargs="+", default=list(CARRIAGES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.no_floors:
        show("floors, ms", floors(options.parameters, options.rows, not options.no_encrypt), options.json)
    for name in options.only:
        found = measure(CARRIAGES[name], options.parameters, options.rows, not options.no_encrypt)
        show(name, found, options.json)


def show(name: str, found: dict[str, float], as_json: bool) -> None:
    """Print a line."""
    if as_json:
        print(json.dumps({"carriage": name, **found}))
    else:
        print(f"{name:18}", "  ".join(f"{key} {value:.1f}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
