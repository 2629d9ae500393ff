"""`roundelay train` on hosts made of network namespaces: starting it, what its files say, faults that happen to it."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.live import Live, read_live
from roundelay.core.parsing import parse_json
from roundelay.core.records import Record, from_mapping
from roundelay.reports.runs import EVENTS
from roundelay.runtime.namespaces.hosts import PATH, Hosts

PORT = 29500
SLOW_LINK = "2mbit"
"""Rate of a link while it is slow."""
LINK = "10gbit"
"""Rate at other times, unless told otherwise."""


@final
@dataclass(frozen=True)
class TrainingCommand:
    """The command that every host is given.

    Attributes:
        recipe: name, or file.
        learners: on each host.
        options: further words of `roundelay train`.
        link: rate of every host's link, as tc takes it.
    """

    recipe: str
    exp: Path
    hosts: int
    learners: int
    options: tuple[str, ...] = ()
    link: str = LINK


@final
@dataclass(eq=False)
class HostedTraining:
    """A training on hosts that are there. Output of each goes to HOST.txt beside the run directory."""

    hosts: Hosts
    command: TrainingCommand
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: dict[int, "subprocess.Popen[str]"] = field(default_factory=dict)  # by host

    def start(self, host: int) -> None:
        """Give the command on a host, also again."""
        command = self.command
        words = [sys.executable, "-m", "roundelay", "train", command.recipe, "--exp", str(command.exp.resolve())]
        with open(self.output(host), "a", encoding="utf-8") as output:
            self.processes[host] = self.hosts.start(
                host,
                [*_own_cores(host, command.hosts), *words, *command.options],
                env=self._environment(host),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def _environment(self, host: int) -> dict[str, str]:
        """The variables of torchrun, and the secret."""
        learners, hosts = self.command.learners, self.command.hosts
        return {
            "RANK": f"{host * learners}",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": f"{hosts * learners}",
            "LOCAL_WORLD_SIZE": f"{learners}",
            "MASTER_ADDR": self.hosts.address(0),
            "MASTER_PORT": f"{PORT}",
            "ROUNDELAY_SECRET": self.secret,
            "OMP_NUM_THREADS": "1",
        }

    def output(self, host: int) -> Path:
        """The file of what a host prints."""
        return self.command.exp.with_name(f"{self.command.exp.name}-host{host}.txt")

    def status(self, host: int) -> int | None:
        """Exit status of a host's command; None while it runs."""
        return self.processes[host].poll()

    def learner(self, host: int, choice: float) -> int | None:
        """The process of one of a host's learners; None while it has none. `choice` from 0 to 1 says which."""
        parents: dict[int, int] = {}
        for process in self.hosts.processes(host):
            with suppress(OSError):
                if b"forkserver" in Path(f"/proc/{process}/cmdline").read_bytes():
                    stat = Path(f"/proc/{process}/stat").read_text()
                    parents[process] = int(stat.rpartition(")")[2].split()[1])
        found = sorted(process for process, parent in parents.items() if parent in parents)
        return found[min(int(choice * len(found)), len(found) - 1)] if found else None

    def kill(self, process: int) -> None:
        """Kill a process, if it is still there."""
        _signal(process, signal.SIGKILL)

    def stop(self, process: int) -> None:
        """Stop a process until `resume`, if it is still there."""
        _signal(process, signal.SIGSTOP)

    def resume(self, process: int) -> None:
        """Let a stopped process go on, if it is still there."""
        _signal(process, signal.SIGCONT)

    def end(self, host: int) -> None:
        """Ask a host's command to end."""
        _signal(self.processes[host].pid, signal.SIGTERM)

    def crash(self, host: int) -> None:
        """Kill all that runs on a host."""
        self.hosts.crash(host)
        self.processes[host].wait()

    def slow(self, host: int) -> None:
        """The host's link is slow from now on."""
        self.hosts.rate(SLOW_LINK, host)

    def swift(self, host: int) -> None:
        """The host's link is as it was."""
        self.hosts.rate(self.command.link, host)

    def live(self) -> Live | None:
        """The present state of the run; None if it says none."""
        with suppress(UserError):  # damaged: the next one is not
            return read_live(self.command.exp)
        return None

    def left(self) -> list[int]:
        """Processes of all hosts."""
        return [process for host in range(self.command.hosts) for process in self.hosts.processes(host)]


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _own_cores(host: int, hosts: int) -> list[str]:
    """The words that give a host its share of this machine's cores; none where there are more hosts than cores."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // hosts
    if not each or not shutil.which("taskset", path=PATH):
        return []
    return ["taskset", "-c", ",".join(map(str, cores[host * each : (host + 1) * each]))]


@final
class EventsTail:
    """New records of `events.jsonl`, which may be cut back when a run goes back to a checkpoint."""

    def __init__(self, exp: Path) -> None:
        self._path, self._read, self._known = exp / EVENTS, 0, set[str]()

    def new(self) -> Sequence[Record]:
        """Records since the last call, in order."""
        try:
            size = self._path.stat().st_size
            if size < self._read:
                self._read = 0
            if size == self._read:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[Record] = []
        for line in whole.decode("utf-8", "replace").splitlines():
            if line in self._known:
                continue
            self._known.add(line)
            with suppress(ValueError, TypeError, AttributeError):
                record = from_mapping(parse_json(line))
                found += [record] if record is not None else []
        return found
