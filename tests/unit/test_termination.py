"""SIGTERM to a process that has a session: noted once, however often it is passed on; later it ends the process. And
processes that leave signals to another."""

import os
import signal

import pytest

from roundelay.runtime.launch import termination
from support.processes import run_python


def test_a_signal_that_is_passed_on_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler sends it to a launcher and to its learners, who hear of it twice."""
    termination.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.request.asked
        killed: list[int] = []
        monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
        monkeypatch.setattr(termination, "SAME_SECONDS", -1.0)
        termination._note(signal.SIGTERM, None)
        assert killed == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        termination.ignore()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


LEAVES = """
import os, signal
from roundelay.core.parent import leave_signals
leave_signals(signal.SIGHUP)
for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"):
    os.kill(os.getpid(), signal.Signals[name])
print("lives")
"""


def test_a_process_that_leaves_signals_to_another_outlives_them() -> None:
    """Slurm sends SIGUSR1 to all processes of a job: one that learners need must not end before they do."""
    assert run_python("-c", LEAVES).stdout == "lives\n"
