"""Waiting for what other threads and processes do."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `so()` is true; raise an error if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(1e-3)


@contextmanager
def meanwhile(*tasks: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Do the tasks, a thread each, while the body is done; then wait until they are done."""
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()


def together(*tasks: Callable[[], object]) -> None:
    """Do the tasks at the same time, a thread each; return when all are done."""
    with meanwhile(*tasks):
        pass
