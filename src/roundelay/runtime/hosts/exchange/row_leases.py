"""Leases on the rows of this host, so that a row takes part in one exchange with other hosts at a time.

An exchange between hosts reads a row, and writes what came of it some time later. If the row took part in another
exchange meanwhile, both would be halves of averages that never were: two learners who ask each other at the same moment
would swap their rows instead of averaging them, and so on for ever. (What the learner itself adds meanwhile is no
mixing, and does no harm: codec.py.)

So whoever carries a row to another host, or applies the rule of another host's exchange to it, has the row's lease.
A row that is *in flight* is checked out until it is back; learners of this host see that in the arena's table `away`.
Where both rows of an exchange travel at once, both are in flight until each has come.

*Lock order.* Rows travel only from the lower rank to the higher (the centre counts as the highest), and while one is in
flight its lease is held by the thread that waits for a row of higher rank. All others hold a lease while they apply one
rule, and wait for nothing but the row's lock, or for the bytes of a row whose sender has it already. So no circle of
waits can close, and there is no deadlock. The one exception are exchanges that carry private vectors or ages: they
travel with their asker whichever its rank (strategies make them with the centre only), and the bound on every wait ends
a circle of them.

The leases also serialise what a learner's client carries for its own learner and for learners of other hosts, first
come, first served.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEASE_LOOK_SECONDS = 0.2
"""The longest time between two looks of one who waits."""


class RowLeases:
    """The leases of one host's process. First come, first served."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._holders: set[int] = set()
        self._waiting: dict[int, deque[object]] = {}
        self._last = 0

    @contextmanager
    def held(self, row: int, seconds: float, look: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for `row`, and have it meanwhile; the number of this lease, above 0.

        Args:
            look: called now and then while this waits; whatever it raises ends the wait.

        Raises:
            TimeoutError: it was not to be had within so many seconds.
        """
        number = self._take(row, seconds, look)
        try:
            yield number
        finally:
            with self._gate:
                self._holders.remove(row)
                self._gate.notify_all()

    def _take(self, row: int, seconds: float, look: Callable[[], None]) -> int:
        ticket, deadline = object(), time.monotonic() + seconds
        with self._gate:
            waiting = self._waiting.setdefault(row, deque())
            waiting.append(ticket)
            try:
                while waiting[0] is not ticket or row in self._holders:
                    look()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"row {row} has been in exchanges with other hosts for {seconds:g} s")
                    self._gate.wait(min(left, LEASE_LOOK_SECONDS))
                self._holders.add(row)
                self._last += 1
                return self._last
            finally:
                waiting.remove(ticket)
                self._gate.notify_all()
