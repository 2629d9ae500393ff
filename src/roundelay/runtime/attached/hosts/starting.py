"""The process that speaks to other hosts, as the first learner of its host holds it: started once, for all sessions."""

import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.attached.hosts.request import SessionRequest
from roundelay.runtime.launch.local_rendezvous import receive_fact, send_fact

GRACE_SECONDS = 30.0
"""Seconds that the process may take longer than hosts have patience, to start and to say why."""


@final
class HostProcess:
    """It outlives this learner, if others of the host do."""

    def __init__(self) -> None:
        self._busy = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roundelay.runtime.attached.hosts.process"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        """Has it not ended?"""
        return self.process.poll() is None

    def take_part(self, request: SessionRequest, descriptor: int) -> tuple[dict[int, str], bool]:
        """Take part in a session, with the arena of that descriptor; by rank, the path of the pipe that wakes what
        carries the exchanges of a learner of this host, and whether the session runs already, so that this host comes
        back to it.

        Raises:
            UserError: the hosts do not find each other or do not agree, or the process has ended.
        """
        first = request.place.ranks[0]
        if self._busy:
            raise UserError(
                f"rank {first}: on several hosts there is one session at a time: close() the first before the next is "
                "attached. Several optimizers of one module are one session: attach(module, [first, second])."
            )
        seconds = request.patience_seconds + GRACE_SECONDS
        try:
            send_fact(self._channel, {"do": "session", "request": request.to_json()}, descriptor)
            if not select.select([self._channel], [], [], seconds)[0]:
                raise UserError(f"rank {first}: the process that speaks to other hosts said nothing for {seconds:g} s.")
            answer, _ = receive_fact(self._channel)
        except (OSError, EOFError, ValueError) as error:
            raise UserError(
                f"rank {first}: the process that speaks to other hosts has ended ({error}); what it printed says why."
            ) from error
        if "problem" in answer:
            raise UserError(str(answer["problem"]))
        self._busy = True
        return {int(rank): str(path) for rank, path in answer["wakes"].items()}, bool(answer["late"])

    def leave(self) -> None:
        """Note that this learner has left the session."""
        self._busy = False

    def drop(self) -> None:
        """Drop a minibatch that learners of this host will not begin."""
        self._busy = False
        with suppress(OSError):
            send_fact(self._channel, {"do": "drop"})


@cache
def _started() -> list[HostProcess]:
    return []


def host_process() -> HostProcess:
    """Return the process of this host, which is started if it does not run."""
    found = _started()
    if not found or not found[-1].lives:
        found.append(HostProcess())
    return found[-1]
