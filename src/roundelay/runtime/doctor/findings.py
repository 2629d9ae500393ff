"""Findings of the doctor about a host, and about the network between two."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from roundelay.runtime.messages import Number


class Verdict(Enum):
    """Severity of a finding."""

    GOOD = "good"
    NOTE = "note"  # a run works, but not as well as it could
    BAD = "bad"  # a run would fail, or hang


@dataclass(frozen=True)
class Finding:
    """Result of one check of a host."""

    about: str  # "locks"
    verdict: Verdict
    found: str
    change: str = ""  # advice; empty where it is good

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a mapping, for JSON."""
        return {**dataclasses.asdict(self), "verdict": self.verdict.value}


@dataclass(frozen=True)
class Way:
    """Measurements of the link from one host to another."""

    origin: str  # names of the hosts
    target: str
    address: str
    latency_ms: float | None = None  # there and back, median
    megabytes_s: float | None = None  # from origin to target, 1e6 bytes a second
    clock_ahead_s: Number | None = None  # the target's clock, against the origin's
    problem: str = ""  # nothing could be measured, and why

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as a mapping, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class DoctorReport:
    """Findings of all hosts, and measurements between each two."""

    hosts: dict[str, list[Finding]]
    ways: list[Way]
    between: list[Finding]  # about the ways, and differences between hosts

    @property
    def well(self) -> bool:
        """True if nothing was found that would keep a run from working."""
        every = [finding for findings in self.hosts.values() for finding in findings] + self.between
        return all(finding.verdict is not Verdict.BAD for finding in every)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a mapping, for JSON."""
        return {
            "well": self.well,
            "hosts": {name: [finding.to_json() for finding in found] for name, found in self.hosts.items()},
            "ways": [way.to_json() for way in self.ways],
            "between": [finding.to_json() for finding in self.between],
        }


CLOCKS_MAY_DIFFER_S = 1.0
ROW_MAY_TAKE_S = 0.5
"""Seconds for a model's row beyond which a link is too slow for strategies that wait for the whole model in every step.
"""


def judge(ways: Iterable[Way], parameters: int) -> list[Finding]:
    """Judge the measured links between hosts for a model of `parameters` parameters."""
    findings = []
    for way in ways:
        about = f"{way.origin} -> {way.target}"
        if way.latency_ms is None or way.megabytes_s is None or way.clock_ahead_s is None:
            change = (
                f"Let {way.origin} reach {way.address}: is it the right address (--listen there), and does a firewall "
                "between them let TCP through? Behind a router: --listen relay there (docs/hosts.md)."
            )
            findings.append(Finding(about, Verdict.BAD, way.problem, change))
            continue
        seconds = 4 * parameters / 1e6 / way.megabytes_s
        found = f"{way.latency_ms:.2f} ms there and back, {way.megabytes_s:,.1f} MB/s: the model in {seconds:.2f} s"
        if seconds > ROW_MAY_TAKE_S:
            change = (
                "Choose adpsgd, whose exchanges are cut and coded to fit the link, or a strategy that seldom "
                "exchanges (diloco, bmuf)."
            )
            findings.append(Finding(about, Verdict.NOTE, found, change))
        else:
            findings.append(Finding(about, Verdict.GOOD, found))
        if abs(way.clock_ahead_s) > CLOCKS_MAY_DIFFER_S:
            found = f"the clock of {way.target} is {way.clock_ahead_s:+.1f} s against that of {way.origin}"
            change = "Set both by NTP (timedatectl set-ntp true): times in logs and `roundelay status` are off."
            findings.append(Finding("clocks", Verdict.NOTE, found, change))
    return findings


def differences(versions: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Return hosts that do not run the same software; versions by host and package."""
    findings = []
    for package in sorted({name for one in versions.values() for name in one}):
        found = {host: one.get(package, "none") for host, one in versions.items()}
        if len(set(found.values())) > 1:
            text = ", ".join(f"{host} has {version}" for host, version in found.items())
            findings.append(Finding(package, Verdict.BAD, text, f"Install the same {package} on all hosts."))
    return findings
