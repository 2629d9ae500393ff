"""Run as several learners by tests/laws/test_attach_sharing.py: loops over batches that `session.share` gives out."""

import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import roundelay
from roundelay.attached import Session
from roundelay.core.errors import UserError
from roundelay.runtime.attached.membership import Attendance
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.procs.coordination.passes import ENDLESS, PassTables
from support.cuts import lhotse_cuts
from support.launched import report
from support.until import until

BATCHES, EPOCHS, CUTS = 30, 2, 90
KINDS = (("stream", 0), ("stream", 2), ("lhotse", 0), ("loader", 0))
"""Sources, and workers of the loader that what is shared is given to."""
MANY = 20
"""Steps of a fast learner in one of a slow one."""
STEPS_MEANWHILE = 12


class Stream:
    """Batches without a length, in another order in each epoch."""

    def __init__(self, seed: int = 0) -> None:
        self.epoch, self._seed = 0, seed

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[str]]:
        own = torch.Generator().manual_seed(self._seed + self.epoch)
        return ([str(number)] for number in torch.randperm(BATCHES, generator=own).tolist())


class Names:
    """A dataset whose items, asked for by batch, are the names of the examples in the batch."""

    def __getitem__(self, batch: Any) -> list[str]:
        return [one if isinstance(one, str) else one.id for one in batch]


class Loop:
    """Somebody's loop over batches of names."""

    def __init__(self, strategy: str, kind: str, folder: Path, workers: int, resume: Path | None = None) -> None:
        self.model, self.workers = nn.Linear(1, 1), workers
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.session: Session = roundelay.attach(self.model, self.optimizer, strategy, patience=60.0, resume=resume)
        self.whole = kind == "loader"
        source: Any = self.loader(Stream(), 0) if self.whole else Stream() if kind == "stream" else sampler(folder)
        self.shared = self.session.share(source)

    def loader(self, batches: Any, workers: int) -> Any:
        context, names = "fork" if workers else None, Names()
        options: Any = {"batch_size": None, "num_workers": workers, "multiprocessing_context": context}
        return DataLoader(names, sampler=batches, **options)  # type: ignore[arg-type]

    def batches(self) -> Any:
        """Return the batches of the next epoch, loaded by all learners, or only by the one that each goes to."""
        return self.shared if self.whole else self.loader(self.shared, self.workers)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 1)).sum().backward()
        self.optimizer.step()

    @property
    def steps(self) -> list[int]:
        found: list[int] = self.session.summary()["steps"]
        return found


def sampler(folder: Path, **options: Any) -> Any:
    from lhotse.dataset import DynamicBucketingSampler  # noqa: PLC0415  one kind needs it

    mine = {"world_size": 1, "rank": 0, **options}
    return DynamicBucketingSampler(lhotse_cuts(folder, CUTS), max_duration=9, num_buckets=3, shuffle=True, **mine)


def own(folder: Path) -> Path:
    """A folder of this learner's."""
    mine = folder / f"{roundelay.rank()}"
    mine.mkdir(exist_ok=True)
    return mine


def go_through(loop: Loop, slow: bool) -> list[list[str]]:
    """One epoch. The slow learner does not take its second step before the other has taken many; it is slow in the
    first epoch."""
    found = list[list[str]]()
    for names in loop.batches():
        loop.step()
        found.append(list(names))
        if slow:
            until(lambda: loop.steps[0] >= MANY)
    loop.session.meet()
    return found


def each_once(folder: Path) -> None:
    """Learner 1 is slow."""
    for strategy in ("adpsgd", "ssgd"):
        for kind, workers in KINDS:
            loop = Loop(strategy, kind, own(folder), workers)
            slow = strategy == "adpsgd" and loop.session.rank == 1
            with loop.session:
                epochs = [go_through(loop, slow) for _ in range(EPOCHS)]
            law = f"once {strategy} {kind} {workers}"
            report(law=law, rank=loop.session.rank, epochs=epochs, next=loop.shared.epoch)


def other_order() -> None:
    """Learner 1 shuffles by another seed."""
    model = nn.Linear(1, 1)
    said = ""
    try:
        with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), patience=60.0) as session:
            for _ in session.share(Stream(seed=7 * session.rank)):
                model(torch.ones(1, 1)).sum().backward()
                session.step()
            session.meet()
    except (UserError, LearnerDied) as error:
        said = str(error)
    report(law="other order", rank=roundelay.rank(), said=said)


class Chance:
    """Batches in an order that is drawn from Python's random numbers, as the loop of learner 1 draws from them too."""

    def __iter__(self) -> Iterator[list[str]]:
        names = list(map(str, range(BATCHES)))
        random.shuffle(names)
        return ([name] for name in names)


