"""Between hosts: each lets the others visit, over the links that a run uses, and measures the way to them.

A host that is examined answers messages of this file. Whoever asks has proved that it knows the secret. It also passes
connections on to hosts that cannot be reached otherwise, as the hosts of a run do (transport/relay.py).
"""

import socket
import statistics
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from roundelay.runtime.doctor.findings import Finding, Way
from roundelay.runtime.doctor.host import Asked, examine, versions
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay, Relay
from roundelay.runtime.hosts.transport.wire import RELAY, Link, LinkError, LinkOptions
from roundelay.runtime.hosts.transport.wire import Address as ListensAt
from roundelay.runtime.messages import Address, Dialect, M, Message

VISIT = "visit"
HELLO = {"what": VISIT}
"""Said by every visitor."""
ECHOES, ECHO_SECONDS = 50, 1.5
SMALLEST, LARGEST, ENOUGH_SECONDS = 1 << 18, 1 << 26, 0.4
"""Bytes sent at once: four times as many until sending takes long enough to be measured."""
AGAIN = 2
"""Repetitions of the largest; the fastest counts."""


class Echo(Message):
    """The same is to come back, with the clock of the other host."""

    now: float = 0.0


class Take(Message):
    """Bytes beside it, to be swallowed."""


class Examine(Message):
    """The host is to say what it finds about itself."""


class FindingsSaid(Message, kind="found"):
    """The answer to that."""

    name: str
    findings: tuple[Finding, ...]
    versions: dict[str, str]


class Measure(Message):
    """The way to another host is to be measured."""

    origin: str
    target: str
    address: Address


class WayMeasured(Message, kind="measured"):
    """The answer to that."""

    way: Way


class Arrive(Message):
    """A host is there, and may be visited; ranks of its learners."""

    ranks: tuple[int, ...]
    address: Address


class Leave(Message):
    """No more visits are needed."""


class Noted(Message, kind="heard"):
    """It is done."""


ASKED = Dialect(Echo, Take, Examine, Measure, Arrive, Leave)
ANSWERED = Dialect(Echo, FindingsSaid, WayMeasured, Noted)


@dataclass(frozen=True)
class Visited:
    """Facts that one host says of itself."""

    name: str
    address: tuple[str, int]
    findings: list[Finding]
    versions: dict[str, str]


class VisitServer:
    """This host, open to visitors until it is closed, or told to `leave`.

    Args:
        at: where it listens.
    """

    def __init__(self, at: ListensAt | BehindRelay, secret: bytes, asked: Asked, patience: float) -> None:
        listener = Listener(at, secret, {"name": socket.gethostname()}, patience)
        self.address, self.rejected = listener.address, listener.rejected
        self._asked, self._secret, self._patience = asked, secret, patience
        self._left = threading.Event()
        self._arrivals: SimpleQueue[Arrive] = SimpleQueue()
        self._router = Router(listener, (VISIT, RELAY), patience)
        Relay(self._router, patience)
        self._router.give(VISIT, self._attend)

    def wait(self, seconds: float) -> bool:
        """Wait until it is said to be over; return False if that was not in time."""
        return self._left.wait(seconds)

    def arrival(self, seconds: float) -> Arrive | None:
        """Return the next host that says it is there; None if none does in time."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except Empty:
            return None

    def close(self) -> None:
        """Close: no more visitors."""
        self._router.close()

    def _attend(self, link: Link) -> None:
        threading.Thread(target=self._serve, args=(link,), daemon=True, name="doctor's visitor").start()

    def _serve(self, link: Link) -> None:
        link.largest = LARGEST
        try:
            while True:
                match message := link.hear(ASKED, None):
                    case Echo():
                        link.say(Echo(time.time()), [message.payload])
                    case Examine():
                        link.say(FindingsSaid(socket.gethostname(), tuple(examine(self._asked)), versions()))
                    case Measure(origin, target, address):
                        link.say(WayMeasured(measure(origin, target, address, self._secret, self._patience)))
                    case Arrive():
                        self._arrivals.put(message)
                        link.say(Noted())
                    case _:
                        link.say(Noted())
                        if isinstance(message, Leave):
                            self._left.set()
        except LinkError:
            link.close()
        except Exception as error:  # whatever a visitor says, it is the end of its own visit and of no other
            link.blame(f"said what makes no sense ({error!r})")


def _answer(link: Link, kind: type[M], seconds: float) -> M:
    """Return the answer to what was said.

    Raises:
        LinkError: there is none, or it is another.
    """
    found = link.hear(ANSWERED, seconds)
    if not isinstance(found, kind):
        raise link.blame(f"answers with {found.kind!r}")
    return found


def visit(address: tuple[str, int], secret: bytes, patience: float) -> Visited:
    """Ask a host what it finds about itself.

    Raises:
        LinkError: it cannot be reached, is a stranger, or says what makes no sense.
    """
    with Link.connect(address, secret, HELLO, patience) as link:
        link.say(Examine())
        found = _answer(link, FindingsSaid, patience + 60)  # importing torch may take long
        return Visited(found.name, address, list(found.findings), found.versions)


def ask_for_way(origin: Visited, target: Visited, secret: bytes, patience: float) -> Way:
    """Let `origin` measure the way to `target`."""
    where = f"{target.address[0]}:{target.address[1]}"
    try:
        with Link.connect(origin.address, secret, HELLO, patience) as link:
            link.say(Measure(origin.name, target.name, target.address))
            return _answer(link, WayMeasured, 3 * patience + 30).way
    except LinkError as error:
        return Way(origin.name, target.name, where, problem=f"{origin.name} no longer answers: {error}")


def arrive(address: tuple[str, int], arrival: Arrive, secret: bytes, patience: float) -> None:
    """Tell the host at `address` that this one is there.

    Raises:
        LinkError: it cannot be reached.
    """
    _tell(address, secret, patience, arrival)


def let_leave(address: tuple[str, int], secret: bytes, patience: float) -> None:
    """Tell a host that it is over.

    Raises:
        LinkError: it is gone already.
    """
    _tell(address, secret, patience, Leave())


def _tell(address: tuple[str, int], secret: bytes, patience: float, message: Message) -> None:
    with Link.connect(address, secret, HELLO, patience) as link:
        link.say(message)
        _answer(link, Noted, patience)


def _send(link: Link, size: int, patience: float) -> float:
    """Return seconds until the other end has so many bytes, and says so."""
    payload, begun = bytes(size), time.monotonic()
    link.say(Take(), [payload])
    _answer(link, Noted, patience)
    return time.monotonic() - begun


def measure(origin: str, target: str, address: tuple[str, int], secret: bytes, patience: float) -> Way:
    """Return the way from here to a host that lets others visit."""
    where = f"{address[0]}:{address[1]}"
    try:
        link = Link.connect(address, secret, HELLO, patience, LinkOptions(largest=LARGEST))
    except LinkError as error:
        return Way(origin, target, where, problem=f"cannot be reached: {error}")
    try:
        times: list[float] = []
        clocks: list[float] = []
        begun = time.monotonic()
        while len(times) < ECHOES and (not times or time.monotonic() - begun < ECHO_SECONDS):
            asked, here = time.monotonic(), time.time()
            link.say(Echo(), [b"x"])
            there = _answer(link, Echo, patience).now
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
    except LinkError as error:
        return Way(origin, target, where, problem=f"broke off: {error}")
    finally:
        link.close()
