"""Run as learners by tests/faults/test_attach_returns.py: some are killed in the middle of the second epoch, alone or
with all that runs on their host, are started again, and come back to the others; or one joins them then."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.runtime.attached.hosts.starting import host_process
from support.launched import report
from support.until import until

EXAMPLES, EPOCHS, BATCH = 48, 2, 4


class Batches:
    """Batches of numbers without a length."""

    def __iter__(self) -> Iterator[list[int]]:
        return ([*range(first, first + BATCH)] for first in range(0, EXAMPLES, BATCH))


class Loop:
    """Somebody's loop, and what it has trained in which epoch."""

    def __init__(self, folder: Path, victims: dict[int, str], shares: bool) -> None:
        self.folder, self.victims, self.trained = folder, victims, list[list[int]]()
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        saves = folder / "saves"
        self.session = roundelay.attach(self.model, optimizer, "adpsgd", patience=60, resume=saves)
        self.sampler: Any = self.session.share(Batches()) if shares else self.session.sampler(EXAMPLES, BATCH)
        self.rank, self.momentum = self.session.rank, bool(optimizer.state)

    def train(self) -> None:
        data = TensorDataset(torch.arange(EXAMPLES))
        for epoch in range(self.sampler.epoch, EPOCHS):
            loader: DataLoader[Any] = DataLoader(data, batch_sampler=self.sampler)
            for number, (numbers,) in enumerate(loader):
                torch.autograd.backward(self.model(numbers[:, None].float() / EXAMPLES).mean())
                if (epoch, number) == (0, 1):  # so that each has a state of its optimizer to save
                    until(self.all_have_trained)
                if epoch == 1 and number == (0 if self.session.came_back else 1):
                    self.trouble()
                self.session.step()
                self.trained += [[epoch, one] for one in numbers.tolist()]
            self.session.save(self.folder / "saves")

    def all_have_trained(self) -> bool:
        steps = self.session.summary()["steps"]
        return all(own for rank, own in enumerate(steps) if self.victims.get(rank) != "joins")

    def trouble(self) -> None:
        """The others wait until the victims are back, and who joins is there: so there is something left to train."""
        if self.rank in self.victims and not self.session.came_back:
            (self.folder / f"died{self.rank}").write_text(json.dumps(self.trained))
            if self.victims[self.rank] == "host":
                os.kill(host_process().process.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.session.came_back:
            (self.folder / f"back{self.rank}").touch()
        until(  # asking who lives lets others in
            lambda: (
                {*self.victims} <= {*self.session.living}
                and all((self.folder / f"back{rank}").exists() for rank in self.victims)
            ),
            seconds=100.0,  # the start of a process, on a machine that may be busy
        )

    def values(self) -> list[float]:
        return [float(p.detach().sum()) for p in self.model.parameters()]


def main() -> None:
    victims = {int(rank): what for rank, what in json.loads(sys.argv[2]).items()}
    loop = Loop(Path(sys.argv[1]), victims, sys.argv[3:] == ["share"])
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
