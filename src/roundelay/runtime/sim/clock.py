"""Virtual time: integer nanoseconds, and a serial number so that equal times keep the order in which they were asked
for."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """A heap of things to do. The total order (time, serial) is what makes two equal simulations equal.

    An action comes with its argument: making a closure for each would cost as much as the rest of an event.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[tuple[int, int, Action, Any]] = []
        self._serial = 0

    def at(self, time_ns: int, action: Action, what: Any = None) -> None:
        """Do `action(what)` at `time_ns`, after everything already asked for at that time."""
        if time_ns < self.now_ns:
            raise ValueError(f"{time_ns} ns lies before now ({self.now_ns} ns)")
        self._serial += 1
        heappush(self._heap, (time_ns, self._serial, action, what))

    def run(self, times: int) -> bool:
        """Do the next `times` things; False when there were not so many."""
        heap = self._heap
        for _ in range(times):
            if not heap:
                return False
            self.now_ns, _, action, what = heappop(heap)
            action(what)
        return True

    def forget(self) -> None:
        """Forget all that was asked for so far."""
        self._heap.clear()
