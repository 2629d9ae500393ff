"""The processor time of exchanges with other hosts: how often they may begin, so that learners keep the processor.

Where learners keep all cores of a host busy, whatever carries rows takes its time from them: the copies, the kernel's
work on packets, and what is pushed out of the caches, together about twice what the clocks of the carrying threads
show. So exchanges live on an allowance: a small share of the cores' time, and whatever time the cores are idle. While
more than that is spent, no new exchange is begun here, unless its learner already waits for it. On a host with a core
to spare, or whose learners compute on accelerators, the link alone decides.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

from roundelay.core.cores import cores, quota

MOST_SECONDS = 1.0
"""For so long an allowance may be saved up."""


def idle_seconds() -> float:
    """Return the seconds for which the cores this process may run on have been idle, summed, since the machine started;
    0 where that cannot be known."""
    try:
        mine = os.sched_getaffinity(0)
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0][3:].isdigit() and int(line[0][3:]) in mine)
    except (OSError, ValueError, IndexError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")


def left_over() -> list[Callable[[], float]]:
    """Return clocks of processor time that has gone unused, in seconds since some moment: by the cores, and, where this
    process's control group is limited, by the group."""
    granted = quota()
    if granted is None:
        return [idle_seconds]

    def unused() -> float:
        try:
            return granted.cores * time.monotonic() - granted.used_seconds()
        except (OSError, ValueError):
            return 0.0

    return [idle_seconds, unused]


class CpuBudget:
    """One host's allowance. Safe to use from any thread.

    Args:
        share: of each core's time, above 0; 1 is no limit worth the name.
        processors: how many cores this host's processes may use; None: as the system says.
        now: seconds of a clock.
        idle: seconds for which processor time has gone unused, by several accounts, of which the least counts; None: as
            the system says.
    """

    def __init__(
        self,
        share: float,
        processors: int | None = None,
        now: Callable[[], float] = time.monotonic,
        idle: Sequence[Callable[[], float]] | None = None,
    ) -> None:
        self._rate = share * (processors or cores())
        self._now, self._idle, self._gate = now, left_over() if idle is None else idle, threading.Lock()
        self._left, self._at, self._idle_at = 0.0, now(), [account() for account in self._idle]

    def spent(self, seconds: float) -> None:
        """Note that so much processor time went into an exchange, or an answer to one."""
        with self._gate:
            self._left -= seconds

    def pause(self) -> float:
        """Return the seconds after which, at the latest, the next exchange may begin; 0: now."""
        with self._gate:
            now, idle = self._now(), [account() for account in self._idle]
            unused = min(after - before for after, before in zip(idle, self._idle_at, strict=True))
            earned = self._rate * (now - self._at) + max(0.0, unused)
            self._left = min(self._rate * MOST_SECONDS, self._left + earned)
            self._at, self._idle_at = now, idle
            return max(0.0, -self._left / self._rate)
