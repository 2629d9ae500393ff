"""SIGTERM is noted, not obeyed at once: the loop of a learner ends between two steps.

Only where nobody else has a handler, and only in the main thread, where Python allows one. A second SIGTERM ends the
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


class _TerminationRequest:
    """One for all sessions of the process."""

    listeners = 0
    asked = False
    asked_at = 0.0
    process = 0


_bell = _TerminationRequest()


def listen() -> None:
    """Listen: from now on SIGTERM is noted. To be undone by `ignore`, as often."""
    _bell.listeners += 1
    if _bell.listeners == 1:
        _bell.asked, _bell.process = False, 0
    mine = threading.current_thread() is threading.main_thread()
    if mine and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _bell.process = os.getpid()
        signal.signal(signal.SIGTERM, _note)


def ignore() -> None:
    """Ignore with one listener fewer; with the last, SIGTERM means again what it meant before."""
    _bell.listeners = max(0, _bell.listeners - 1)
    if not _bell.listeners and signal.getsignal(signal.SIGTERM) is _note:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _bell.process = 0


def asked() -> bool:
    """Return True if this process has been asked to end."""
    return _bell.asked


def asked_too() -> bool:
    """Return the same, when another learner has just ended because it was: the signal that a launcher sends to all may
    still be on its way."""
    deadline = time.monotonic() + SIGNAL_SECONDS
    while _bell.process and not _bell.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    return _bell.asked


def _note(number: int, frame: FrameType | None) -> None:
    again = _bell.asked and time.monotonic() > _bell.asked_at + SAME_SECONDS
    if again or os.getpid() != _bell.process:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if not _bell.asked:
        _bell.asked, _bell.asked_at = True, time.monotonic()
