"""A launcher for the learners of one host, which may be one of several. Nothing here imports torch: it must start at
once."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import final

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.parent import die_with_parent
from roundelay.runtime.launch.c_libraries import keep_freed_in, wait_politely
from roundelay.runtime.launch.output import Output
from roundelay.runtime.launch.world import ENDED_NAME, ENDED_VARIABLE, GROUP, JOB, OURS, each_a_host, read_place
from roundelay.runtime.launch.world import learners as learners_of_environment

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
"""Signals after which learners should end."""
ENDING_SECONDS = 10.0
"""Seconds that learners may take to end after the launcher was told to end."""
WATCH_SECONDS = 0.05
"""Seconds between two looks for processes that have ended."""
FLUSH_SECONDS = 1.0
"""Seconds that a message of the launcher waits for earlier output of learners."""


HIDDEN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
)
"""Variables of torchrun, hidden from scripts: frameworks that see them start torch.distributed."""
HIDDEN_PREFIX = "TORCHELASTIC_"


@dataclass(frozen=True)
class Endings:
    """Rules for learners that end: the number of restarts, and the seconds that a learner may take to end."""

    restarts: int = 0  # of learners that fail, as many in all are started again, each under its rank
    seconds: float = ENDING_SECONDS  # learners may take to end after the launcher was told to; then they are killed


@dataclass(frozen=True)
class TorchNames:
    """A choice of the processes that torch's variables (RANK, WORLD_SIZE and others) are to describe."""

    # those of each learner, so many; one that fails ends the others. 0: the learners, as under `torchrun`.
    group: int = 0


def launch(
    learners: int,
    command: Sequence[str],
    say: Callable[[str], None],
    *,
    module: bool = False,
    torch_names: TorchNames | None = None,
    prefix: bool = True,
    endings: Endings | None = None,
) -> int:
    """Run `command` as `learners` learners on this host, and wait for all of them.

    If the environment makes this one of several hosts (`read_place`), learners of all of them train together. A Python
    script is run by this Python; `say` gets a sentence on each failure. A learner that ends does not end the others;
    their strategy says whether they can go on. Signals are passed on to all, each in a process group of its own.

    Args:
        module: the command is a Python module and its arguments, as for `python -m`.
        torch_names: RANK, WORLD_SIZE and the other variables of `torchrun` are set as well as ours; None: they are not.
        prefix: pass on learners' output in whole lines, with ranks; else they have this process's output themselves.
        endings: rules for learners that end or are to end.

    Returns:
        0, or the exit status of the first that failed for good (128 plus the signal, if one killed it).
    """
    whole = _whole_command(command, module)
    ranks, world, several = _share_of_hosts(learners, say)
    ended = os.memfd_create(ENDED_NAME, os.MFD_CLOEXEC)
    groups = Groups(0 if torch_names is None else torch_names.group, ranks)
    of_all = torch_names is not None and not groups.size
    environment = {**_environment(groups.processes, ended, of_all, prefix), **several}
    told: list[int] = []
    output = Output() if prefix else None
    names = ("", OURS) if of_all else (OURS,)
    places = {rank: _ranks(rank, world, local, learners, names) for local, rank in enumerate(ranks)}
    variables = {rank: {**environment, **place} for rank, place in places.items()}
    endings = endings or Endings()
    started = _Started(whole, variables, output, endings.restarts, groups)

    def pass_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        if number == signal.SIGINT and output is not None:
            output.interrupted()
        for process in started.running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        for rank in ranks:
            started.start(rank)
        return _wait(started, told, ended, output, say, endings.seconds)
    finally:
        _kill(started.processes)  # after any error, no process stays behind
        if output is not None:
            output.finish()
            _write_all(output, told)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(ended)


@dataclass(frozen=True)
class Groups:
    """The learners of this host by rank, and the processes of each."""

    size: int  # of each learner; 0: one, which is alone
    ranks: Sequence[int]  # of the learners of this host

    @property
    def processes(self) -> int:
        """Number of processes on this host."""
        return len(self.ranks) * max(1, self.size)

    def names(self, rank: int) -> list[str]:
        """Return the names of a learner's processes, by place."""
        return [str(rank)] if not self.size else [f"{rank}.{place}" for place in range(self.size)]

    def variables(self, rank: int, place: int, port: int) -> dict[str, str]:
        """Return the variables by which the processes of a learner find each other, at `port`."""
        if not self.size:
            return {}
        numbers = {
            "RANK": place,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.ranks.index(rank) * self.size + place,
            "LOCAL_WORLD_SIZE": self.processes,
            "MASTER_PORT": port,
            GROUP: self.size,
        }
        return {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}


