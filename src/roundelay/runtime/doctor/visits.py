"""Between hosts: each lets the others visit, over the links that a run uses, and measures the way to them.

A host that is examined answers: `arrive` (another one is there, and may be visited), `echo` (the same again), `take`
(swallow a payload, say so), `examine` (its findings), `measure` (the way from it to another), `leave` (no more).
Whoever asks has proved that it knows the secret.
"""

import socket
import statistics
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from roundelay.runtime.doctor.findings import Finding, Way
from roundelay.runtime.doctor.host import Asked, examine, versions
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkOptions

ECHOES, ECHO_SECONDS = 50, 1.5
SMALLEST, LARGEST, ENOUGH_SECONDS = 1 << 18, 1 << 26, 0.4
"""Bytes sent at once: four times as many until sending takes long enough to be measured."""
AGAIN = 2
"""Repetitions of the largest; the fastest counts."""


@dataclass(frozen=True)
class Visited:
    """Facts that one host says of itself."""

    name: str
    address: tuple[str, int]
    findings: list[Finding]
    versions: dict[str, str]


@dataclass(frozen=True)
class Arrival:
    """A host is there, and may be visited."""

    ranks: tuple[int, ...]  # of its learners
    address: tuple[str, int]


class VisitServer:
    """This host, open to visitors until it is closed, or told to `leave`."""

    def __init__(self, address: str, port: int, secret: bytes, asked: Asked, patience: float) -> None:
        self._listener = Listener((address, port), secret, {"name": socket.gethostname()}, patience)
        self.address, self.rejected = self._listener.address, self._listener.rejected
        self._asked, self._secret, self._patience = asked, secret, patience
        self._left = threading.Event()
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()
        self._thread = threading.Thread(target=self._open, daemon=True, name="doctor")
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until somebody says that it is over; False if nobody did in time."""
        return self._left.wait(seconds)

    def arrival(self, seconds: float) -> Arrival | None:
        """The next host that says it is there; None if none does in time."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except Empty:
            return None

    def close(self) -> None:
        """No more visitors."""
        self._listener.close()
        self._thread.join()

    def _open(self) -> None:
        while True:
            link = self._listener.accept(None)
            if link is None:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True, name="doctor's visitor").start()

    def _serve(self, link: Link) -> None:
        link.largest = LARGEST
        try:
            while True:
                message = link.receive(None)
                if message.kind == "echo":
                    link.send("echo", {"now": time.time()}, [message.payload])
                elif message.kind == "take":
                    link.send("taken", {})
                elif message.kind == "examine":
                    found = [finding.to_json() for finding in examine(self._asked)]
                    link.send("found", {"findings": found, "versions": versions(), "name": socket.gethostname()})
                elif message.kind == "measure":
                    way = self._measure(message.header)
                    link.send("way", way.to_json())
                elif message.kind == "arrive":
                    header = message.header
                    self._arrivals.put(Arrival(_ranks(header["ranks"]), _address(header["address"])))
                    link.send("seen", {})
                elif message.kind == "leave":
                    link.send("left", {})
                    self._left.set()
                else:
                    link.blame(f"asks for {message.kind!r}, which is nothing a doctor does")
        except LinkError:
            link.close()
        except Exception as error:  # whatever a visitor says, it is the end of its own visit and of no other
            link.blame(f"said what makes no sense ({error!r})")

    def _measure(self, header: dict[str, Any]) -> Way:
        address = _address(header["address"])
        return measure(str(header["origin"]), str(header["target"]), address, self._secret, self._patience)


def _address(said: Any) -> tuple[str, int]:
    host, port = said
    if not isinstance(host, str) or type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"{said!r} is no address")
    return host, port


def _ranks(said: Any) -> tuple[int, ...]:
    if not isinstance(said, list) or not said or any(type(rank) is not int or rank < 0 for rank in said):
        raise ValueError(f"{said!r} are no ranks")
    return tuple(said)


