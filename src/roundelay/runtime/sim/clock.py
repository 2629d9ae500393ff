"""Virtual time: integer nanoseconds, and a serial number so that equal times keep the order in which they were asked
for."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """A heap of things to do. The total order (time, serial) is what makes two equal simulations equal."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[tuple[int, int, Action]] = []
        self._serial = 0

    def at(self, time_ns: int, action: Action) -> None:
        """Do `action` at `time_ns`, after everything already asked for at that time."""
        if time_ns < self.now_ns:
            raise ValueError(f"{time_ns} ns lies before now ({self.now_ns} ns)")
        self._serial += 1
        heapq.heappush(self._heap, (time_ns, self._serial, action))

    def tick(self) -> bool:
        """Do the next thing; False when there is none."""
        if not self._heap:
            return False
        self.now_ns, _, action = heapq.heappop(self._heap)
        action()
        return True