@final
class _Started:
    """The running processes of all learners of this host.

    Args:
        variables: the environment of each learner, by rank.
        restarts: number of times that failed learners may be started again.
    """

    def __init__(
        self,
        command: list[str],
        variables: Mapping[int, Mapping[str, str]],
        output: Output | None,
        restarts: int,
        groups: Groups,
    ) -> None:
        self._command, self._variables, self._output, self._restarts = command, variables, output, restarts
        self._left, self._groups = restarts, groups
        self.processes: list[subprocess.Popen[bytes]] = []
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """Running processes by name; the code that sees the end of one takes it out."""
        self._failed: dict[int, int] = {}  # status of the first process of a learner that failed

    def start(self, rank: int) -> None:
        """Start the processes of learner `rank`."""
        port = _free_port() if self._groups.size else 0
        for place, name in enumerate(self._groups.names(rank)):
            variables = {**self._variables[rank], **self._groups.variables(rank, place, port)}
            process, *pipes = _start(self._command, variables, self._output is not None)
            self.processes.append(process)
            self.running[name] = process
            if self._output is not None:
                self._output.add(name, *pipes)

    def ended(self, name: str, status: int) -> tuple[int, int] | None:
        """Note that a process has ended; if it was the last of its learner, return the learner's rank and status. With
        one that fails, the learner's other processes are killed, since they could only wait for it."""
        rank = int(name.partition(".")[0])
        others = [other for other in self._groups.names(rank) if other in self.running]
        if status:
            self._failed.setdefault(rank, status)
            _signal([self.running[other] for other in others], signal.SIGKILL)
        return None if others else (rank, self._failed.pop(rank, 0))

    def again(self, rank: int) -> str:
        """Start failed learner `rank` again, if a restart is left; return words on the restart, or ""."""
        if not self._left:
            return ""
        self._left -= 1
        self.start(rank)
        return f", and is started again ({self._restarts - self._left} of {self._restarts})"


def _whole_command(command: Sequence[str], module: bool) -> list[str]:
    """Return the whole command of a learner, with this Python interpreter before a script or a module."""
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise UserError("launch needs a command: roundelay launch -n 2 script.py --its-options")
    if module:
        return [sys.executable, "-m", *command]
    return [sys.executable, *command] if command[0].endswith(".py") else list(command)


