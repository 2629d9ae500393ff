"""Worker processes for speech: as many as cores, one thread each, results in order, no trace left of them.

Each worker may make an object that lasts when it starts, and then gets batches of utterances.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.parent import die_with_parent
from roundelay.core.script import SpawnWithoutScript, of_the_script

B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")

# Read by OpenBLAS, MKL and OpenMP when a process loads them.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """A running pool of worker processes."""

    def __init__(self, pool: ProcessPoolExecutor, width: int) -> None:
        self._pool, self._width = pool, width

    def in_order(self, function: Callable[..., R], batches: Iterable[B]) -> Iterator[R]:
        """Yield function(batch) for every batch, or function(kept, batch) where a worker keeps an object, in order;
        batches are taken only as fast as they are worked on.

        Raises:
            UserError: a worker was killed.
        """
        pending: deque[Future[R]] = deque()
        with _killed_is_said():
            for batch in batches:
                pending.append(self._pool.submit(_work, function, batch))
                if len(pending) > 2 * self._width:  # bounded: the batches of a whole corpus do not fit in memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def alone(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call a function in one of the workers, with one thread and without the object it keeps; return the result.
        Raises as `in_order`."""
        with _killed_is_said():
            return self._pool.submit(function, *arguments, **named).result()


@contextmanager
def _killed_is_said() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise UserError("A worker process was killed, probably for want of memory. Use fewer workers.") from error


class Here:
    """A stand-in for workers that works in this process, with the object to be kept, if there is one."""

    def __init__(self, *kept: Any) -> None:
        self._kept = kept

    def in_order(self, function: Callable[..., R], batches: Iterable[B]) -> Iterator[R]:
        """Yield function(batch), or function(kept, batch), for every batch, in order."""
        return (function(*self._kept, batch) for batch in batches)


def batched(items: Iterable[B], most: float, size: Callable[[B], float] = lambda _: 1) -> Iterator[list[B]]:
    """Yield items in batches, each until its total `size` reaches `most`, and the rest."""
    batch: list[B] = []
    total = 0.0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= most:
            yield batch
            batch, total = [], 0.0
    if batch:
        yield batch


@contextmanager
def start_workers(workers: int, make: Callable[..., object] | None = None, *arguments: Any) -> Iterator[Workers]:
    """Start processes, 0 for as many as there are cores, each of which keeps `make(*arguments)` if that is given; they
    end with the block.

    Raises:
        UserError: the processes do not start.
    """
    # Not fork: the caller may run threads (torch does), and a fork of a threaded process can hang.
    context = multiprocessing.get_context("spawn") if make is None or of_the_script(make) else SpawnWithoutScript()
    workers = workers or cores()
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(make, arguments))
    with one_thread_each():  # for as long as the pool may start processes, which is until its end
        try:
            try:
                pool.submit(os.getpid).result()
            except BrokenProcessPool as error:
                raise UserError("Worker processes do not start; their output above says why.") from error
            yield Workers(pool, workers)
        except KeyboardInterrupt:  # their present work is not waited for
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise
        finally:
            # Only the pool's own thread may cancel: it fails on a future that another thread cancelled before workers
            # died, prints a traceback, and leaves the others waiting.
            pool.shutdown(cancel_futures=True)


_KEPT: list[Any] = []  # the object of a worker process, if it has one


def _work(function: Callable[..., R], batch: object) -> R:
    return function(*_KEPT, batch)


def _begin(make: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    # An interrupt from the keyboard goes to every process; the parent alone answers it and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        # A parent killed outright cannot end its workers, which would wait for ever.
        die_with_parent(parent.pid)
    if make is not None:
        _KEPT.append(make(*arguments))


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes started within the `with` compute with one thread each, by variables that numpy reads."""
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
