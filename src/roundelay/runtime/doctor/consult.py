"""`roundelay doctor`: the search for the hosts to examine, the order of visits, and the report as a table.

Either this host is told where the others let it visit (`--hosts`), or all were started alike by `torchrun` or anything
else that sets its variables: then one process of each host tells the host of rank 0 where it listens, and that one
visits them all. They meet where the hosts of a run would: at MASTER_ADDR and MASTER_PORT, or where the launcher's store
says.

Between hosts: each lets the others visit, over the links that a run uses, and measures the way to them.

A host that is examined answers messages of this file. The asker has proved that it knows the secret. It also passes
connections on to hosts that cannot be reached otherwise, as the hosts of a run do (transport/relay.py).
"""

import dataclasses
import secrets
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.doctor.findings import DoctorReport, Finding, Verdict, Way, differences, judge
from roundelay.runtime.doctor.host import Asked, examine, versions
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay, Relay
from roundelay.runtime.hosts.transport.wire import RELAY, USUAL_LINKS, Link, LinkError, LinkOptions
from roundelay.runtime.hosts.transport.wire import Address as ListensAt
from roundelay.runtime.launch.rendezvous import first_address, say_address
from roundelay.runtime.launch.world import HostPlace, launched, read_by_hand, read_place, secret_file
from roundelay.runtime.messages import Address, Dialect, M, Message

VISIT = "visit"
HELLO = {"what": VISIT}
"""First word of every visitor's link."""
ECHOES, ECHO_SECONDS = 50, 1.5
SMALLEST, LARGEST, ENOUGH_SECONDS = 1 << 18, 1 << 26, 0.4
"""Bytes of messages that measure a link, each four times the last, until one takes `ENOUGH_SECONDS`."""
AGAIN = 2
"""Repetitions of the largest message; the fastest counts."""


class Echo(Message):
    """A request for an echo, with the clock of the other host."""

    now: float = 0.0


class Take(Message):
    """Bytes beside the message, which are thrown away."""


class Examine(Message):
    """A request for a host's findings about itself."""


class FindingsSaid(Message, kind="found"):
    """The answer to `Examine`: a host's findings."""

    name: str
    findings: tuple[Finding, ...]
    versions: dict[str, str]


class Measure(Message):
    """A request to measure the way to another host."""

    origin: str
    target: str
    address: Address


class WayMeasured(Message, kind="measured"):
    """The answer to `Measure`: the way."""

    way: Way


class Arrive(Message):
    """Word that a host is ready to be visited, with the ranks of its learners."""

    ranks: tuple[int, ...]
    address: Address


class Leave(Message):
    """Word that no more visits will come."""


class Noted(Message, kind="heard"):
    """The answer to a request that has been done."""


ASKED = Dialect(Echo, Take, Examine, Measure, Arrive, Leave)
ANSWERED = Dialect(Echo, FindingsSaid, WayMeasured, Noted)


@dataclass(frozen=True)
class Visited:
    """The facts and findings of a visited host."""

    name: str
    address: tuple[str, int]
    findings: list[Finding]
    versions: dict[str, str]


class VisitServer:
    """A server by which other hosts examine this one, until it is closed or told to `leave`.

    Args:
        at: address at which it listens.
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
        """Wait until a visitor says that visits are over; return False if none does within `seconds`."""
        return self._left.wait(seconds)

    def arrival(self, seconds: float) -> Arrive | None:
        """Return the next host that says it is ready to be visited; None if none does within `seconds`."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except Empty:
            return None

    def close(self) -> None:
        """Stop listening for visitors."""
        self._router.close()

    def _attend(self, link: Link) -> None:
        threading.Thread(target=self._serve, args=(link,), daemon=True, name="doctor's visitor").start()

    def _serve(self, link: Link) -> None:
        """Answer a visiting doctor's messages until it hangs up."""
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
        except Exception as error:  # any message of a visitor ends its own visit at most
            link.blame(f"said what makes no sense ({error!r})")


def _answer(link: Link, kind: type[M], seconds: float) -> M:
    """Wait for the answer, of class `kind`, to the last message on a link.

    Raises:
        LinkError: no answer comes in time, or another message.
    """
    found = link.hear(ANSWERED, seconds)
    if not isinstance(found, kind):
        raise link.blame(f"answers with {found.kind!r}")
    return found


def visit(address: tuple[str, int], secret: bytes, patience: float) -> Visited:
    """Ask a host for its findings about itself.

    Raises:
        LinkError: the host cannot be reached, has another secret, or sends invalid messages.
    """
    with Link.connect(address, secret, HELLO, patience) as link:
        link.say(Examine())
        found = _answer(link, FindingsSaid, patience + 60)  # importing torch may take long
        return Visited(found.name, address, list(found.findings), found.versions)


