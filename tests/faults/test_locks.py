"""Row locks: they exclude, they wait, and they do not stay with the dead."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Exchange
from roundelay.runtime.procs.memory.locks import ByteLock, Patience, QueueLock
from roundelay.runtime.rows import NoLock, Row, reach

HOLDER = """
import os, sys
from roundelay.runtime.procs.memory.locks import ByteLock
from roundelay.runtime.procs.memory.locks import Patience
lock = ByteLock(os.open(sys.argv[1], os.O_RDWR), 3, "row 3", Patience(9, 10))
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("locks")
    os.ftruncate(descriptor, 64)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def holder(file: int) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock on byte 3."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"/proc/{os.getpid()}/fd/{file}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()


def lock(file: int, number: int, seconds: float) -> ByteLock:
    return ByteLock(file, number, f"row {number}", Patience(0, seconds))


def test_a_held_lock_is_waited_for_and_the_wait_is_bounded_and_named(
    file: int, holder: "subprocess.Popen[str]"
) -> None:
    lock(file, 2, 0.1).acquire()  # another byte is another lock
    with pytest.raises(TimeoutError, match=r"learner 0 has waited .* for row 3"):
        lock(file, 3, 0.1).acquire()


def test_a_killed_holder_gives_its_lock_back(file: int, holder: "subprocess.Popen[str]") -> None:
    holder.send_signal(signal.SIGKILL)
    mine = lock(file, 3, 30)
    mine.acquire()
    mine.release()


def test_the_lock_of_the_queue_excludes_threads_of_its_process_and_is_not_given_back_for_another(file: int) -> None:
    """To the kernel all threads are one holder; other processes are as an open file of their own is."""
    mine = QueueLock(file, 3, "the queue", Patience(0, 0.1))
    elsewhere = ByteLock(os.open(f"/proc/self/fd/{file}", os.O_RDWR), 3, "the queue", Patience(1, 0.1))
    with mine, ThreadPoolExecutor(1) as another:
        with pytest.raises(TimeoutError, match=r"learner 0 has waited .* for the queue"):
            another.submit(mine.acquire).result()
        assert not elsewhere.try_acquire()
    with elsewhere, pytest.raises(TimeoutError):
        mine.acquire()
    mine.acquire()


def test_a_row_left_half_written_is_noticed_and_the_next_writer_mends_its_version() -> None:
    versions = np.zeros(2, np.int64)
    rows = [Row(rank, torch.full((4,), float(rank)), versions, NoLock()) for rank in range(2)]
    rows[0].begin()  # and the writer dies
    torn = [rows[0].torn]
    reach(rows[1], rows[0], Exchange(0, pair_average_))
    torn.append(rows[0].torn)
    assert torn == [True, False]
    assert [row.version for row in rows] == [2, 1]
    assert rows[0].vector.tolist() == rows[1].vector.tolist() == [0.5] * 4
