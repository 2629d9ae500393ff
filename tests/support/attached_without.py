"""Run as three learners by tests/faults/test_attach_deaths.py: one of them dies in the first epoch, and the others, who
wait for each other, train that one and the next to their ends."""

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from support.launched import report

EXAMPLES, BATCH, VICTIM, FATAL, RATE = 90, 4, 2, 4, 0.05
"""The victim dies before its gradient in step FATAL, counted from 0."""
DATA = TensorDataset(torch.arange(EXAMPLES), torch.linspace(-1, 1, EXAMPLES)[:, None] ** torch.arange(5))


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)


def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :3]).square().mean()  # type: ignore[no-any-return]


def values(model: nn.Module) -> list[float]:
    return [float(value) for p in model.parameters() for value in p.detach().flatten()]


def main(strategy: str) -> None:
    model, optimizer = made()
    session = roundelay.attach(model, optimizer, strategy, on_death="go-on", patience=60)
    loader: DataLoader[Any] = DataLoader(DATA, batch_sampler=session.sampler(DATA, batch_size=BATCH))
    epochs: list[list[int]] = []
    found = []
    for _ in range(2):
        trained: list[int] = []
        for step, (numbers, inputs) in enumerate(loader):
            if session.rank == VICTIM and step == FATAL:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss(model, inputs).backward()  # type: ignore[no-untyped-call]
            session.examples = len(numbers)
            optimizer.step()
            trained += numbers.tolist()
        epochs.append(trained)
        with session.consensus():
            found.append(values(model))
    living, lengths = list(session.living), len(loader)
    session.close()
    report(law="without", rank=session.rank, epochs=epochs, values=found, living=living, rounds=lengths)


if __name__ == "__main__":
    main(sys.argv[1])