def by_chance() -> None:
    """Two passes, of which the first has one order on all learners."""
    random.seed(0)
    model = nn.Linear(1, 1)
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), "ssgd", patience=60.0) as session:
        shared = session.share(Chance())
        for _ in range(2):
            for _ in shared:
                if session.rank:
                    random.random()
                model(torch.randn(1, 1)).sum().backward()
                session.step()
            session.meet()


def dealt_by_rank() -> None:
    """Learner 0 has its batches, comes to a meeting, and waits there while learner 1 trains the rest."""
    model = nn.Linear(1, 1)
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), patience=60.0) as session:
        met = session._learner.arena.view(Attendance).met
        for number in range(STEPS_MEANWHILE):
            if session.rank == 1 and number == 0:
                until(lambda: met[0] > met[1])
            model(torch.randn(1, 1)).sum().backward()
            session.step()
        session.meet()
        spent = [asdict(one) for one in session._learner.counts.spent()]
    report(law="dealt", rank=session.rank, spent=spent)


SPEAKERS = "aaaaaabbcccc"
"""Of each example of `speakers_apart`."""


def endless(loader: "DataLoader[Any]") -> Iterator[Any]:
    while True:
        yield from loader


def speakers_apart() -> None:
    """Each learner has a loader over its own speakers, as docs/attach.md says: a and c, or b alone."""
    owner = {speaker: number % 2 for number, speaker in enumerate(sorted({*SPEAKERS}))}
    for strategy in ("ssgd", "adpsgd"):
        model = nn.Linear(1, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        trained = list[int]()
        with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy, patience=60.0) as session:
            mine = [number for number, speaker in enumerate(SPEAKERS) if owner[speaker] == session.rank]
            loader = DataLoader(Subset(TensorDataset(torch.arange(12.0)[:, None]), mine), batch_size=2)
            steps = session.share(range(20)) if strategy == "adpsgd" else range(len(loader))
            for _, (x,) in zip(steps, endless(loader), strict=False):
                model.zero_grad()
                (model(x) - 1).square().mean().backward()
                session.step(len(x))
                trained += x[:, 0].int().tolist()
        report(law=f"apart {strategy}", rank=session.rank, trained=trained, weight=float(model.weight))


def save(folder: Path, strategy: str, workers: int) -> None:
    """Save in the middle of an epoch."""
    loop, trained = Loop(strategy, "stream", folder, workers), list[str]()
    with loop.session:
        for names in loop.batches():
            loop.step()
            trained += names
            if len(trained) == 5 + 2 * loop.session.rank:
                break_here = loop.session.save(folder / "saves")
                assert break_here.name
                break
    report(law="saved", rank=loop.session.rank, trained=trained)


def resume(folder: Path, strategy: str, workers: int) -> None:
    """Resume the save, and train the rest of its epoch."""
    loop = Loop(strategy, "stream", folder, workers, folder / "saves")
    with loop.session:
        assert loop.shared.epoch == 0
        rest, after = ([name for names in go_through(loop, False) for name in names] for _ in range(2))
    report(law="resumed", rank=loop.session.rank, trained=rest, next=after)


def die(folder: Path, workers: int, late: bool) -> None:
    """The last learner is killed in the middle of a step, with more drawn ahead if there are workers; it has said what
    it had trained. If `late`, another has found by then that there is nothing left to draw."""
    loop, trained = Loop("adpsgd", "stream", folder, workers), list[str]()
    session = loop.session
    victim, following = session.learners - 1, session._learner.arena.view(PassTables).next_index

    def over() -> bool:
        return not late or bool((following == ENDLESS).any())

    def may_go_on() -> bool:
        return victim not in session.living or (loop.steps[victim] == 3 and not over())

    for names in loop.batches():
        loop.optimizer.zero_grad()
        loop.model(torch.ones(1, 1)).sum().backward()
        if session.rank == victim and len(trained) == 3:
            until(over)
            (folder / "trained").write_text(" ".join(trained))
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: session.rank == victim or may_go_on())
        loop.optimizer.step()
        trained += names
    session.close()
    report(law="death", rank=session.rank, trained=trained)


def main(what: str, folder: Path, *arguments: str) -> None:
    if what == "laws":
        each_once(folder)
        by_chance()
        other_order()
        dealt_by_rank()
        speakers_apart()
    elif what == "die":
        die(folder, int(arguments[0]), "late" in arguments)
    else:
        (save if what == "save" else resume)(folder, arguments[0], int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
