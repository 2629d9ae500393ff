"""`roundelay train` as processes of its own, on one host or two, started by the variables that torchrun sets."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.ports import free_port
from support.preloaded import Preloaded, environment

SECRET = {"ROUNDELAY_SECRET": "of these end to end tests"}
SIGNALLED = ("support.until_signalled",)
"""Put before a command that is to be sent a signal: the signal comes before its end."""


def start(command: Sequence[str], where: Path | None = None, **variables: Any) -> Preloaded:
    """Start a process that runs a module with its arguments, in the folder `where`."""
    return Preloaded(["-m", *command], environment(**SECRET, **variables), where=where)


@contextmanager
def two_hosts(
    sizes: tuple[int, int],
    *options: str,
    where: Sequence[Path | None] = (None, None),
    before: Sequence[str] = (),
) -> Iterator[list[Preloaded]]:
    """Run a process for every learner of two hosts, as launchers do, each host in its own folder; `before` is put
    before the command."""
    port, processes = free_port(), []
    for host, size in enumerate(sizes):
        for local in range(size):
            processes.append(
                start(
                    [*before, "roundelay.cli", "train", "recipe.yaml", *options],
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
            process.end_group()


def ends(processes: Sequence[Preloaded], seconds: float = 200.0) -> tuple[list[int], str]:
    texts = [process.communicate(timeout=seconds)[0] for process in processes]
    return [process.wait() for process in processes], "\n".join(texts)


def wait_for(path: Path, processes: Sequence[Preloaded]) -> None:
    while not path.exists():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
