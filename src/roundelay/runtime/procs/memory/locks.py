"""Locks that outlive their holder's death.

An open-file-description lock on one byte of the arena belongs to the description a process opened; when the process
dies, however, the kernel closes the description and the lock is free. (A multiprocessing.Lock stays locked for ever;
classic POSIX record locks belong to the process and are lost when any descriptor of the file is closed.)

Lock order, so that there is no deadlock: rows by rank, the centre last (runtime/rows.py); nobody takes a row's lock
while it holds the lock of the work queue.
"""

import fcntl
import os
import struct
import threading
from typing import final

from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.rows import Lock

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
        """Acquire as every lock is acquired; one system call in a microsecond when it is free."""
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
    """One that excludes the threads of a process from each other, too. To the kernel these are one holder: a second one
    would get it at once, and give it back for both."""

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
