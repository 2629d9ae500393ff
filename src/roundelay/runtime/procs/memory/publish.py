"""Publishing: the one function by which a process tells others, without a lock, that data it wrote before may be read.

A process writes data (a vector, a weight, a text) and then a number that says so; others wait for the number and then
read the data. Two things could go wrong: the stores could become visible in another order than they were made, and the
reader's loads could be made in another order than they stand.

Compilers do not matter here: every store and load of numpy and torch is a call that CPython makes when it comes to it.
An aligned store of 8 bytes is never seen by halves. Processors do matter:

    x86-64    stores are seen in the order they were made, loads are made in order (total store order): nothing is to
              be done. Copies that go past the caches, as glibc's of large vectors, end with a fence of their own
    others    may reorder both. Before the number is stored, the kernel is asked to let every running thread of all
              processes with an arena pass a full memory barrier (membarrier, GLOBAL_EXPEDITED). A load that sees the
              number is made after that barrier, for before it the number was not stored; so the loads behind it are
              made after the barrier too, and the data were stored before. Readers need no fence of their own

Locks need none of this: the kernel's locks order loads and stores under them, on every processor. And a process that
dies between two stores has made all before the place where it stopped, and none behind it.
"""

import ctypes
import os
import platform
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from roundelay.core.errors import UserError

IN_ORDER = ("x86_64",)
"""Machines, as `platform.machine` names them, whose stores and loads are seen in order."""
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
"""Number of the system call, by machine."""
_FENCE, _REGISTER = 1 << 1, 1 << 2  # MEMBARRIER_CMD_GLOBAL_EXPEDITED and its registration, of <linux/membarrier.h>

_fence: Callable[[], None] | None = None


def prepare_publishing() -> None:
    """Make `publish` safe in this process. Every process calls this before it shares memory; it may be called again.

    Raises:
        UserError: this machine's processor may reorder stores, and its kernel has no fence for it; names the machine.
    """
    global _fence  # noqa: PLW0603 chosen once in a process, by the machine it runs on
    machine = platform.machine()
    if machine in IN_ORDER:
        _fence = None
        return
    try:
        if machine not in MEMBARRIER:
            raise OSError("Roundelay knows no fence for it")
        _fence = kernel_fence(MEMBARRIER[machine])
    except OSError as error:
        raise UserError(
            f"learners share memory, and a processor of type {machine} may show them each other's stores in another "
            f"order than they were made ({error}). Use a machine of type x86_64, or of type aarch64 with Linux 4.16 or "
            "newer; --runtime sim works everywhere."
        ) from error


def kernel_fence(number: int) -> Callable[[], None]:
    """Return a function that makes a full memory barrier in all processes that have called this one; `number` is that
    of the system call.

    Raises:
        OSError: the kernel has no such system call, or does not allow it.
    """
    call: Any = ctypes.CDLL(None, use_errno=True).syscall

    def ask(command: int) -> None:
        if call(number, command, 0, 0):
            code = ctypes.get_errno()
            raise OSError(code, f"membarrier: {os.strerror(code)}")

    ask(_REGISTER)
    return lambda: ask(_FENCE)


def publish(table: NDArray[Any], index: int | slice | list[int] | tuple[int, int], value: Any) -> None:
    """Store `value` in `table` at `index`; a reader that sees it sees all that this thread stored before."""
    if _fence is not None:
        _fence()
    table[index] = value
