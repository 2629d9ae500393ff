"""Run as two learners by tests/faults/test_attach_returns.py, which are started again when they have failed: rank 0 is
killed in the middle of the second epoch, and comes back to rank 1."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from support.launched import report
from support.until import until

EXAMPLES, EPOCHS, BATCH = 48, 2, 4
VICTIM = 0


class Loop:
    """Somebody's loop, and what it has trained in which epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trained = folder, list[list[int]]()
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        saves = folder / "saves"
        self.session = roundelay.attach(self.model, optimizer, "adpsgd", patience=60, resume=saves)
        self.sampler = self.session.sampler(EXAMPLES, BATCH)
        self.rank, self.momentum = self.session.rank, bool(optimizer.state)
        if self.session.came_back:
            (folder / "back").touch()

    def train(self) -> None:
        data = TensorDataset(torch.arange(EXAMPLES))
        for epoch in range(self.sampler.epoch, EPOCHS):
            loader: DataLoader[Any] = DataLoader(data, batch_sampler=self.sampler)
            for number, (numbers,) in enumerate(loader):
                torch.autograd.backward(self.model(numbers[:, None].float() / EXAMPLES).mean())
                if epoch == number == 1:
                    self.trouble()
                self.session.step()
                self.trained += [[epoch, one] for one in numbers.tolist()]
            self.session.save(self.folder / "saves")

    def trouble(self) -> None:
        """The other one waits until the victim is back, so that there is something left to train."""
        if self.rank == VICTIM and not self.session.came_back:
            (self.folder / "died").write_text(json.dumps(self.trained))
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: VICTIM in self.session.living and (self.folder / "back").exists())  # asking lets others in

    def values(self) -> list[float]:
        return [float(p.detach().sum()) for p in self.model.parameters()]


def main() -> None:
    loop = Loop(Path(sys.argv[1]))
    with loop.session:
        loop.train()
        with loop.session.consensus():
            evaluated = loop.values()
        living = list(loop.session.living)
    report(
        law="returned",
        rank=loop.rank,
        trained=loop.trained,
        values=[evaluated, loop.values()],
        living=living,
        came_back=loop.session.came_back,
        momentum=loop.momentum,
        steps=loop.session.summary()["steps"],
    )


if __name__ == "__main__":
    main()
