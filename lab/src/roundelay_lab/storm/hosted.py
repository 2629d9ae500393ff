"""Commands on hosts made of network namespaces: starting them, their counts, faults that happen to them."""

import os
import secrets
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from roundelay.runtime.launch.addresses import PEERS
from roundelay_lab.namespaces.hosts import PATH, Hosts

PORT = 29500
SLOW_LINK = "2mbit"
"""Rate of a link during a fault that slows it."""
LINK = "10gbit"
"""Usual rate of a link at other times."""


@final
@dataclass(frozen=True)
class Look:
    """Counts of a training since the last look: minibatches, living learners, their work."""

    # minibatches, or frames, trained and counted so far; several where there is news of several moments.
    counted: tuple[int, ...] = ()
    living: tuple[int, ...] | None = None  # ranks of learners that live; None: not known
    label: str = ""  # of the training, once; else empty
    # of each learner that is in the model, by rank: minibatches, frames, or means that it gave to; empty: no news.
    work: tuple[int, ...] = ()


@dataclass(frozen=True)
class StormCommand(ABC):
    """The command of a training that all hosts run."""

    exp: Path  # its folder; output of each host goes to files beside it
    hosts: int
    learners: int  # on each host
    link: str = LINK  # rate of every host's link, as tc takes it
    peers: bool = False  # any host may lead when the first is lost (ROUNDELAY_PEERS)

    @property
    @abstractmethod
    def spares_the_first(self) -> tuple[str, ...]:
        """Kinds of faults that would end the run if they hit the first host."""

    @property
    def first_comes_back(self) -> bool:
        """True if the first host can come back too, by the same command, while others go on without it."""
        return False

    def told(self) -> dict[str, Any]:
        """Return all facts on which the run depends."""
        return {"hosts": self.hosts, "learners": self.learners, "link": self.link, "peers": self.peers}

    @abstractmethod
    def on(self, hosts: Hosts) -> "HostedCommand":
        """Return the command, ready to run on existing hosts."""


class HostedCommand(ABC):
    """A command that runs on hosts; on each it may be several processes."""

    def __init__(self, hosts: Hosts, command: StormCommand) -> None:
        self.hosts, self.command = hosts, command
        self.processes: dict[int, list[subprocess.Popen[str]]] = {}  # by host
        self._secret = secrets.token_hex(16)

    @abstractmethod
    def start(self, host: int) -> None:
        """Start the command on a host, for the first time or again."""

    @abstractmethod
    def learner(self, host: int, choice: float) -> int | None:
        """Return the process of one of a host's learners, chosen by `choice` from 0 to 1; None while it has none."""

    def takes_part(self, host: int) -> bool:
        """Return True if a host whose command runs is, or was, in the run."""
        return True

    @abstractmethod
    def look(self) -> Look:
        """Return the counts since the last look."""

    def _run(self, host: int, words: Sequence[str], local: int, learners: int) -> "subprocess.Popen[str]":
        """Run a command line on a host, with torchrun's variables for its learner number `local` of `learners`."""
        first, everybody = host * self.command.learners, self.command.hosts * self.command.learners
        environment = {
            "RANK": f"{first + local}",
            "LOCAL_RANK": f"{local}",
            "WORLD_SIZE": f"{everybody}",
            "LOCAL_WORLD_SIZE": f"{learners}",
            "MASTER_ADDR": self.hosts.address(0),
            "MASTER_PORT": f"{PORT}",
            "ROUNDELAY_SECRET": self._secret,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            PEERS: ",".join(map(self.hosts.address, range(self.command.hosts))) if self.command.peers else "",
        }
        with open(self.output(host), "a", encoding="utf-8") as output:
            return self.hosts.start(
                host,
                [*_own_cores(host, self.command.hosts), *words],
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def output(self, host: int) -> Path:
        """Return the file of the output of a host's command."""
        return self.command.exp.with_name(f"{self.command.exp.name}-host{host}.txt")

    def status(self, host: int) -> int | None:
        """Return the exit status of a host's command; None while it runs. Of several processes, one that succeeded
        decides."""
        found = [process.poll() for process in self.processes[host]]
        if None in found:
            return None
        return 0 if 0 in found else found[0]

    def kill(self, process: int) -> None:
        """Kill a process, if it still exists."""
        _signal(process, signal.SIGKILL)

    def stop(self, process: int) -> None:
        """Stop a process until `resume`, if it still exists."""
        _signal(process, signal.SIGSTOP)

    def resume(self, process: int) -> None:
        """Let a stopped process go on, if it still exists."""
        _signal(process, signal.SIGCONT)

    def end(self, host: int) -> None:
        """Ask the processes of a host's command to end, by SIGTERM."""
        for process in self.processes[host]:
            if process.poll() is None:
                _signal(process.pid, signal.SIGTERM)

    def crash(self, host: int) -> None:
        """Kill all that runs on a host."""
        self.hosts.crash(host)
        for process in self.processes[host]:
            process.wait()

    def slow(self, host: int) -> None:
        """Make the host's link slow from now on."""
        self.hosts.rate(SLOW_LINK, host)

    def swift(self, host: int) -> None:
        """Give the host's link its usual rate again."""
        self.hosts.rate(self.command.link, host)

    def left(self) -> list[int]:
        """Return the ids of all processes on all hosts."""
        return [process for host in range(self.command.hosts) for process in self.hosts.processes(host)]


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _own_cores(host: int, hosts: int) -> list[str]:
    """Return words that start a command on a host's share of the cores; empty if there are more hosts than cores."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // hosts
    if not each or not shutil.which("taskset", path=PATH):
        return []
    return ["taskset", "-c", ",".join(map(str, cores[host * each : (host + 1) * each]))]
