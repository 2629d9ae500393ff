"""A learner that died comes back to the running session: its process is started again, and it takes its own place.

Not where others need it: there its death ends the session. The start's meeting point is gone by then; so as long as a
learner of the host is dead, the first of the living that looks listens at another one. It looks there between two
steps, as it looks for deaths, and gives the learner that comes the shared memory. Under an asynchronous strategy it
then takes its place by itself, or, where there are several hosts, is let in by the first of them (hosts/admission.py),
as are all learners of a host that was lost as a whole. Where learners wait for each other it is let in at a meeting
(handover.py).
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

from roundelay.runtime.attached.entering import Entrance
from roundelay.runtime.attached.membership import CLOSED, Attendance, BetweenSteps
from roundelay.runtime.hosts.terms import differing
from roundelay.runtime.launch.local_rendezvous import close_all, peer_user, receive_fact, returning_name, send_fact
from roundelay.runtime.launch.world import World
from roundelay.runtime.procs.coordination.lives import breathes
from roundelay.runtime.procs.memory.arena import Arena

RETURN_LOOK_SECONDS = 0.1
"""Interval between looks for learners that have come back."""
ANSWER_SECONDS = 2.0
"""Seconds that a learner which has come may take to say its rank."""


@final
class Returns(BetweenSteps):
    """The meeting point for learners that come back, as one living learner looks after it.

    Args:
        number: number of the session.
        entrance: the entrance of this learner; all must agree on its facts.
        notice: notices deaths at once.
    """

    def __init__(self, world: World, number: int, arena: Arena, entrance: Entrance, notice: Callable[[], None]) -> None:
        self._rank, self._here, self._arena, self._notice = world.rank, world.here, arena, notice
        self._facts, self._wakes = entrance.facts, entrance.wakes
        self._name = returning_name(world, number)
        self._listener: socket.socket | None = None
        self._next_look = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + RETURN_LOOK_SECONDS
        if self._listener is None and self._dead():
            self._listen()
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no learner has come
                if not self._dead():
                    self._close()
                return
            with connection, suppress(OSError, EOFError, ValueError):
                if peer_user(connection) == os.geteuid():
                    self._answer(connection)

    def _dead(self) -> list[int]:
        alive, left = self._arena.liveness.alive, self._arena.view(Attendance).left
        return [rank for rank in self._here if not alive[rank] and left[rank] != CLOSED]

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._name)
        except OSError:  # another learner does
            listener.close()
            return
        listener.listen()
        listener.setblocking(False)
        self._listener = listener

    def _answer(self, connection: socket.socket) -> None:
        said, descriptors = receive_fact(connection, ANSWER_SECONDS)
        close_all(descriptors)
        rank = said.pop("rank", None)
        self._notice()
        if type(rank) is not int or rank not in self._dead() or breathes(self._arena, rank):
            send_fact(connection, {"problem": f"learner {rank} is none of the dead {self._dead()} of this session"})
            return
        other = differing(self._facts, {name: said.get(name) for name in self._facts})
        if other:
            named = ", ".join(f"{name} {mine}, and it has {theirs}" for name, mine, theirs in other)
            send_fact(connection, {"problem": f"the session it comes back to has {named}"})
            return
        own = os.open(f"/proc/self/fd/{self._arena.descriptor}", os.O_RDWR | os.O_CLOEXEC)  # locks are by opened file
        try:
            send_fact(connection, {**self._facts, "from": self._rank, "wakes": self._wakes}, own)
        finally:
            os.close(own)

    def close(self, manner: int) -> None:
        self._close()

    def _close(self) -> None:
        """Close the meeting point."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
