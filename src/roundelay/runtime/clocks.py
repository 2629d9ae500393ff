"""Clocks for commands that must start at once: nothing here imports torch. The clock of a run is `base.wall_clock`."""

import time


def unix_clock() -> float:
    """Return seconds since 1970, for people and other hosts: it may be set back."""
    return time.time()


def steady_clock() -> float:
    """Return seconds since some moment: never set back."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)
