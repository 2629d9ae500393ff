"""A script of test_groups.py: learners of several processes, or of one, as the mesh says."""

import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import roundelay
from roundelay.advice.throughput import Candidate
from roundelay.algorithms import gain
from roundelay.attached import choosing
from roundelay.core.errors import UserError
from roundelay.runtime.base import LearnerDied
from support.launched import report

IN_TURN = "adpsgd,rate=as-is"
"""Its learners take their steps one after the other, so that it comes to the same every time."""
STRATEGIES = ("ssgd", "bsp,period=3", "diloco,period=2", "delay-by-one", "ssgd,rate=gain", IN_TURN)
STEPS, ROWS, BATCHES = 6, 8, 11
CORRUPT = "TEST_CORRUPT"
"""Variable: a learner and its step, in which the last of its processes computes wrongly."""
WHOLE = sys.argv[1:2] != [] and sys.argv[1].endswith("w")
"""Each process has the whole network."""


def mesh_of(size: int) -> DeviceMesh | None:
    """Return the mesh of this learner's processes; None: it is one process without a mesh."""
    if not size:
        return None
    shape = (dist.get_world_size() // size, size)
    return init_device_mesh("cpu", shape, mesh_dim_names=("learner", "shard"))["shard"]


def build(mesh: DeviceMesh | None) -> nn.Module:
    """Return a network whose sizes no group divides evenly; with a mesh, sharded over it or wrapped for it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    if mesh is not None and WHOLE:
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
    if mesh is not None:
        for part in (model[0], model[2]):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def values(model: nn.Module) -> list[float]:
    """Return the elements of all parameters, gathered from the group."""
    for part in model.modules():
        getattr(part, "reshard", lambda: None)()
    found: list[Tensor] = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in found]).tolist()


def vectors_held(model: nn.Module) -> int:
    """Return the number of vectors, as long as all parameters together, that this process keeps."""
    count, _ = sum(p.numel() for p in model.parameters()), gc.collect()
    held = [one for one in gc.get_objects() if type(one) is Tensor and one.numel() == count]
    return len({one.data_ptr() for one in held})


class Loop:
    """One session over a model of its own."""

    steps = 0
    noise = 0.0
    """Added to inputs, times a number of this process's own."""

    def __init__(self, mesh: DeviceMesh | None, strategy: str, **options: Any) -> None:
        self.place, self.size = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
        self.model = build(mesh)
        self.inner: Any = getattr(self.model, "module", self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02, weight_decay=0.1)
        self.in_turn = strategy == IN_TURN and not (WHOLE and self.place)  # others wait for the first
        name, _, rate = strategy.partition(",rate=")
        options |= {"rate": rate} if rate else {}
        options |= {"record": sys.argv[4]} if sys.argv[4:] else {}
        self.session = roundelay.attach(self.model, self.optimizer, name, patience=60, **options)

    def step(self, number: int, bad: Sequence[int] = ()) -> None:
        """Train this process's part of a minibatch; its loss is NaN in the processes at these places."""
        if self.in_turn:
            while sum(self.session.summary()["steps"]) < number * self.session.learners + self.session.rank:
                time.sleep(1e-3)
        drawn = torch.Generator().manual_seed(1000 * self.session.rank + number)
        x, y = torch.randn(ROWS, 5, generator=drawn), torch.randn(ROWS, 3, generator=drawn)
        x += self.noise * torch.rand(())
        mine = slice(self.place, None, self.size)
        self.optimizer.zero_grad()
        loss = (self.model(x[mine]) - y[mine]).square().mean()
        self.steps += 1
        if os.environ.get(CORRUPT) == f"{self.session.rank}:{self.steps}" and self.place == self.size - 1:
            loss = loss * (1 + 1e-5)
        (loss * float("nan") if self.place in bad else loss).backward()
        self.optimizer.step()

    def look(self) -> float:
        """Say what the model makes of a point, by a forward without a backward, which leaves the root gathered."""
        with torch.no_grad():
            return float(self.model(torch.ones(1, 5)).sum())

    def said(self, law: str, **facts: Any) -> None:
        report(law=f"{law} {self.place}", rank=self.session.rank, **facts)


def laws(mesh: DeviceMesh | None, strategies: Sequence[str] = STRATEGIES) -> None:
    for strategy in strategies:
        loop = Loop(mesh, strategy)
        with loop.session as session:
            for number in range(STEPS):
                loop.step(number)
            with session.consensus():
                looks = [loop.look()]
                middle = values(loop.model)
            loop.step(STEPS)
            if strategy != IN_TURN:  # the other may change the row meanwhile
                looks.append(loop.look())
            loop.step(STEPS + 1)
        looks.append(loop.look())
        loop.said(strategy, looks=looks, middle=middle, values=values(loop.model), work=session.summary()["work"])


def auto(mesh: DeviceMesh | None) -> None:
    """A strategy that the first learner chooses, by gradients that its processes compute together; and an option that
    is none."""
    vars(choosing)["candidates"] = lambda _: [Candidate("ssgd"), Candidate("diloco,period=50")]
    rank = roundelay.rank()  # of the learner, under `roundelay launch --group`
    wrong: dict[str, Any] = {"second": 1}
    for given in ({}, wrong):
        model, gradients, place = build(mesh), 0, 0 if mesh is None else mesh.get_local_rank()

        def probe() -> None:
            nonlocal gradients
            gradients += 1
            model(torch.ones(2, 5)).sum().backward()  # noqa: B023 called at once

        try:
            session = roundelay.attach(model, torch.optim.AdamW(model.parameters()), "auto", probe=probe, **given)
        except UserError as error:
            report(law=f"auto fails {place}", rank=rank, error=str(error))
        else:
            report(law=f"auto {place}", rank=rank, label=session.strategy.label, gradients=gradients)
            session.close()


def shared(mesh: DeviceMesh | None) -> None:
    """Train batches that go to a free learner, with a gradient that is not finite in one process; save, and go on."""
    loop = Loop(mesh, "adpsgd")
    with loop.session as session:
        seen = []
        for batch in session.share(list(range(BATCHES))):
            seen.append(batch)
            loop.step(batch)
    loop.said("shared", seen=seen)

    loop = Loop(mesh, "ssgd")
    with loop.session:
        loop.step(0, bad=(loop.size - 1,))
        loop.step(1)
    loop.said("skipped", values=values(loop.model))

    folder = Path(sys.argv[3])
    loop = Loop(mesh, "bsp,period=2")
    Loop.noise = 0.1
    torch.manual_seed(10 * loop.session.rank + loop.place)
    with loop.session as session:
        for number in range(3):
            loop.step(number)
        held = vectors_held(loop.model)
        kept = session.save(folder, {"rank": session.rank})
        for number in range(3, 6):
            loop.step(number)
    loop.said("went on", values=values(loop.model), held=held, folder=str(kept.relative_to(folder)))
    torch.manual_seed(0)
    loop = Loop(mesh, "bsp,period=2", resume=folder)
    assert loop.session.resumed == {"rank": loop.session.rank}
    with loop.session:
        for number in range(3, 6):
            loop.step(number)
    loop.said("resumed", values=values(loop.model))


def ends(mesh: DeviceMesh | None) -> None:
    """The last process of learner 1 is killed, under a strategy that cannot go on without it. Before that the module
    is called around its wrapper, whose gradients are no averages."""
    loop = Loop(mesh, "ssgd")
    try:
        loop.model = loop.inner
        loop.step(0)
    except UserError as error:
        loop.said("not averaged", error=str(error))
    loop.session.abandon()

    loop = Loop(mesh, "ssgd")
    try:
        with loop.session as session:
            for number in range(100):
                if number == 3 and session.rank == 1 and loop.place == loop.size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                loop.step(number)
    except LearnerDied as error:
        loop.said("ends", died=error.rank)


def deaths(mesh: DeviceMesh | None) -> None:
    """The last process of learner 1 is killed, once; learner 0 goes on until learner 1 is back."""
    loop, folder = Loop(mesh, "adpsgd"), Path(sys.argv[3])
    session, number, until = loop.session, 0, time.monotonic() + 100
    with session:
        done = torch.zeros(1)
        while not done and time.monotonic() < until:
            loop.step(number)
            number += 1
            if session.rank == 1 and number == 5:
                if session.came_back:
                    (folder / "back").touch()
                elif loop.place == loop.size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            done.fill_((folder / "back").exists())
            dist.broadcast(done, 0)  # processes of a learner end with the same step
    loop.said("deaths", values=values(loop.model), back=session.came_back)


if __name__ == "__main__":
    vars(gain)["WITHHELD"] = 0  # else these steps have no gain
    size = int(sys.argv[1].removesuffix("w"))
    if size:
        dist.init_process_group("gloo")
    between_hosts = partial(laws, strategies=STRATEGIES[:-1])  # nobody knows there whose turn it is
    modes: dict[str, Any] = {"laws": laws, "auto": auto, "between hosts": between_hosts, "shared": shared, "ends": ends}
    modes |= {"deaths": deaths}
    for mode in sys.argv[2].split(","):
        modes[mode](mesh_of(size))
    if size:
        dist.destroy_process_group()
