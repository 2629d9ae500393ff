"""Cost of sealing what goes between hosts: MB/s, and the share of a core at 1 Gbit/s.

    python benchmarks/wire.py [--megabytes 50] [--rounds 7]

First sealing and opening alone, in memory, in records of the size that links use: encrypted (AES-256-GCM), and with a
tag only (GMAC). "Copy" is a copy of the same bytes, for comparison; ChaCha20-Poly1305 and keyed BLAKE2b are what else
there is. Then a link over loopback: CPU seconds of both ends together, of a thread that sends and one that receives,
against a bare pair of sockets that carries the same bytes. The share is CPU seconds a second at 119 MB/s, which is what
TCP carries over 1 Gbit/s. Modes take turns, round by round; printed are medians and ranges.
"""

import argparse
import hashlib
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.seal import KEY_BYTES, RECORD_BYTES, TAG_BYTES, Sealer, cut
from roundelay.runtime.hosts.transport.wire import Link, LinkOptions

GIGABIT = 119e6
"""Bytes a second of payload: 1448 of 1514 of every frame of Ethernet, and its gaps."""
SECRET = os.urandom(KEY_BYTES)


def in_memory(data: memoryview) -> dict[str, Callable[[], None]]:
    """Ways to go through `data` once, by name."""
    room, place = memoryview(bytearray(RECORD_BYTES + TAG_BYTES)), memoryview(bytearray(RECORD_BYTES))
    records = list(cut([data]))

    def seal(encrypts: bool) -> Callable[[], None]:
        sealer = Sealer(SECRET, encrypts)

        def run() -> None:
            for record in records:
                sealer.seal(record, room)

        return run

    def open_(encrypts: bool) -> Callable[[], None]:
        sealer = Sealer(SECRET, encrypts)
        sealed = [bytes(sealer.seal(record, room)) for record in records]

        def run() -> None:
            opener, at = Sealer(SECRET, encrypts), 0
            for record in sealed:
                found = opener.open(memoryview(record), place)
                target[at : at + len(found)] = found
                at += len(found)

        return run

    def each(do: Callable[[memoryview], object]) -> Callable[[], None]:
        def run() -> None:
            for record in records:
                do(record)

        return run

    target = memoryview(bytearray(len(data)))
    chacha = ChaCha20Poly1305(SECRET)

    def copy(record: memoryview) -> None:
        place[: len(record)] = record

    return {
        "seal, encrypted": seal(True),
        "open, encrypted": open_(True),
        "seal, tag only": seal(False),
        "open, tag only": open_(False),
        "copy": each(copy),
        "ChaCha20-Poly1305": each(lambda record: chacha.encrypt(bytes(12), record, None)),
        "BLAKE2b, tag only": each(lambda record: hashlib.blake2b(record, key=SECRET, digest_size=16).digest()),
    }


class Both:
    """Two ends in this process, and what carrying something costs both of them."""

    def __init__(self, send: Callable[[memoryview], None], receive: Callable[[memoryview], None]) -> None:
        self._send, self._receive = send, receive

    def carry(self, data: memoryview, into: memoryview) -> float:
        """CPU seconds of both ends."""
        spent: list[float] = []

        def run(do: Callable[[memoryview], None], what: memoryview) -> None:
            begun = time.thread_time()
            do(what)
            spent.append(time.thread_time() - begun)

        ends = ((self._receive, into), (self._send, data))
        threads = [threading.Thread(target=run, args=end) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(spent)


def bare() -> Both:
    """Sockets alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()

    def receive(into: memoryview) -> None:
        while len(into):
            into = into[far.recv_into(into) :]

    return Both(near.sendall, receive)


def link(encrypts: bool, largest: int) -> Both:
    """A link of ours."""
    listener = Listener(("127.0.0.1", 0), SECRET, options=LinkOptions(encrypts))
    near = Link.connect(listener.address, SECRET, {}, 60.0, LinkOptions(encrypts, largest))
    far = listener.accept(60.0)
    assert far is not None
    far.largest = largest
    return Both(lambda data: near.send("row", {}, [data]), lambda into: void(far.receive(60.0, into)))


def void(_: object) -> None:
    """Nothing."""


def line(name: str, speeds: list[float]) -> dict[str, object]:
    """Print a line of the table, and give it back."""
    median, low, high = statistics.median(speeds), min(speeds), max(speeds)
    share = 100 * GIGABIT / median
    spread = f"({low / 1e6:.0f}-{high / 1e6:.0f})"
    print(f"{name:24} {median / 1e6:8.0f} MB/s {spread:16} {share:6.2f} % of a core at 1 Gbit/s", flush=True)
    return {"name": name, "bytes_per_second": median, "low": low, "high": high}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the numbers here, too")
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    data = memoryview(np.random.default_rng(0).bytes(size))
    into, found = memoryview(bytearray(size)), []
    speeds: dict[str, list[float]] = {}
    ways = in_memory(data)
    for _ in range(options.rounds):
        for name, run in ways.items():
            begun = time.thread_time()
            run()
            speeds.setdefault(name, []).append(size / (time.thread_time() - begun))
    print("In memory, one thread:")
    found += [line(name, each) for name, each in speeds.items()]
    both = {"bare sockets": bare(), "link, encrypted": link(True, size), "link, tag only": link(False, size)}
    speeds = {}
    for number in range(options.rounds + 1):
        for name, ends in both.items():
            seconds = ends.carry(data, into)
            assert into == data
            if number:  # the first is for warming up
                speeds.setdefault(name, []).append(size / seconds)
    print("Over loopback, both ends together:")
    found += [line(name, each) for name, each in speeds.items()]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
