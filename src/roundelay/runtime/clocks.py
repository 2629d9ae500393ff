"""Clocks for commands that must start at once: nothing here imports torch. The clock of a run is `base.wall_clock`."""

import time


def unix_clock() -> float:
    """Return seconds since 1970, for people and other hosts, by a clock that may be set back."""
    return time.time()


def steady_clock() -> float:
    """Return seconds since some moment, by a clock that is never set back."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Sleep for `seconds`."""
    time.sleep(seconds)
