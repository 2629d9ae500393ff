"""`roundelay doctor`: where the hosts are found that are meant, who asks whom, and the report as a table.

Either this host is told where the others let it visit (`--hosts`), or all were started alike by `torchrun` or anything
else that sets its variables: then one process of each host tells the host of rank 0 where it listens, and that one
visits them all. They meet where the hosts of a run would: at MASTER_ADDR and MASTER_PORT, or where the launcher's store
says.
"""

import dataclasses
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.doctor.findings import DoctorReport, Finding, Verdict, Way, differences, judge
from roundelay.runtime.doctor.host import Asked, examine
from roundelay.runtime.doctor.visits import Arrive, Visited, VisitServer, arrive, ask_for_way, let_leave, visit
from roundelay.runtime.hosts.transport.relay import BehindRelay
from roundelay.runtime.hosts.transport.wire import USUAL_LINKS, LinkError
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace, World, launched, read_by_hand, read_place, secret_file

Say = Callable[[str], None]
Address = tuple[str, int]
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
    """Return the report, or None where another host has it.

    Raises:
        UserError: the hosts cannot meet, or are not said well.
    """
    name = socket.gethostname()
    asked = Asked(learners or cores(), int(parameters), folder)
    if hosts or (listen and not launched()):
        return _by_hand(hosts or (), listen, asked, patience, say)
    try:
        place = read_place(listen)
    except UserError as error:  # that is what a doctor is for
        report = alone(asked, name)
        report.hosts[name].insert(0, Finding("launch", Verdict.BAD, str(error), "Mend it, and ask again."))
        return report
    if place is None or place.alone:
        return alone(asked, name) if place is None or not place.local_rank else None
    if place.local_rank:
        return None  # local rank 0 speaks for this host
    return meet(
        place.world,
        place.ranks,
        place.listen if place.relay is None else _behind(place, patience or PATIENCE),
        place.secret,
        _several(asked, place, learners),
        patience or PATIENCE,
        say,
    )


def _behind(place: HostPlace, patience: float) -> BehindRelay:
    """Return the acceptor of this host, which others reach by a relay: by the host of rank 0 where none is named."""
    relay = place.relay
    assert relay is not None
    return _by_relay(relay if relay[0] else _first_address(place.world, patience), place.secret, patience)


def _by_relay(relay: Address, secret: bytes, patience: float) -> BehindRelay:
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return BehindRelay(relay, name, secret, patience, USUAL_LINKS, moves=False)


def _first_address(world: World, patience: float) -> Address:
    """Return the address at which the host of rank 0 listens."""
    return Rendezvous(world, patience).hear_address(WHERE) if world.hosted else (world.address, world.port)


