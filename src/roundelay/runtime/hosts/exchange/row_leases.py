"""One exchange at a time for each row of this host, as on one host, though it takes a while.

An exchange between hosts reads a row, and writes what came of it some time later. If the row took part in another
exchange meanwhile, both would be halves of averages that never were: two learners who ask each other at the same moment
would swap their rows instead of averaging them, and so on for ever. (What the learner itself adds meanwhile is no
mixing, and does no harm: codec.py.)

So a row that is *under way* to another host takes part in nothing else until it is back. Rows go on their way only from
the lower rank to the higher (client.py turns requests round that would go down), and whoever waits for a row waits for
one of higher rank than all it keeps others waiting for: no circle of waits can close, and the row of highest rank never
travels. The centre counts as the highest.

This is the book of one host's own process. Learners see in the arena's table `away` which rows are under way.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LEASE_LOOK_SECONDS = 0.2
"""How often one who waits looks whether the one it waits for is given up."""


def never() -> bool:
    """Whoever has taken a row gives it back itself."""
    return False


@dataclass(frozen=True)
class _Holder:
    number: int
    given_up: Callable[[], bool]


class RowLeases:
    """Who has which row of this host. First come, first served."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._holders: dict[int, _Holder] = {}
        self._waiting: dict[int, deque[object]] = {}
        self._last = 0

    def take(self, row: int, seconds: float, given_up: Callable[[], bool] = never) -> int:
        """Wait for `row`, and have it until it is given back, or until somebody who wants it finds it `given_up`. The
        number of this flight, above 0.

        Raises:
            TimeoutError: it was not to be had within so many seconds.
        """
        ticket, deadline = object(), time.monotonic() + seconds
        with self._gate:
            waiting = self._waiting.setdefault(row, deque())
            waiting.append(ticket)
            try:
                while waiting[0] is not ticket or not self._free(row):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"row {row} is under way to another host for more than {seconds:g} s")
                    self._gate.wait(min(left, LEASE_LOOK_SECONDS))
                self._last += 1
                self._holders[row] = _Holder(self._last, given_up)
                return self._last
            finally:
                waiting.remove(ticket)
                self._gate.notify_all()

    def _free(self, row: int) -> bool:
        holder = self._holders.get(row)
        return holder is None or holder.given_up()

    def give(self, row: int, number: int) -> None:
        """Give `row` back; nothing, if flight `number` does not have it any more."""
        with self._gate:
            holder = self._holders.get(row)
            if holder is not None and holder.number == number:
                del self._holders[row]
                self._gate.notify_all()

    @contextmanager
    def still(self, row: int, seconds: float) -> Iterator[None]:
        """Meanwhile it is not under way.

        Raises:
            TimeoutError: as `take`.
        """
        number = self.take(row, seconds)
        try:
            yield
        finally:
            self.give(row, number)
