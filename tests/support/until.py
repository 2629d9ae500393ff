"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Come back when it is so; an error if that takes absurdly long."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(1e-3)
