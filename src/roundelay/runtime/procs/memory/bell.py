"""A bell in shared memory. Learners ring it after they have published something that their host's own process waits
for, the one that speaks to other hosts, and that process rings the bell of means for learners that wait in one: a
waiter wakes at once, and need not look a thousand times a second on a core that learners want.

A wait is one on a word of memory (Linux: futex), so any number of threads may wait for one bell. Nothing depends on
it but time: every wait has an end, after which the waiter looks by itself.
"""

import ctypes
import platform
import struct
import time
from typing import Any, final

from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import BellTable, Integers

FUTEX = {"x86_64": 202, "aarch64": 98}
"""Number of the system call, by machine."""
POLL_SECONDS = 1e-3
"""Pause between two looks on other machines."""
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1  # FUTEX_WAIT and FUTEX_WAKE of <linux/futex.h>, and how many are woken


@final
class Bell:
    """A bell in shared memory, whose word, a count of rings, is `rings`. None: all learners are on one host, and
    ringing does nothing."""

    def __init__(self, rings: Integers | None) -> None:
        self._rings = rings
        self._number = FUTEX.get(platform.machine())
        self._call: Any = ctypes.CDLL(None).syscall
        self._call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p]
        self._word = 0 if rings is None else rings.ctypes.data

    @property
    def hung(self) -> bool:
        """False where ringing does nothing, and a wait is no more than a pause."""
        return self._rings is not None

    def ring(self) -> None:
        """Wake all threads that wait for the bell; they see the numbers that this thread has published before."""
        if self._rings is None:
            return
        publish(self._rings, 0, int(self._rings[0]) + 1)
        if self._number is not None:
            self._call(self._number, self._word, _WAKE, _ALL, None)

    def heard(self) -> int:
        """Return the number of rings so far, for `wait`; call this before checking what is waited for."""
        return 0 if self._rings is None else int(self._rings[0])

    def wait(self, heard: int, seconds: float) -> None:
        """Wait until the bell has been rung since `heard` or `seconds` have passed; may return sooner for no reason."""
        if self._rings is None:
            time.sleep(seconds)
        elif self._number is not None:
            limit = struct.pack("@qq", int(seconds), int(seconds % 1 * 1e9))
            self._call(self._number, self._word, _WAIT, heard & 0xFFFFFFFF, limit)
        else:
            deadline = time.monotonic() + seconds
            while self._rings[0] == heard and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)


def bell_of_means(arena: Arena) -> Bell:
    """Return the bell for threads that take means with other hosts, and for learners that wait for these."""
    return Bell(arena.view(BellTable).means if BellTable in arena.layout.views else None)


def bell_of_session(arena: Arena) -> Bell:
    """Return the bell for the process that speaks to other hosts for attached learners."""
    return Bell(arena.view(BellTable).session if BellTable in arena.layout.views else None)
