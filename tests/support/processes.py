"""Processes of this machine, as the kernel tells of them."""

from collections.abc import Iterable
from pathlib import Path


def stat(process: int) -> tuple[str, int]:
    """State, as one letter, and parent of a process; of one that is gone, X and 0."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(parent)


def alive(process: int) -> bool:
    """True while a process runs."""
    return stat(process)[0] not in "ZX"


def learners_among(processes: Iterable[int]) -> list[int]:
    """Those of a host's processes that are its learners, oldest first: children of its fork server, which is a child of
    its first."""
    parents = {process: stat(process)[1] for process in processes}
    return sorted(process for process, parent in parents.items() if parents.get(parent) in parents)
