"""`roundelay doctor`: which hosts are meant, and their report as a table."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.doctor.findings import DoctorReport, Finding, Verdict
from roundelay.runtime.doctor.host import Asked
from roundelay.runtime.doctor.meeting import alone, go_round, meet, wait_for_visit
from roundelay.runtime.launch.world import HostPlace, launched, read_by_hand, read_place, secret_file

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
    """The report, or None where another host has it.

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
        place.listen,
        place.secret,
        _several(asked, place, learners),
        patience or PATIENCE,
        say,
    )


def _several(asked: Asked, place: HostPlace, learners: int | None) -> Asked:
    here = learners or len(place.ranks)
    hosts = -(-place.learners // len(place.ranks))
    return Asked(here, asked.parameters, asked.folder, place.listen[0], place.address, hosts, True, secret_file())


def _by_hand(
    hosts: Sequence[str], listen: str | None, asked: Asked, patience: float | None, say: Callable[[str], None]
) -> DoctorReport | None:
    """Told by options: to wait for a visit, or to visit those who do."""
    here, others, secret = read_by_hand(listen, hosts)
    asked = Asked(
        asked.learners, asked.parameters, asked.folder, here[0], "", max(2, 1 + len(others)), True, secret_file()
    )
    if others:
        return go_round(here, others, secret, asked, patience or PATIENCE)
    if not wait_for_visit(here, secret, asked, patience or LISTENING_PATIENCE, say):
        raise UserError(f"nobody came within {patience or LISTENING_PATIENCE:.0f} s.")
    return None


def table(report: DoctorReport) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and a row for each way between two hosts."""
    rows: list[tuple[str, ...]] = []
    for way in report.ways:
        if way.latency_ms is None or way.megabytes_s is None or way.clock_ahead_s is None:
            rows.append((way.origin, way.target, way.problem, "", ""))
        else:
            speed, clock = f"{way.megabytes_s:,.1f}", f"{1e3 * way.clock_ahead_s:+,.1f}"
            rows.append((way.origin, way.target, f"{way.latency_ms:.2f}", speed, clock))
    return ["from", "to", "latency ms", "MB/s", "clock ahead ms"], rows
