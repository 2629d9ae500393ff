"""Learner processes: each is started by the fork server, spoken to through a pipe, and ends with its parent."""

import atexit
import json
import multiprocessing
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from roundelay.runtime.imported import ADVICE, GUARDLESS, importable_script, not_imported_again
from roundelay.runtime.launch.c_libraries import wait_politely
from roundelay.runtime.procs import fork_server
from roundelay.runtime.procs.worker import SegmentAnswer, WorkerSpec, main

PROCESS_NAME = "learner"
STATUS_SECONDS = 30.0
"""Most seconds to wait for the exit status of a dead process: the fork server tells it, and may be slow to."""


@dataclass
class Member:
    """A learner process, alive or dead, as its parent holds it."""

    process: ForkServerProcess
    pipe: Connection
    lifeline: Connection
    reaped: bool = False  # its death has been dealt with
    failure: str = ""  # why it could not start, in its own words

    def answer(self) -> SegmentAnswer:
        """Return the process's next message. Call it when the pipe is ready.

        Raises:
            EOFError, OSError: the process is dead, and left no further message.
        """
        return SegmentAnswer(**json.loads(self.pipe.recv_bytes()))

    def reason(self) -> str:
        """Return the reason of the process's death, in words."""
        self.process.join(timeout=1.0 if self.failure else STATUS_SECONDS)
        code = self.process.exitcode
        if self.failure:
            return f"it could not start: {self.failure}"
        if code is None:
            return f"it ended; with which exit status is not known after {STATUS_SECONDS:g} s"
        if code == GUARDLESS:
            return ADVICE
        if code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit status {code}"

    def advice(self) -> str:
        """Return advice for the user on a process that died before it had built its learner; "" if there is none."""
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            return ", while it started. Too little memory is the usual reason: try fewer learners"
        return ", while it started. What it printed says why" if code and code > 0 and code != GUARDLESS else ""

    @property
    def killed(self) -> bool:
        """True if a signal ended the process: a replacement may live; of one that ended by itself it would end too."""
        return (self.process.exitcode or 0) < 0

    def let_go(self) -> None:
        """Close this end of the process's pipes; a process that did not hear "quit" ends now."""
        self.lifeline.close()
        self.pipe.close()


def start_member(spec: WorkerSpec) -> Member:
    """Start a learner process as `spec` describes; it sends an answer when it has built its learner.

    Raises:
        OSError: the process cannot be started.
    """
    not_imported_again()
    wait_politely()
    fork_server.start(["roundelay.runtime.procs.preloaded", *spec.cluster.optimizer.imports])
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    lifeline, ours = context.Pipe(duplex=False)
    process = context.Process(
        target=main, args=(spec, theirs, lifeline), name=f"{PROCESS_NAME} {spec.rank}", daemon=True
    )
    # Rows on devices belong to no script, and pickled in the usual way they would all be copied to the host first.
    with importable_script(replace(spec, on_devices=None)):
        try:
            process.start()
        except EOFError:
            raise ChildProcessError("the process that starts learners has ended") from None
    theirs.close()
    lifeline.close()
    return Member(process, mine, ours)


def end(members: Mapping[int, Member], at_once: set[int]) -> None:
    """Stop the processes of all `members`; those of the ranks `at_once`, which would not listen yet, by a kill."""
    for rank, member in members.items():
        if rank in at_once:
            member.process.kill()
        elif member.process.is_alive():
            with suppress(OSError):
                member.pipe.send_bytes(b'{"do": "quit"}')
    for member in members.values():
        member.lifeline.close()
    for member in members.values():
        member.process.join(timeout=10)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
        member.let_go()


@atexit.register
def _kill_all() -> None:
    """Kill learners that still live when this process ends: multiprocessing would send them SIGTERM, and wait."""
    for process in multiprocessing.active_children():
        if process.name.startswith(PROCESS_NAME):
            process.kill()
