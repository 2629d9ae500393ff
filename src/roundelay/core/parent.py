"""Processes that end with the process that started them, however that ends, and leave signals to it."""

import ctypes
import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a run to end. Terminals and schedulers send them to all of its processes; one of them answers."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def leave_signals(*more: signal.Signals) -> None:
    """Leave SIGNALS, and `more`, to the process of this host that answers them; this one ends with it."""
    for number in (*SIGNALS, *more):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now if it has ended. Linux only: elsewhere it does
    nothing.

    Call it in the child, as early as can be. The kernel's signal ends a stopped process too, which could not notice the
    end of a pipe. The parent of which the kernel speaks is the *thread* that started the child: start it from one that
    lives as long as its process, such as the main thread. A child of the child is told nothing.

    Args:
        parent: process id of the parent, as the parent knows it: one that died before this call has left the child to
            another.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