def _kill(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Kill the processes that still run, each with its process group, and wait for them."""
    running = [process for process in processes if process.poll() is None]
    _signal(running, signal.SIGKILL)
    for process in running:
        process.wait()


def _signal(processes: Sequence["subprocess.Popen[bytes]"], number: int) -> None:
    """Send a signal to each process and its process group."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _environment(learners: int, ended: int, torchrun_names: bool, prefix: bool) -> dict[str, str]:
    """Return the variables that all learners share, among them a key that only they and this launcher know, by which
    they meet without a network."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (*HIDDEN, GROUP) and not name.startswith((HIDDEN_PREFIX, *(OURS + hidden for hidden in HIDDEN)))
    }
    environment |= {ENDED_VARIABLE: f"/proc/{os.getpid()}/fd/{ended}", JOB: secrets.token_hex(32)}
    if torchrun_names:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if prefix:
        environment.setdefault("PYTHONUNBUFFERED", "1")  # a pipe is no terminal: Python would hold lines back
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // learners)))
    wait_politely(environment)
    keep_freed_in(environment)
    return environment


def _share_of_hosts(learners: int, say: Callable[[str], None]) -> tuple[Sequence[int], int, dict[str, str]]:
    """Return the ranks of this host's learners, the number on all hosts, and variables for the meeting of hosts.

    There are several hosts only if the environment says both where they meet and how many learners are here, or has a
    secret for hosts of one learner each. Other variables may be left over from another launcher, and are ignored; `say`
    mentions those that could have meant several hosts.

    Raises:
        UserError: there would be no learners, or the environment has another number of them on this host.
    """
    if learners < 1:
        raise UserError(f"-n is {learners}: at least one learner is needed.")
    meets, sized = ({name, OURS + name} & os.environ.keys() for name in ("MASTER_ADDR", "LOCAL_WORLD_SIZE"))
    place = read_place() if (meets and sized) or each_a_host() else None
    if place is None and meets and (all_learners := learners_of_environment()) > 1:
        say(
            f"learners of this host ({learners}) train alone, though WORLD_SIZE is {all_learners} and MASTER_ADDR is "
            f"set. If this is one of several hosts, set LOCAL_RANK=0 and LOCAL_WORLD_SIZE={learners} too, RANK to the "
            "first learner of this host and WORLD_SIZE to all learners; else unset WORLD_SIZE."
        )
    if place is None or place.alone:  # one host, under any launcher
        return range(learners), learners, {}
    if len(place.ranks) != learners or place.local_rank:
        raise UserError(
            f"-n is {learners}, but the environment says that this is process {place.local_rank} of "
            f"{len(place.ranks)} on one of several hosts, which have {place.learners} learners. Set LOCAL_RANK=0, "
            f"LOCAL_WORLD_SIZE={learners}, RANK to the first learner of this host and WORLD_SIZE to all learners; or "
            "unset WORLD_SIZE, for learners of this host alone."
        )
    where = {OURS + "MASTER_ADDR": place.address, OURS + "MASTER_PORT": str(place.port)}
    return place.ranks, len(place.first), where


def _ranks(rank: int, learners: int, local: int, here: int, prefixes: Sequence[str]) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": learners, "LOCAL_WORLD_SIZE": here}
    return {prefix + name: str(value) for name, value in names.items() for prefix in prefixes}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    arguments: list[str], environment: Mapping[str, str], piped: bool
) -> tuple["subprocess.Popen[bytes]", int, int]:
    """Start a process; return it and, if `piped`, descriptors of its output and error, which the caller closes."""
    parent = os.getpid()
    out, error = (os.pipe2(os.O_CLOEXEC) if piped else (-1, -1) for _ in range(2))
    try:
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out[1] if piped else None,
            stderr=error[1] if piped else None,
            process_group=0,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 the launcher has no threads
        )
    except OSError as problem:
        for descriptor in (out[0], error[0]) if piped else ():
            os.close(descriptor)
        raise UserError(f"{arguments[0]}: cannot be started ({problem.strerror}).") from problem
    finally:
        for descriptor in (out[1], error[1]) if piped else ():
            os.close(descriptor)
    return process, out[0], error[0]


def _wait(
    started: _Started,
    told: Sequence[int],
    ended: int,
    output: Output | None,
    say: Callable[[str], None],
    ending_seconds: float,
) -> int:
    """Wait until all learners have ended, and kill those that take longer than `ending_seconds` after a signal to end;
    return the exit status."""
    running, first, deadline = started.running, 0, 0.0
    while running:
        for name, process in list(running.items()):
            status = process.poll()
            if status is None:
                continue
            del running[name]
            if output is not None:
                output.ended(name)
            learner = started.ended(name, 128 - status if status < 0 else status)
            if learner is None:
                continue
            rank, status = learner
            again = started.again(rank) if status and not told else ""
            if not again:
                os.write(ended, (json.dumps([rank, status]) + "\n").encode())
                first = first or status
            if status and not told:
                if output is not None:
                    output.flush(FLUSH_SECONDS)
                say(f"learner {rank} ended with status {status}{again}.")
        if ENDING & set(told):
            deadline = deadline or time.monotonic() + ending_seconds
            if time.monotonic() > deadline:
                break
        if running and output is not None:
            output.wait(WATCH_SECONDS)
        elif running:
            time.sleep(WATCH_SECONDS)
    return first or (128 + told[0] if told and running else 0)


def _write_all(output: Output, told: Sequence[int]) -> None:
    """Write all waiting output, however slowly it is read; for ENDING_SECONDS once the launcher was told to end."""
    told_at = 0.0
    while not output.flush(WATCH_SECONDS):
        if ENDING & set(told):
            told_at = told_at or time.monotonic()
            if time.monotonic() > told_at + ENDING_SECONDS:
                return