def ask_for_way(origin: Visited, target: Visited, secret: bytes, patience: float) -> Way:
    """Have the host `origin` measure the way to `target`; return the measurement."""
    where = f"{target.address[0]}:{target.address[1]}"
    try:
        with Link.connect(origin.address, secret, HELLO, patience) as link:
            link.say(Measure(origin.name, target.name, target.address))
            return _answer(link, WayMeasured, 3 * patience + 30).way
    except LinkError as error:
        return Way(origin.name, target.name, where, problem=f"{origin.name} no longer answers: {error}")


def _tell(address: tuple[str, int], secret: bytes, patience: float, message: Message) -> None:
    """Send one message to a host: that this one is ready, or that visits are over.

    Raises:
        LinkError: the host cannot be reached, or is already gone.
    """
    with Link.connect(address, secret, HELLO, patience) as link:
        link.say(message)
        _answer(link, Noted, patience)


def _send(link: Link, size: int, patience: float) -> float:
    """Send `size` bytes; return the seconds until the other end has confirmed them."""
    payload, begun = bytes(size), time.monotonic()
    link.say(Take(), [payload])
    _answer(link, Noted, patience)
    return time.monotonic() - begun


def measure(origin: str, target: str, address: tuple[str, int], secret: bytes, patience: float) -> Way:
    """Measure the way from this host to one that accepts visits."""
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


Say = Callable[[str], None]
WHERE = "doctor"
PATIENCE, LISTENING_PATIENCE = 30.0, 600.0


def consult(
    hosts: Sequence[str] | None,
    listen: str | None,
    learners: int | None,
    parameters: float,
    folder: Path,
    patience: float | None,
    say: Callable[[str], None],
) -> DoctorReport | None:
    """Examine this host or several, as options and environment say; return the report, or None if another host has it.

    Raises:
        UserError: the hosts cannot meet, or are not given correctly.
    """
    name = socket.gethostname()
    asked = Asked(learners or cores(), int(parameters), folder)
    if hosts or (listen and not launched()):
        return _by_hand(hosts or (), listen, asked, patience, say)
    try:
        place = read_place(listen)
    except UserError as error:  # finding it is a doctor's work
        report = alone(asked, name)
        report.hosts[name].insert(0, Finding("launch", Verdict.BAD, str(error), "Mend it, and ask again."))
        return report
    if place is None or place.alone:
        return alone(asked, name) if place is None or not place.local_rank else None
    if place.local_rank:
        return None  # local rank 0 speaks for this host
    return meet(place, _several(asked, place, learners), patience or PATIENCE, say)


def _behind(place: HostPlace, patience: float) -> BehindRelay:
    """Return the acceptor of a host that others reach by a relay; if none is named, the host of rank 0 relays."""
    relay = place.relay
    assert relay is not None
    return _by_relay(relay if relay[0] else first_address(place, patience, WHERE), place.secret, patience)


def _by_relay(relay: Address, secret: bytes, patience: float) -> BehindRelay:
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return BehindRelay(relay, name, secret, patience, USUAL_LINKS, moves=False)