def _several(asked: Asked, place: HostPlace, learners: int | None) -> Asked:
    here = learners or len(place.ranks)
    hosts = -(-place.learners // len(place.ranks))
    return Asked(here, asked.parameters, asked.folder, place.listen[0], place.address, hosts, True, secret_file())


def _by_hand(
    hosts: Sequence[str], listen: str | None, asked: Asked, patience: float | None, say: Callable[[str], None]
) -> DoctorReport | None:
    """Do what options tell: wait for a visit, or visit those who do."""
    here, others, secret, relay = read_by_hand(listen, hosts)
    asked = Asked(
        asked.learners, asked.parameters, asked.folder, here[0], "", max(2, 1 + len(others)), True, secret_file()
    )
    at = here if relay is None else _by_relay(relay, secret, patience or PATIENCE)
    if others:
        return go_round(at, others, secret, asked, patience or PATIENCE)
    if not wait_for_visit(at, secret, asked, patience or LISTENING_PATIENCE, say):
        raise UserError(f"nobody came within {patience or LISTENING_PATIENCE:.0f} s.")
    return None


def table(report: DoctorReport) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and a row for each way between two hosts."""
    rows: list[tuple[str, ...]] = []
    for way in report.ways:
        if way.latency_ms is None or way.megabytes_s is None or way.clock_ahead_s is None:
            rows.append((way.origin, way.target, way.problem, "", ""))
        else:
            speed, clock = f"{way.megabytes_s:,.1f}", f"{1e3 * way.clock_ahead_s:+,.1f}"
            rows.append((way.origin, way.target, f"{way.latency_ms:.2f}", speed, clock))
    return ["from", "to", "latency ms", "MB/s", "clock ahead ms"], rows


def alone(asked: Asked, name: str) -> DoctorReport:
    """Check this host only."""
    return DoctorReport({name: examine(asked)}, [], [])


def wait_for_visit(at: Address | BehindRelay, secret: bytes, asked: Asked, patience: float, say: Say) -> bool:
    """Let others visit; False if nobody said in time that it is over."""
    server = _server(at, secret, asked, patience)
    try:
        say(f"listening at {server.address[0]}:{server.address[1]}")
        return server.wait(patience)
    finally:
        server.close()


def go_round(
    at: Address | BehindRelay, others: Sequence[Address], secret: bytes, asked: Asked, patience: float
) -> DoctorReport:
    """Visit the `others`, who listen already, and let every host measure the way to every other."""
    server = _server(at, secret, asked, patience)
    try:
        return _go_round([server.address, *others], secret, asked, patience, [])
    finally:
        server.close()


def meet(
    world: World,
    ranks: Sequence[int],
    at: Address | BehindRelay,
    secret: bytes,
    asked: Asked,
    patience: float,
    say: Say,
) -> DoctorReport | None:
    """Meet the others: all hosts were started alike; this process speaks for one, whose learners have these `ranks`.
    The host of rank 0 has the report; None elsewhere.

    Raises:
        UserError: this host cannot reach that one, or was not visited in time.
    """
    server = _server(at, secret, asked, patience)
    try:
        if 0 not in ranks:
            _arrive(world, ranks, server, secret, patience)
            say(f"rank {ranks[0]}: at the host of rank 0; its report is there")
            if not server.wait(4 * patience + 120):
                raise UserError(f"rank {ranks[0]}: the host of rank 0 did not come to this one. See what it says.")
            return None
        if world.hosted:
            Rendezvous(world, patience).say(WHERE, dict(zip(("host", "port"), server.address, strict=True)))
        others: dict[int, Address] = {}
        missing = set(range(world.learners)) - set(ranks)
        deadline = wall_clock() + patience
        while missing and (arrived := server.arrival(deadline - wall_clock())):
            others[min(arrived.ranks)] = arrived.address
            missing -= set(arrived.ranks)
        addresses = [server.address, *(others[rank] for rank in sorted(others))]
        return _go_round(addresses, secret, asked, patience, sorted(missing))
    finally:
        server.close()


def _arrive(world: World, ranks: Sequence[int], server: VisitServer, secret: bytes, patience: float) -> None:
    """Tell the host of rank 0 where this one listens."""
    address = _first_address(world, patience)
    try:
        arrive(address, Arrive(tuple(ranks), server.address), secret, patience)
    except LinkError as error:
        raise UserError(
            f"rank {ranks[0]}: cannot reach the host of rank 0 at {address[0]}:{address[1]}: {error}. Is the doctor "
            "running there, is MASTER_ADDR an address of it that this host reaches, and is that port open in firewalls?"
        ) from error


def _go_round(
    addresses: Sequence[Address], secret: bytes, asked: Asked, patience: float, missing: list[int]
) -> DoctorReport:
    """Return `addresses`: of all hosts, this one first."""
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
    for host in [
        *behind,
        *(host for host in visited if host not in behind),
    ]:  # relays last
        try:
            let_leave(host.address, secret, patience)
        except LinkError as error:
            between.append(Finding(host.name, Verdict.NOTE, f"was gone before it was told to go: {error}"))
    for host in behind:
        relay = f"{host.address[0].rpartition('@')[2]}:{host.address[1]}"
        text = f"others reach it by the relay at {relay}, over whose link all passes twice, as was measured"
        between.append(Finding(host.name, Verdict.NOTE, text, "Let others connect to it, where that can be had."))
    between += differences({host.name: host.versions for host in visited}) + judge(ways, asked.parameters)
    return DoctorReport({host.name: host.findings for host in visited}, ways, between)


def _told_apart(visited: Sequence[Visited]) -> list[Visited]:
    """Return hosts by name; with their address where names are the same, as in containers."""
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
