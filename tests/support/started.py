"""`roundelay train` as processes of its own, on one host or two, started by the variables that torchrun sets."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.hosts import TESTS, free_port

PATHS = [str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
SECRET = {"ROUNDELAY_SECRET": "of these end to end tests"}


def start(command: Sequence[str], where: Path | None = None, **environment: Any) -> "subprocess.Popen[str]":
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, PATHS)), **SECRET}
    theirs = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, **ours, **theirs},
        text=True,
        cwd=where,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@contextmanager
def two_hosts(
    sizes: tuple[int, int], *options: str, where: Sequence[Path | None] = (None, None)
) -> Iterator[list["subprocess.Popen[str]"]]:
    """A process for every learner, as launchers have it; each host in its own folder."""
    port, processes = free_port(), []
    for host, size in enumerate(sizes):
        for local in range(size):
            processes.append(
                start(
                    ["roundelay.cli", "train", "recipe.yaml", *options],
                    where[host],
                    WORLD_SIZE=sum(sizes),
                    RANK=sum(sizes[:host]) + local,
                    LOCAL_RANK=local,
                    LOCAL_WORLD_SIZE=size,
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=port,
                )
            )
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ends(processes: Sequence["subprocess.Popen[str]"], seconds: float = 200.0) -> tuple[list[int], str]:
    texts = [process.communicate(timeout=seconds)[0] for process in processes]
    return [process.returncode for process in processes], "\n".join(texts)


def wait_for(path: Path, processes: Sequence["subprocess.Popen[str]"]) -> None:
    while not path.exists():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
