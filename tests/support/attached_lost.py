"""Run as the learners of three hosts by tests/faults/test_attach_deaths.py: the third is lost as a whole, and then the
first."""

import os
import signal
import time

import torch
from torch import nn

import roundelay
from roundelay.attached import Session
from roundelay.runtime.attached.hosts.starting import host_process
from roundelay.runtime.base import LearnerDied
from support.launched import report


def lose_host() -> None:
    """All processes of this host end at once."""
    os.kill(host_process().process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def step(session: Session) -> None:
    torch.autograd.backward(session.module(torch.ones(1, 1)).mean())
    session.step()
    time.sleep(0.01)


def main() -> None:
    model = nn.Linear(1, 1)
    session = roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), "adpsgd", patience=60)
    while 2 in session.living:
        step(session)
        if session.rank == 2 and session.steps == 5:
            lose_host()
    living, error = list(session.living), ""
    try:
        with session.consensus():
            pass
        if session.rank == 0:
            report(law="lost", rank=0, living=living)
            lose_host()
        while True:
            step(session)
    except LearnerDied as found:
        error = str(found)
    session.close()
    report(law="lost", rank=session.rank, living=living, error=error)


if __name__ == "__main__":
    main()
