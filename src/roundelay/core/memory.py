"""Memory that this process may still have: the host's, or what its control group leaves of it."""

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> float:
    """Return bytes that could be had now; infinity where the system does not say.

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
