"""Cost of an exchange between two hosts for their processors: milliseconds of CPU time at both ends, over loopback.

    python benchmarks/exchanges.py [--parameters 12500000] [--rows 5] [--no-encrypt] [--only fp32]

Two processes stand for two hosts; the learner of one asks for pair averages with the learner of the other, one after
the other. CPU time includes the kernel's work in the calls of each process. A "row" is as many exchanges as carry
the whole row once; printed are medians over rows. Wall time is that of loopback: over a real link add bytes through
bits per second, once each way.
"""

import argparse
import multiprocessing
import secrets
import statistics
import threading
import time
from multiprocessing.connection import Connection

import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.runtime.hosts.exchange.carrier import RowLeases
from roundelay.runtime.hosts.exchange.client import ExchangeClient
from roundelay.runtime.hosts.exchange.links import HostNetwork
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.exchange.server import ExchangeServer
from roundelay.runtime.hosts.terms import identity
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, LinkOptions
from roundelay.runtime.procs.coordination.outbox import Outbox
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience

PATIENCE = Patience(0, 60.0)
CARRIAGES = {
    "fp32": RowFormat(),
    "fp32/8": RowFormat(fragments=8),
    "bf16": RowFormat("bf16"),
    "bf16/8": RowFormat("bf16", 8),
}
"""Form of rows, and fragments."""


def arena(parameters: int) -> Arena:
    """Return the arena of one host, with rows of `parameters` elements for both learners."""
    layout = Layout(2, parameters)
    descriptor = create_file(layout)
    found = Arena(descriptor, layout, PATIENCE)
    found.liveness.alive[:] = 1
    for rank, row in enumerate(found.rows()):
        row.vector.normal_(generator=torch.Generator().manual_seed(rank))
    return found


def serve(pipe: Connection, parameters: int, secret: bytes, encrypts: bool) -> None:
    """Be host 1: send through `pipe` the address where it listens, then, on request, its CPU time so far."""
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
    """Return the costs of exchanging one whole row, by name: medians over `rows` such exchanges."""
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


def main() -> None:
    """Measure exchanges in every row format, and print their costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=12_500_000)
    parser.add_argument("--rows", type=int, default=5, help="whole rows to carry (5)")
    parser.add_argument("--no-encrypt", action="store_true", help="authenticate only")
    parser.add_argument("--only", choices=list(CARRIAGES), nargs="+", default=list(CARRIAGES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        found = measure(CARRIAGES[name], options.parameters, options.rows, not options.no_encrypt)
        print(f"{name:18}", "  ".join(f"{key} {value:.1f}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
