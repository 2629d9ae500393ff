"""A launcher for one host. Nothing here imports torch: it must start at once."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.procs.heap import keep_freed_in
from roundelay.runtime.procs.threads import wait_politely
from roundelay.runtime.procs.world import ENDED

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
GRACE_SECONDS = 10.0
"""How long learners may take to end after the launcher was told to."""


def launch(learners: int, command: Sequence[str], say: Callable[[str], None]) -> int:
    """Run `command` as so many learners on this host, and wait for all of them.

    A Python script is run by this Python; `say` is told who failed. A learner that ends, well or badly, does not end
    the others: whether they can go on is for their strategy to say. Signals are passed on to all of them, each in a
    process group of its own.

    Returns:
        0, or the exit status of the first that failed (128 plus the signal, if one killed it).
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise UserError("launch needs a command: roundelay launch -n 2 script.py --its-options")
    if learners < 1:
        raise UserError(f"-n is {learners}: at least one learner is needed.")
    ended = os.memfd_create("roundelay-ended", os.MFD_CLOEXEC)
    environment = {**os.environ, ENDED: f"/proc/{os.getpid()}/fd/{ended}"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // learners)))
    wait_politely(environment)
    keep_freed_in(environment)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    arguments = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    processes: list[subprocess.Popen[bytes]] = []
    told: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        for rank in range(learners):
            who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": learners, "LOCAL_WORLD_SIZE": learners}
            mine = {**environment, **meeting, **{name: str(value) for name, value in who.items()}}
            processes.append(_start(arguments, mine))
        return _wait(processes, told, ended, say)
    finally:
        for process in processes:  # whatever went wrong, nobody stays behind
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(ended)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(arguments: list[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_launcher() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    try:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=die_with_launcher,  # noqa: PLW1509 the launcher has no threads
        )
    except OSError as error:
        raise UserError(f"{arguments[0]}: cannot be started ({error.strerror}).") from error


def _wait(
    processes: Sequence["subprocess.Popen[bytes]"], told: Sequence[int], ended: int, say: Callable[[str], None]
) -> int:
    """Until all have ended; those told to end by a signal get some time to do so."""
    running, first, deadline = dict(enumerate(processes)), 0, 0.0
    while running:
        for rank, process in list(running.items()):
            status = process.poll()
            if status is None:
                continue
            del running[rank]
            status = 128 - status if status < 0 else status
            os.write(ended, (json.dumps([rank, status]) + "\n").encode())
            if status and not told:
                say(f"learner {rank} ended with status {status}.")
            first = first or status
        if set(told) & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
            deadline = deadline or time.monotonic() + GRACE_SECONDS
            if time.monotonic() > deadline:
                break
        if running:
            time.sleep(0.05)
    return first or (128 + told[0] if told and running else 0)
