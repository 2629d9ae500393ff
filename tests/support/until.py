"""Waiting for what other threads and processes do."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Come back when it is so; an error if that takes absurdly long."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(1e-3)


@contextmanager
def meanwhile(*tasks: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Do these, a thread each, while the body is done; then wait until they are done."""
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()


def together(*tasks: Callable[[], object]) -> None:
    """Do these at once, a thread each; come back when all are done."""
    with meanwhile(*tasks):
        pass
