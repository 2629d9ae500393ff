"""The process that learner processes are forks of, which has torch loaded. It is multiprocessing's fork server, and
ends with the process that starts it.

No process may stay behind when this one is killed, learners and server that are stopped (SIGSTOP) at that moment
included: they cannot see that a pipe has ended. So the kernel is asked to kill the server with this process, and each
learner with the server, which it asks for when it begins (`end_with_server`).

multiprocessing's server ends with the last process that holds a certain pipe. It gives that to the learners too, so a
stopped one would keep it: each lets go of it.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker

from roundelay.core.parent import SIGNALS, die_with_parent

PARENT_VARIABLE = "ROUNDELAY_FORK_SERVER_OF"

_told = os.environ.pop(PARENT_VARIABLE, "")
_SERVER = os.getpid() if _told else 0
"""The server's process id, in the server and its forks."""
if _told:  # this is the server, which loads this file before anything that takes long
    with suppress(ValueError):
        die_with_parent(int(_told))


def start(preload: Sequence[str]) -> None:
    """Start the fork server, unless it runs already. Signals that are the parent's to answer are blocked in it, and so
    in all learners.

    Ctrl-C goes to every process of the terminal, and a scheduler's SIGTERM often to every process of the job. A fork
    server that ended would take all learners with it.

    Args:
        preload: modules that the server loads once, so that no learner has to.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, *preload])
    resource_tracker.ensure_running()  # before: it would unblock interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # The kernel would kill it with the thread that starts it; other threads end before their process does.
    if threading.current_thread() is threading.main_thread():
        os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(PARENT_VARIABLE, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_server() -> None:
    """Have this process, a fork of the server, end with it. Processes that it starts are no forks of that server."""
    held = vars(forkserver)["_forkserver"]
    if (alive := getattr(held, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        held._forkserver_alive_fd = None
    die_with_parent(_SERVER or os.getppid())
