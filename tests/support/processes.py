"""Processes of this machine: some of Python that are run to their end, and others as the kernel tells of them."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def run_python(
    *arguments: str, where: Path | None = None, env: Mapping[str, str] | None = None, expect: int = 0
) -> "subprocess.CompletedProcess[str]":
    """A new process of Python that has ended, with its output; its exit status must be `expect`. `Preloaded` is faster
    for one that needs torch."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=where, env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


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
