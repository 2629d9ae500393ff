"""The process that speaks to other hosts for the attached learners of one, session after session.

The first learner of the host starts it, and asks it to take part in a session (starting.py) when it attaches. It ends
when the processes of all learners have, whichever of them ends first.
"""

import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from roundelay.core.errors import UserError
from roundelay.core.parent import leave_signals
from roundelay.runtime.attached.between_hosts import PROCESS_FAILED
from roundelay.runtime.attached.hosts.agent import SessionAgent
from roundelay.runtime.attached.hosts.coordinator import SessionCoordinator
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.hosts.starting import SessionRequest
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.hosts.control.finding import PendingJoins, Search, open_router
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.wire import LinkError
from roundelay.runtime.launch.local_rendezvous import Fact, close_all, receive_fact, send_fact
from roundelay.runtime.messages import read

ENDED_LOOK_SECONDS = 0.1
"""Seconds between looks of the process for learners that have ended."""
EXPECTED = (UserError, LinkError, TimeoutError, LearnerDied)
"""Errors whose message is enough for the user."""


class SessionServer:
    """Server of this host's sessions, in the process that speaks to other hosts.

    Args:
        channel: to the host's first learner.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._open = channel, True
        self._processes: dict[int, int] = {}  # descriptors of learners' processes that live, by their ids
        self._router: Router | None = None
        self._arrivals: PendingJoins | None = None
        self._listens: object = None
        self._next_look, self._ended = 0.0, False
        self._waiting: list[tuple[Fact, list[int]]] = []  # requests to answer once the session has ended

    def serve(self) -> None:
        """Serve until all learners have ended."""
        while True:
            if self._waiting or self._heard(ENDED_LOOK_SECONDS):
                fact, descriptors = self._waiting.pop() if self._waiting else self._hear()
                if fact.get("do") == "session":
                    self._session(fact, descriptors)
                else:
                    close_all(descriptors)
            if not self._living() and (self._processes or not self._open):
                break
        if self._router is not None:
            self._router.close()

    def _heard(self, seconds: float) -> bool:
        """Return True if the first learner says something within `seconds` seconds."""
        if not self._open:
            time.sleep(seconds)
            return False
        return bool(select.select([self._channel], [], [], seconds)[0])

    def _hear(self) -> tuple[Fact, list[int]]:
        try:
            return receive_fact(self._channel)
        except (OSError, EOFError, ValueError):  # it has ended; others may live
            self._open = False
            return {}, []

    def _say(self, fact: Fact) -> None:
        with suppress(OSError):
            send_fact(self._channel, fact)

    def _living(self) -> bool:
        """Return True if any learner's process lives."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + ENDED_LOOK_SECONDS
            watched = [descriptor for descriptor in self._processes.values() if descriptor >= 0]
            ended = select.select(watched, [], [], 0)[0] if watched else []
            close_all(ended)
            self._processes = {
                process: -1 if descriptor in ended else descriptor for process, descriptor in self._processes.items()
            }
            self._ended = all(descriptor < 0 for descriptor in self._processes.values())
        return not self._ended

    def _watch(self, processes: Sequence[int]) -> None:
        for process in processes:
            if process not in self._processes:
                try:
                    self._processes[process] = os.pidfd_open(process)
                except ProcessLookupError:
                    self._processes[process] = -1
                self._next_look = 0.0

    def _given_up(self, host: SessionHost) -> bool:
        """Return True if no learner of this host will come to the session, or continue it."""
        self._watch(host.processes_back())
        if self._open and not self._waiting and self._heard(0):
            fact, descriptors = self._hear()
            if fact.get("do") == "session":
                self._waiting.append((fact, descriptors))
            elif fact:
                return True
        return not self._living()

    def _stop(self, host: SessionHost) -> None:
        """End a wait for other hosts, by an error, if the learners of this host have given up the session.

        Raises:
            UserError: the learners of this host have ended, or given up the session.
        """
        if self._given_up(host):
            raise UserError("all learners of this host have ended")

    # One session ------------------------------------------------------------------------------------------------------

    def _session(self, fact: Fact, descriptors: list[int]) -> None:
        host: SessionHost | None = None
        part: SessionCoordinator | SessionAgent | None = None
        answered = False
        try:
            request = read(SessionRequest, fact["request"])
            self._watch(request.processes)
            router, arrivals = self._listen(request)
            host = SessionHost(request, descriptors[0], router)
            part = SessionCoordinator(host, arrivals) if _begins(request, router) else SessionAgent(host, router)
            part.open(partial(self._stop, host))
            self._say({"wakes": host.wakes, "late": part.late})
            answered = True
            part.run(partial(self._given_up, host))
            if isinstance(part, SessionAgent) and part.succeeds:
                where = ":".join(map(str, router.listener.address))
                ranks = ", ".join(map(str, host.here))
                sys.stderr.write(f"roundelay: the host that led is lost; that of learners {ranks} leads at {where}\n")
                part = SessionCoordinator(host, arrivals, part)
                part.run(partial(self._given_up, host))
        except Exception as error:
            why = str(error) if isinstance(error, EXPECTED) else traceback.format_exc()
            if answered:
                sys.stderr.write(f"roundelay: {why}\n")
            else:
                self._say({"problem": why})
        finally:
            if host is not None:
                host.end(PROCESS_FAILED)
            if part is not None:
                part.close()
            if self._router is not None:
                self._router.listener.say(
                    leader=None, **({"ended": int(fact["request"]["number"])} if answered else {})
                )
            if host is not None:
                host.close()
            close_all(descriptors)

    def _listen(self, request: SessionRequest) -> tuple[Router, PendingJoins]:
        """Return the listener that sessions with the same terms share."""
        wanted = request.place, request.terms.encrypt
        if self._router is None or self._arrivals is None or self._listens != wanted:
            if self._router is not None:
                self._router.close()
            self._router, self._listens = open_router(request.place, request.terms), wanted
            self._arrivals = PendingJoins(self._router, request.place, request.terms)
        return self._router, self._arrivals


def _begins(request: SessionRequest, router: Router) -> bool:
    """Return True if the session is to be led by this host, the first, and no host leads it yet."""
    if not request.place.conducts:
        return False
    own = str(router.listener.hello["life"])
    return not request.place.peers or not Search(request.place, request.terms, request.number, own).another_leads()


def main() -> None:
    """Serve the learner that holds the other end of this process's standard input."""
    leave_signals(signal.SIGHUP)  # it ends with the learners
    with socket.socket(fileno=os.dup(0)) as channel:
        SessionServer(channel).serve()
    sys.stderr.flush()
    os._exit(0)  # no thread is waited for


if __name__ == "__main__":
    main()
