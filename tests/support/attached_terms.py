"""Run as two learners by tests/faults/test_attach_deaths.py: some are sent SIGTERM in the middle.

both    by rank 0, in its step 5; rank 1 comes to the end of its step 5 no sooner
one     rank 1 alone, in its step 8
looks   each by itself, rank 0 in its step 5 and rank 1 in its step 8, and the loop looks
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import roundelay
from roundelay.runtime.base import LearnerDied
from support.launched import report
from support.until import until

STEPS = 40


def main(strategy: str, how: str) -> None:
    note = Path(tempfile.gettempdir()) / f"roundelay-terms-{os.getppid()}"  # which process is rank 1
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if roundelay.rank() == 1:
        note.write_text(str(os.getpid()))
    session = roundelay.attach(model, optimizer, strategy, patience=60)
    rank, error = session.rank, ""
    sent = {"both": {0: 5}, "one": {1: 8}, "looks": {0: 5, 1: 8}}[how]
    told = note.with_suffix(".told")  # rank 0 has sent it to both
    try:
        with session:
            for number in range(STEPS):
                if how == "looks" and session.stopping:
                    break
                model(torch.full((2, 1), float(number + rank))).mean().backward()
                if sent.get(rank) == number:
                    os.kill(os.getpid(), signal.SIGTERM)
                    if how == "both":
                        os.kill(int(note.read_text()), signal.SIGTERM)
                        told.touch()
                elif how == "both" and number == sent[0]:
                    until(told.exists)
                optimizer.step()
    except LearnerDied as found:
        error = str(found)
    finally:
        values = [float(p.detach().sum()) for p in model.parameters()]
        report(law="term", rank=rank, steps=session.steps, error=error, values=values)
        if rank == 1:
            note.unlink()
            told.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
