"""Processes of this machine: Python processes that are run to their end, and the kernel's facts about any process."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def run_python(
    *arguments: str, where: Path | None = None, env: Mapping[str, str] | None = None, expect: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments to its end; return the process with its output. Its exit status must be `expect`.
    `Preloaded` is faster for a process that needs torch."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=where, env=env, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def stat(process: int) -> tuple[str, int]:
    """Return the state of a process, as one letter, and its parent; ("X", 0) if the process is gone."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(parent)


def alive(process: int) -> bool:
    """Return True while a process runs."""
    return stat(process)[0] not in "ZX"


def learners_among(processes: Iterable[int]) -> list[int]:
    """Return those of a host's processes that are its learners, oldest first: children of its fork server, which is a
    child of its first process."""
    parents = {process: stat(process)[1] for process in processes}
    return sorted(process for process, parent in parents.items() if parents.get(parent) in parents)
