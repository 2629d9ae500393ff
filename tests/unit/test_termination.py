"""SIGTERM to a process that has a session: noted once, however often it is passed on; later it ends the process."""

import os
import signal

import pytest

from roundelay.runtime.launch import termination


def test_a_signal_that_is_passed_on_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler sends it to a launcher and to its learners, who hear of it twice."""
    termination.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.asked()
        killed: list[int] = []
        monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
        monkeypatch.setattr(termination, "SAME_SECONDS", -1.0)
        termination._note(signal.SIGTERM, None)
        assert killed == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        termination.ignore()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
