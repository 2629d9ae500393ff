"""Laws of sessions that are saved and resumed, run as two learners with those of attached_laws.py."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.attached import Session
from roundelay.strategies import STRATEGIES
from support.launched import report
from support.until import until

EXAMPLES, BATCH, BEFORE = 22, 3, 2
"""Examples of an epoch, of a minibatch, and minibatches of a learner before the save."""
SYNCHRONOUS = [name for name, strategy in STRATEGIES.items() if strategy.traits.synchronous and name != "sgd"]
SOME = ("ssgd", "bmuf", "easgd-sync", "delayed-gradient")
"""Of them, where vectors are in several places: on several hosts, or on devices."""
OTHERS = ("bmuf", "easgd-sync", "adpsgd", "adpsgd,weights=progress", "ssgd to adpsgd", "easgd to bmuf")
"""Strategies that go on with other learners, some under another strategy and back."""


def job() -> str:
    """A text that the learners of this start have in common, and no others: one process has started them all."""
    return str(os.getppid())


@contextmanager
def directory(name: str, own: bool = False) -> Iterator[Path]:
    """A directory for saves: the same for all learners, or each its `own`."""
    rank = roundelay.rank() if own else ""
    path = Path(tempfile.gettempdir()) / f"roundelay-saves-{job()}" / f"{name}{rank}"
    yield path
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # there are others in it
        path.parent.rmdir()


def network(device: str, seed: int = 0) -> nn.Module:
    """Statistics, random numbers, and all that."""
    torch.manual_seed(seed)
    layers = nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
    return nn.Sequential(*layers).to(device)


class Loop:
    """Somebody's loop, which goes through epochs, and can be left and gone on with."""

    def __init__(self, strategy: str, device: str, resume: Path | None = None, seed: int = 0) -> None:
        self.device, self.model, self.trained = device, network(device, seed), list[int]()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.session: Session = roundelay.attach(self.model, optimizer, strategy, patience=60.0, resume=resume)
        if self.session.resumed is not None:
            self.schedule.load_state_dict(self.session.resumed["schedule"])
        self.data = TensorDataset(torch.arange(EXAMPLES))
        self.sampler = self.session.sampler(self.data, BATCH, seed=3)
        self.batches = self._batches()

    def _batches(self) -> Iterator[list[int]]:
        for epoch in range(self.sampler.epoch, 2):
            self.sampler.set_epoch(epoch)
            own = torch.Generator()  # else beginning an epoch draws one of the model's random numbers
            loader: DataLoader[Any] = DataLoader(self.data, batch_sampler=self.sampler, generator=own)
            for (numbers,) in loader:
                yield numbers.tolist()

    def train(self, most: int = 10**9) -> None:
        """So many minibatches, or as many as there are."""
        for number, numbers in enumerate(self.batches, 1):
            x = torch.tensor(numbers, device=self.device)[:, None].float()
            inputs = torch.cat([x.sin(), x.cos()], 1)
            self.session.optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(self.model(inputs), (x[:, 0] % 2).long()))
            self.session.step(examples=len(numbers))
            self.schedule.step()
            self.trained += numbers
            if number == most:
                return

    def save(self, path: Path) -> None:
        self.session.save(path, {"schedule": self.schedule.state_dict()})

    def values(self) -> list[float]:
        state = self.model.state_dict()
        return torch.cat([state[name].reshape(-1).float() for name in sorted(state)]).tolist()


def resumed_is_straight(strategies: Sequence[str], device: str, own: bool) -> None:
    """Saved and resumed in the middle of an epoch, a training goes on as if nothing had happened, bit for bit."""
    for strategy in strategies:
        with directory(strategy, own) as path:
            loop = Loop(strategy, device)
            with loop.session:
                loop.train(BEFORE)
                loop.save(path)
                loop.train()
            again = Loop(strategy, device, resume=path, seed=5)
            with again.session:
                again.train()
            rest = loop.trained[BEFORE * BATCH :]
            report(
                law=f"resumed {strategy}",
                rank=roundelay.rank(),
                straight=loop.values(),
                values=again.values(),
                rest=rest,
                trained=again.trained,
                steps=[loop.session.steps, again.session.steps],
            )


@contextmanager
def alone() -> Iterator[None]:
    """Have each learner be alone while the body lasts, as if no launcher had started several."""
    names = [name for name in os.environ if name.endswith(("WORLD_SIZE", "RANK"))]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(kept)


def with_other_learners(device: str) -> None:
    """A save of two in the middle of an epoch, resumed by one, maybe under another strategy, whose save is resumed by
    two."""
    for both in OTHERS:
        strategy, _, other = both.partition(" to ")
        rank, found = roundelay.rank(), dict[str, Any]()
        with directory(f"other {both}") as path:
            two = Loop(strategy, device)
            with two.session:
                two.train(BEFORE - rank)
                next(two.batches)  # drawn, and not trained
                two.save(path)
                with two.session.consensus():
                    found["saved"] = two.values()
            with alone():
                one = Loop(other or strategy, device, resume=path, seed=5)
                with one.session:
                    found["one"] = one.values()
                    one.train(2)
                    one.save(path / f"by {rank}")
            until(lambda: any((path / "by 0").glob("save-*/*.json")))
            again = Loop(strategy, device, resume=path / "by 0", seed=6)
            with again.session:
                again.train()
        found["trained"] = [two.trained, one.trained, again.trained]
        report(law=f"others {both}", rank=rank, **found)


def main(device: str, kind: str) -> None:
    """All of them; on several hosts with a directory for each."""
    if kind == "mapped":
        return
    resumed_is_straight(SYNCHRONOUS if kind == "here" else SOME, device, own=kind == "hosts")
    if kind in ("here", "hosts"):
        with_other_learners(device)
