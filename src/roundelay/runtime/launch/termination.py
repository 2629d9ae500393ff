"""SIGTERM is noted, not obeyed at once: the loop of a learner ends between two steps.

Only where no other code has a handler, and only in the main thread, where Python allows one. A second SIGTERM ends the
process at once, unless it follows so soon that it is the same one: a cluster's scheduler sends it to all processes of a
job, the launcher among them, which passes it on. Forked children (those of a data loader, say) inherit the handler, and
are ended by it.
"""

import os
import signal
import threading
import time
from types import FrameType

EXIT_STATUS = 128 + signal.SIGTERM
"""Exit status of a process ended by SIGTERM, as shells have it."""
SIGNAL_SECONDS = 1.0
SAME_SECONDS = 5.0
"""A second SIGTERM within this time is the first one, passed on."""


class TerminationRequest:
    """The state of a request to end by SIGTERM, one for all sessions of the process."""

    listeners = 0
    asked = False  # to end
    asked_at = 0.0
    process = 0


request = TerminationRequest()


def listen() -> None:
    """Note SIGTERM from now on, instead of obeying it. Each call is undone by one of `ignore`."""
    request.listeners += 1
    if request.listeners == 1:
        request.asked, request.process = False, 0
    mine = threading.current_thread() is threading.main_thread()
    if mine and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        request.process = os.getpid()
        signal.signal(signal.SIGTERM, _note)


def ignore() -> None:
    """Undo one call of `listen`; after the last, SIGTERM has its old handler again."""
    request.listeners = max(0, request.listeners - 1)
    if not request.listeners and signal.getsignal(signal.SIGTERM) is _note:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        request.process = 0


def await_signal() -> None:
    """Wait a little for a launcher's SIGTERM to all learners, after another learner has ended by it."""
    deadline = time.monotonic() + SIGNAL_SECONDS
    while request.process and not request.asked and time.monotonic() < deadline:
        time.sleep(0.01)


def _note(number: int, frame: FrameType | None) -> None:
    again = request.asked and time.monotonic() > request.asked_at + SAME_SECONDS
    if again or os.getpid() != request.process:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if not request.asked:
        request.asked, request.asked_at = True, time.monotonic()
