"""Locks that outlive their holder's death.

An open-file-description lock on one byte of the arena belongs to the description a process opened; when the process
dies, however, the kernel closes the description and the lock is free. (A multiprocessing.Lock stays locked for ever;
classic POSIX record locks belong to the process and are lost when any descriptor of the file is closed.)

Lock order, so that there is no deadlock: rows by rank, the centre last (runtime/rows.py); no process takes a row's lock
while it holds the lock of the work queue.

Every wait is bounded, and names the learner and the thing it waits for when the bound is reached (`Patience`).
"""

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from roundelay.runtime.rows import Lock

if TYPE_CHECKING:
    from roundelay.runtime.procs.memory.bell import Bell


@dataclass(frozen=True)
class Patience:
    """Seconds that learner `rank` waits for anything before it gives up, and a call that it makes while it waits."""

    rank: int
    seconds: float
    look: Callable[[], None] = lambda: None

    def until(
        self,
        ready: Callable[[], bool],
        what: str,
        pauses: tuple[float, float] = (50e-6, 2e-3),
        missing: Callable[[], Sequence[int]] | None = None,
        bell: "Bell | None" = None,
    ) -> None:
        """Wait until `ready()` is true; an error that it raises ends the wait.

        Args:
            what: the thing waited for, in words.
            pauses: seconds between two looks, at first and at most.
            missing: returns the ranks that have not come; the error names them.
            bell: a bell that ends a pause when it is rung.

        Raises:
            TimeoutError: the bound is passed; names the learner and the thing it waits for.
        """
        started, pause, heard = time.monotonic(), pauses[0], 0 if bell is None else bell.heard()
        while not ready():
            self.look()
            waited = time.monotonic() - started
            if waited > self.seconds:
                hint = "a longer patience helps where they are only slow"
                still = "" if missing is None else f"; still missing: {list(missing())} ({hint})"
                raise TimeoutError(f"learner {self.rank} has waited {waited:.0f} s for {what}{still}")
            if bell is None:
                time.sleep(pause)
            else:
                bell.wait(heard, pause)
                heard = bell.heard()
            pause = min(2 * pause, pauses[1])


THREAD_SECONDS = 1e-3
"""Seconds for another thread of this process to give its lock back, before one looks whether there is still a point."""
FLOCK = "hhqqi4x"  # short l_type, short l_whence, off_t l_start, off_t l_len, pid_t l_pid (0 for these locks)


class ByteLock(Lock):
    """Mutual exclusion on byte `number` of an open file, between processes (not between threads of one)."""

    def __init__(self, descriptor: int, number: int, name: str, patience: Patience) -> None:
        self._descriptor, self._name, self._patience = descriptor, name, patience
        self._take = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        self._give = struct.pack(FLOCK, fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0)

    def acquire(self) -> None:
        """Wait for the lock, and take it; one system call of a microsecond when it is free."""
        if not self.try_acquire():
            self._patience.until(self.try_acquire, self._name, (20e-6, 1e-3))

    def try_acquire(self) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, self._take)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, self._give)


@final
class QueueLock(ByteLock):
    """A lock between processes that excludes the threads of one process from each other, too. To the kernel these
    threads are one holder: a second one would get the lock at once, and release it for both."""

    def __init__(self, descriptor: int, number: int, name: str, patience: Patience) -> None:
        super().__init__(descriptor, number, name, patience)
        self._thread = threading.Lock()

    def try_acquire(self) -> bool:
        if not self._thread.acquire(timeout=THREAD_SECONDS):
            return False
        try:
            found = super().try_acquire()
        except BaseException:
            self._thread.release()
            raise
        if not found:
            self._thread.release()
        return found

    def release(self) -> None:
        try:
            super().release()
        finally:
            self._thread.release()
