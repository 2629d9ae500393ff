"""Cores that this process may use, and memory that it may still have: the host's, or what its control group grants.

A container that is limited to two cores of sixty-four still sees sixty-four, and they look idle when its own are spent.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Quota:
    """The limit of a control group on processor time, in cores."""

    cores: float
    usage: Path
    """File that says how much time has been used, of the second or the first version of control groups."""

    def used_seconds(self) -> float:
        """Return the processor seconds used since the group was made, summed over cores.

        Raises:
            OSError, ValueError: the file is missing or cannot be read.
        """
        text = self.usage.read_text()
        if self.usage.name == "cpu.stat":
            facts = dict(line.split() for line in text.splitlines())
            return int(facts.get("usage_usec", "")) / 1e6
        return int(text) / 1e9


def quota(root: Path = Path("/")) -> Quota | None:
    """Return the tightest limit of this process's control group and those around it; None: no limit.

    Args:
        root: of the file system, for tests.
    """
    groups, found = root / "sys/fs/cgroup", list[Quota | None]()
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [_second_version(folder) for folder in _around(groups, path)]
        elif "cpu" in controllers.split(","):
            found += [_first_version(folder) for folder in _around(groups / controllers, path)]
    return min((one for one in found if one is not None), key=lambda one: one.cores, default=None)


def cores() -> int:
    """Return the number of cores this process may keep busy; at least one."""
    granted = quota()
    may_run_on = len(os.sched_getaffinity(0))
    return may_run_on if granted is None else max(1, min(may_run_on, int(granted.cores)))


def coreless_seconds() -> float:
    """Return the seconds for which this thread was ready to run, and others had its cores; 0 where the kernel does not
    tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _around(mount: Path, path: str) -> list[Path]:
    """Return the folders of a control group and of those around it, as far as the container shows them."""
    inner = [part for part in path.split("/") if part and part != ".."]
    return [mount.joinpath(*inner[:depth]) for depth in range(len(inner) + 1)]


def _second_version(folder: Path) -> Quota | None:
    try:
        most, period = (folder / "cpu.max").read_text().split()
        return None if most == "max" else Quota(int(most) / int(period), folder / "cpu.stat")
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _first_version(folder: Path) -> Quota | None:
    try:
        most = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return None if most <= 0 else Quota(most / period, folder / "cpuacct.usage")
    except (OSError, ValueError, ZeroDivisionError):
        return None


def available_bytes(root: Path = Path("/")) -> float:
    """Return the bytes of memory that are available now; infinity where the system does not say.

    Args:
        root: of the file system, for tests.
    """
    found = [float("inf")]
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(1024 * float(line.split()[1]))
    most, now = _lines(root / "sys/fs/cgroup/memory.max")[:1], _lines(root / "sys/fs/cgroup/memory.current")[:1]
    if most and now and most[0].isdigit() and now[0].isdigit():
        found.append(float(most[0]) - float(now[0]))
    return min(found)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
