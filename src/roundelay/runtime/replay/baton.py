"""Threads of which one runs at a time: each passes the baton on until what it waits for has happened."""

import threading
from collections.abc import Callable, Sequence

from roundelay.core.errors import UserError


class Differs(UserError):
    """The repetition is not the recorded run: says where it first differs."""


class _Abandoned(BaseException):
    """Another learner's thread has failed; this one ends."""


class Baton:
    """Passed between the threads of the learners, by rank. A thread that fails ends all others."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._stuck: dict[int, str] = {}
        self._failure: BaseException | None = None

    def run(self, learners: Sequence[tuple[int, Callable[[], None]]]) -> None:
        """Run all of them, (rank, what it does), to their ends.

        Raises:
            Differs: nobody could go on; or whatever one of them raises.
        """
        self._running = len(learners)
        threads = [threading.Thread(target=self._thread, args=learner) for learner in learners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _thread(self, rank: int, learner: Callable[[], None]) -> None:
        with self._condition:
            try:
                learner()
            except _Abandoned:
                pass
            except BaseException as error:
                self._failure = self._failure or error
            self._running -= 1
            self._stuck.pop(rank, None)
            self._notice_deadlock()
            self._condition.notify_all()

    def until(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Pass the baton on until `ready`; called with the baton.

        Raises:
            Differs: nobody can go on.
        """
        while not ready():
            self._stuck[rank] = what
            self._notice_deadlock()
            if self._failure is None:
                self._condition.wait()
            self._stuck.pop(rank, None)
            if self._failure is not None:
                raise _Abandoned
        if self._failure is not None:
            raise _Abandoned

    def changed(self) -> None:
        """Note that something others may wait for has happened."""
        self._stuck.clear()  # they look again
        self._condition.notify_all()

    def _notice_deadlock(self) -> None:
        if self._running and len(self._stuck) >= self._running and self._failure is None:
            who = "; ".join(f"learner {rank} waits for {what}" for rank, what in sorted(self._stuck.items()))
            self._failure = Differs(f"nobody can go on: {who}. An event is missing in the trace.")
            self._condition.notify_all()
