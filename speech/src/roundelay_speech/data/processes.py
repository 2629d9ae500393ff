"""Worker processes for speech: as many as cores, one thread each, results in order, no trace left of them.

Each worker gets what it needs for good when it starts (`initializer`), and then batches of utterances.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from roundelay.core.errors import UserError
from roundelay.core.parent import die_with_parent
from roundelay.core.script import SpawnWithoutScript, of_the_script

B = TypeVar("B")
R = TypeVar("R")

# Read by OpenBLAS, MKL and OpenMP when a process loads them.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """A running pool."""

    def __init__(self, pool: ProcessPoolExecutor, width: int) -> None:
        self._pool, self._width = pool, width

    def in_order(self, function: Callable[[B], R], batches: Iterable[B]) -> Iterator[R]:
        """Yield function(batch) for every batch, in order; batches are taken only as fast as they are worked on.

        Raises:
            UserError: a worker was killed.
        """
        pending: deque[Future[R]] = deque()
        try:
            for batch in batches:
                pending.append(self._pool.submit(function, batch))
                if len(pending) > 2 * self._width:  # bounded: the batches of a whole corpus do not fit in memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise UserError("A worker process was killed, probably for want of memory. Use fewer workers.") from error


@contextmanager
def start_workers(workers: int, initializer: Callable[..., None], *initargs: Any) -> Iterator[Workers]:
    """Start processes, each of which calls `initializer(*initargs)` first; they end with the block.

    Raises:
        UserError: they do not start.
    """
    # Not fork: the caller may run threads (torch does), and a fork of a threaded process can hang.
    context = multiprocessing.get_context("spawn") if of_the_script(initializer) else SpawnWithoutScript()
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(initializer, initargs))
    with one_thread_each():  # for as long as the pool may start processes, which is until its end
        try:
            try:
                pool.submit(os.getpid).result()
            except BrokenProcessPool as error:
                raise UserError("Worker processes do not start; what they printed above says why.") from error
            yield Workers(pool, workers)
        except KeyboardInterrupt:  # what they are at is not waited for
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise
        finally:
            # Only the pool's own thread may cancel: it fails on a future that another thread cancelled before workers
            # died, prints a traceback, and leaves the others waiting.
            pool.shutdown(cancel_futures=True)


def _begin(initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
    # An interrupt from the keyboard goes to every process; the parent alone answers it and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        # A parent killed outright cannot end its workers, which would wait for ever.
        die_with_parent(parent.pid)
    initializer(*initargs)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started inside compute with one thread: numpy has no call for it, only the environment at
    its start."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
