"""Run as several learners by tests/faults/test_attach_deaths.py: one of them dies in the middle of an epoch."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.runtime.base import LearnerDied
from support.attached_laws import on_a_device
from support.launched import report

EXAMPLES = 120


def main(strategy: str, victim: int) -> None:
    rank = roundelay.rank()
    if strategy == "absent" and rank == victim:
        sys.exit(7)
    if strategy == "frozen":  # seeded differently, and never compared as trained ones are
        torch.manual_seed(rank)
        parts = nn.Sequential(nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1))
        roundelay.attach(parts, torch.optim.SGD(parts[1].parameters(), lr=1e-3), patience=60)
    note = Path(tempfile.gettempdir()) / f"roundelay-{os.environ['ROUNDELAY_JOB'][:16]}"
    data = TensorDataset(torch.arange(EXAMPLES))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = roundelay.attach(model, optimizer, "adpsgd" if strategy == "absent" else strategy, patience=60)
    # A data loader's worker is forked: it must not keep the dead learner's locks.
    others = DataLoader(data, num_workers=1, multiprocessing_context="fork")
    keep = iter(others)
    next(keep)
    loader: DataLoader[Any] = DataLoader(data, batch_sampler=session.sampler(data, batch_size=4))
    trained: list[int] = []
    try:
        for (numbers,) in loader:
            model(numbers[:, None].float() / EXAMPLES).mean().backward()
            if rank == victim and len(trained) == 8:
                note.write_text(" ".join(map(str, trained)))
                os.kill(os.getpid(), signal.SIGKILL)
            while strategy == "adpsgd" and rank != victim and victim in session.living:
                time.sleep(0.01)  # so that there is something left to draw when it has died
            session.step()
            trained += numbers.tolist()
        with session.consensus():
            values = [float(p.detach().sum()) for p in model.parameters()]
    except LearnerDied as error:
        again = ""
        try:
            session.step()
        except LearnerDied as same:
            again = f"{type(same).__name__}: {same}"
        report(law="death", rank=rank, error=f"{type(error).__name__}: {error}", again=again)
        session.close()
        return
    report(
        law="death",
        rank=rank,
        trained=trained,
        values=values,
        living=list(session.living),
        dead_trained=[int(number) for number in note.read_text().split()],
    )
    session.close()
    note.unlink(missing_ok=True)


if __name__ == "__main__":
    if "mapped" in sys.argv:
        on_a_device(mapped=True)
    main(sys.argv[1], int(sys.argv[2]))
