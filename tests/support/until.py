"""Waiting for what other threads and processes do."""

import threading
import time
from collections.abc import Callable


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Come back when it is so; an error if that takes absurdly long."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(1e-3)


def together(*tasks: Callable[[], object]) -> None:
    """Do these at once, a thread each; come back when all are done."""
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
