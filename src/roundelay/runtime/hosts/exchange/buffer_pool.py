"""Buffers of a host's server for rows of others: as many as exchanges are in flight, not one for each learner that ever
asked.

A buffer is taken when a row begins to come, and given back when its reply is settled: when the asker has said that it
has the reply, or makes another request. Where all are taken, a row that comes waits in its sender's socket. Rows in
flight may wait for each other by way of these buffers (one here for a row that is in flight to a host where all buffers
are taken for rows that are in flight to here), so no wait for one is without end: where none has come back for a while,
there is one more.
"""

import threading
import time
from collections.abc import Callable
from typing import final

from roundelay.runtime.hosts.exchange.row_format import Buffer

STANDSTILL_SECONDS = 2.0
"""Seconds in which no buffer is given back, after which the pool makes one more."""


@final
class BufferPool:
    """Pool of the buffers of one host's server.

    Args:
        make: makes a new buffer.
        most: number of buffers, as long as each is given back in time.
        standstill: seconds in which none is given back, after which one more is made.
    """

    def __init__(self, make: Callable[[], Buffer], most: int, standstill: float = STANDSTILL_SECONDS) -> None:
        self._make, self._most, self._standstill = make, most, standstill
        self._changed = threading.Condition()
        self._free: list[Buffer] = []
        self._returned = 0.0  # when one came back last, or was made because none did
        self.taken = 0
        """Buffers that are out."""
        self.peak = 0
        """The most that were out at a time."""

    def take(self) -> Buffer:
        """Wait for a free buffer, and return it."""
        with self._changed:
            began = time.monotonic()
            while self.taken >= self._most:
                left = max(began, self._returned) + self._standstill - time.monotonic()
                if left <= 0:
                    self._returned = time.monotonic()
                    break
                self._changed.wait(left)
            self.taken += 1
            self.peak = max(self.peak, self.taken)
            return self._free.pop() if self._free else self._make()

    def give_back(self, buffer: Buffer) -> None:
        """Put `buffer` back into the pool."""
        with self._changed:
            self.taken -= 1
            self._returned = time.monotonic()
            if self.taken + len(self._free) < self._most:
                self._free.append(buffer)
            self._changed.notify()