def visit(address: tuple[str, int], secret: bytes, patience: float) -> Visited:
    """Ask a host what it finds about itself.

    Raises:
        LinkError: it cannot be reached, is a stranger, or says what makes no sense.
    """
    with Link.connect(address, secret, {"name": socket.gethostname()}, patience) as link:
        try:
            link.send("examine", {})
            header = link.receive(patience + 60).header  # importing torch may take long
            findings = [Finding.from_json(one) for one in header["findings"]]
            found = {str(k): str(v) for k, v in header["versions"].items()}
            return Visited(str(header["name"]), address, findings, found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise link.blame(f"has findings that make no sense ({error!r})") from error


def ask_for_way(origin: Visited, target: Visited, secret: bytes, patience: float) -> Way:
    """Let `origin` measure the way to `target`."""
    where = f"{target.address[0]}:{target.address[1]}"
    try:
        with Link.connect(origin.address, secret, {"name": socket.gethostname()}, patience) as link:
            try:
                link.send("measure", {"origin": origin.name, "target": target.name, "address": list(target.address)})
                return Way.from_json(link.receive(3 * patience + 30).header)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise link.blame(f"answers with what makes no sense ({error!r})") from error
    except LinkError as error:
        return Way(origin.name, target.name, where, problem=f"{origin.name} no longer answers: {error}")


def arrive(address: tuple[str, int], arrival: Arrival, secret: bytes, patience: float) -> None:
    """Tell the host at `address` that this one is there.

    Raises:
        LinkError: it cannot be reached.
    """
    _tell(address, secret, patience, "arrive", {"ranks": list(arrival.ranks), "address": list(arrival.address)})


def let_leave(address: tuple[str, int], secret: bytes, patience: float) -> None:
    """Tell a host that it is over.

    Raises:
        LinkError: it is gone already.
    """
    _tell(address, secret, patience, "leave", {})


def _tell(address: tuple[str, int], secret: bytes, patience: float, kind: str, header: dict[str, Any]) -> None:
    with Link.connect(address, secret, {"name": socket.gethostname()}, patience) as link:
        link.send(kind, header)
        link.receive(patience)


def _send(link: Link, size: int, patience: float) -> float:
    """Seconds until the other end has so many bytes, and says so."""
    payload, begun = bytes(size), time.monotonic()
    link.send("take", {}, [payload])
    link.receive(patience)
    return time.monotonic() - begun


def measure(origin: str, target: str, address: tuple[str, int], secret: bytes, patience: float) -> Way:
    """The way from here to a host that lets others visit."""
    where = f"{address[0]}:{address[1]}"
    try:
        link = Link.connect(address, secret, {"name": origin}, patience, LinkOptions(largest=LARGEST))
    except LinkError as error:
        return Way(origin, target, where, problem=f"cannot be reached: {error}")
    try:
        times: list[float] = []
        clocks: list[float] = []
        begun = time.monotonic()
        while len(times) < ECHOES and (not times or time.monotonic() - begun < ECHO_SECONDS):
            asked, here = time.monotonic(), time.time()
            link.send("echo", {}, [b"x"])
            there = float(link.receive(patience).header["now"])
            times.append(time.monotonic() - asked)
            clocks.append(there - (here + times[-1] / 2))
        latency = statistics.median(times)
        size, taken = SMALLEST, _send(link, SMALLEST, patience)
        while taken < ENOUGH_SECONDS and size < LARGEST:
            size *= 4
            taken = _send(link, size, patience)
        taken = min(taken, *(_send(link, size, patience) for _ in range(AGAIN)))  # hosts are busy at times
        speed = size / 1e6 / max(taken - latency, 1e-6)
        offset = clocks[times.index(min(times))]  # of the fastest answer: known best
        return Way(origin, target, where, round(1e3 * latency, 4), round(speed, 3), round(offset, 6))
    except (LinkError, KeyError, ValueError, TypeError) as error:
        return Way(origin, target, where, problem=f"broke off: {error}")
    finally:
        link.close()