def _several(asked: Asked, place: HostPlace, learners: int | None) -> Asked:
    here = learners or len(place.ranks)
    hosts = -(-place.learners // len(place.ranks))
    return Asked(here, asked.parameters, asked.folder, place.listen[0], place.address, hosts, True, secret_file())


def _by_hand(
    hosts: Sequence[str], listen: str | None, asked: Asked, patience: float | None, say: Callable[[str], None]
) -> DoctorReport | None:
    """Wait for a visit if `listen` is given, else visit `hosts`, which wait; return the report of visits."""
    here, others, secret, relay = read_by_hand(listen, hosts)
    asked = Asked(
        asked.learners, asked.parameters, asked.folder, here[0], "", max(2, 1 + len(others)), True, secret_file()
    )
    at = here if relay is None else _by_relay(relay, secret, patience or PATIENCE)
    if others:
        return go_round(at, others, secret, asked, patience or PATIENCE)
    if not wait_for_visit(at, secret, asked, patience or LISTENING_PATIENCE, say):
        raise UserError(f"no other host came within {patience or LISTENING_PATIENCE:.0f} s.")
    return None


def table(report: DoctorReport) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the titles and rows of the table of ways between hosts."""
    rows: list[tuple[str, ...]] = []
    for way in report.ways:
        if way.latency_ms is None or way.megabytes_s is None or way.clock_ahead_s is None:
            rows.append((way.origin, way.target, way.problem, "", ""))
        else:
            speed, clock = f"{way.megabytes_s:,.1f}", f"{1e3 * way.clock_ahead_s:+,.1f}"
            rows.append((way.origin, way.target, f"{way.latency_ms:.2f}", speed, clock))
    return ["from", "to", "latency ms", "MB/s", "clock ahead ms"], rows


def alone(asked: Asked, name: str) -> DoctorReport:
    """Examine this host only."""
    return DoctorReport({name: examine(asked)}, [], [])


def wait_for_visit(at: Address | BehindRelay, secret: bytes, asked: Asked, patience: float, say: Say) -> bool:
    """Answer visits until a visitor says that they are over; return False if none does within `patience` seconds."""
    server = _server(at, secret, asked, patience)
    try:
        say(f"listening at {server.address[0]}:{server.address[1]}")
        return server.wait(patience)
    finally:
        server.close()


def go_round(
    at: Address | BehindRelay, others: Sequence[Address], secret: bytes, asked: Asked, patience: float
) -> DoctorReport:
    """Visit the `others`, which listen already, and let every host measure the way to every other."""
    server = _server(at, secret, asked, patience)
    try:
        return _go_round([server.address, *others], secret, asked, patience, [])
    finally:
        server.close()


def meet(place: HostPlace, asked: Asked, patience: float, say: Say) -> DoctorReport | None:
    """Meet the others: all hosts were started alike; this process speaks for one. The host of rank 0 has the report;
    None elsewhere.

    Raises:
        UserError: this host cannot reach that of rank 0, or was not visited in time.
    """
    ranks, at = place.ranks, place.listen if place.relay is None else _behind(place, patience)
    server = _server(at, place.secret, asked, patience)
    try:
        if not place.conducts:
            _arrive(place, server, patience)
            say(f"rank {ranks[0]}: at the host of rank 0; its report is there")
            if not server.wait(4 * patience + 120):
                raise UserError(f"rank {ranks[0]}: the host of rank 0 did not come to this one. See its output.")
            return None
        say_address(place, patience, server.address, WHERE)
        others: dict[int, Address] = {}
        missing = set(range(place.learners)) - set(ranks)
        deadline = wall_clock() + patience
        while missing and (arrived := server.arrival(deadline - wall_clock())):
            others[min(arrived.ranks)] = arrived.address
            missing -= set(arrived.ranks)
        addresses = [server.address, *(others[rank] for rank in sorted(others))]
        return _go_round(addresses, place.secret, asked, patience, sorted(missing))
    finally:
        server.close()


def _arrive(place: HostPlace, server: VisitServer, patience: float) -> None:
    """Tell the host of rank 0 where this one listens."""
    ranks, address = place.ranks, first_address(place, patience, WHERE)
    try:
        _tell(address, place.secret, patience, Arrive(ranks, server.address))
    except LinkError as error:
        raise UserError(
            f"rank {ranks[0]}: cannot reach the host of rank 0 at {address[0]}:{address[1]}: {error}. Is the doctor "
            "running there, is MASTER_ADDR an address of it that this host reaches, and is that port open in firewalls?"
        ) from error


def _go_round(
    addresses: Sequence[Address], secret: bytes, asked: Asked, patience: float, missing: list[int]
) -> DoctorReport:
    """Visit all hosts, and let each measure the way to each other; `addresses` begin with this host's."""
    between, visited = [], []
    for rank in missing:
        change = "Was it started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and can it reach them?"
        between.append(Finding(f"rank {rank}", Verdict.BAD, f"did not come within {patience:.0f} s", change))
    for address in addresses:
        try:
            visited.append(visit(address, secret, patience))
        except LinkError as error:
            change = "Is the doctor running there, with the same secret, and may this host reach it?"
            between.append(Finding(f"{address[0]}:{address[1]}", Verdict.BAD, str(error), change))
    visited = _told_apart(visited)
    ways: list[Way] = []
    for origin in visited:
        ways += [ask_for_way(origin, target, secret, patience) for target in visited if target is not origin]
    behind = [host for host in visited if "@" in host.address[0]]
    for host in sorted(visited, key=lambda host: host not in behind):  # relays last
        try:
            _tell(host.address, secret, patience, Leave())
        except LinkError as error:
            between.append(Finding(host.name, Verdict.NOTE, f"was gone before it was told to go: {error}"))
    for host in behind:
        relay = f"{host.address[0].rpartition('@')[2]}:{host.address[1]}"
        text = f"others reach it by the relay at {relay}, over whose link all passes twice, as was measured"
        between.append(Finding(host.name, Verdict.NOTE, text, "Let others connect to it, where that can be had."))
    between += differences({host.name: host.versions for host in visited}) + judge(ways, asked.parameters)
    return DoctorReport({host.name: host.findings for host in visited}, ways, between)


def _told_apart(visited: Sequence[Visited]) -> list[Visited]:
    """Return the hosts under different names: with their addresses if names are the same, as in containers."""
    names = Counter(host.name for host in visited)
    return [
        host
        if names[host.name] == 1
        else dataclasses.replace(host, name=f"{host.name} ({host.address[0]}:{host.address[1]})")
        for host in visited
    ]


def _server(at: Address | BehindRelay, secret: bytes, asked: Asked, patience: float) -> VisitServer:
    try:
        return VisitServer(at, secret, asked, patience)
    except OSError as error:
        address = at if isinstance(at, tuple) else at.address
        raise UserError(
            f"{address[0]}:{address[1]}: nothing can listen there ({error.strerror or error}). Give --listen an "
            "address of this host, and a port that is free."
        ) from error
