"""Run as three learners by tests/faults/test_attach_returns.py, who wait for each other: one dies, with the process
that speaks to other hosts if it is the only one of its host (not where it is to die ALONE), is started again, and
comes back at a meeting of the others; or dies once more there, and comes back at a later one; or comes in the middle
of an epoch that the others have begun without it, and is let in at its end; or never comes. Or, "alone", the other
learner of its host, which leads, dies while it waits there: then both are started again, and come back to the third,
on another host."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay
from roundelay.attached import Session
from roundelay.runtime.attached.hosts.starting import host_process
from roundelay.runtime.attached.membership import Attendance
from roundelay.runtime.clocks import pause
from support.launched import report
from support.until import until

EXAMPLES, BATCH, EPOCHS, FATAL, MET, RATE = 90, 4, 3, 2, 5, 0.05
VICTIM = int(os.environ.get("VICTIM", "1"))
"""The victim dies before its gradient in step FATAL of the first epoch, counted from 0; the others meet before MET."""
BESIDE = 1
"""The learner on its host, if there is one and it dies too."""
PEERS = [one for one in os.environ.get("ROUNDELAY_PEERS", "").split(",") if one]
DATA = TensorDataset(torch.arange(EXAMPLES), torch.linspace(-1, 1, EXAMPLES)[:, None] ** torch.arange(5))


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return model, torch.optim.Adam(model.parameters(), lr=RATE)


def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :3]).square().mean()  # type: ignore[no-any-return]


def values(model: nn.Module) -> list[float]:
    return [float(value) for p in model.parameters() for value in p.detach().flatten()]


def meet_until_it_is_back(session: Session, folder: Path, others: Sequence[int] = ()) -> None:
    """Meet until the dead learner is back, all equally often: a learner let in at a meeting lives for all from then
    on."""
    dead = {VICTIM, *others}
    until(lambda: dead.isdisjoint(session.living), seconds=100.0)  # else one that has not heard yet would not meet
    while not dead <= {*session.living}:
        session.meet()
        pause(0.02)
    (folder / f"seen by {session.rank}").touch()


def meet_without_it(session: Session, folder: Path) -> None:
    """Meet while the victim waits, in an epoch that it is no part of."""
    (folder / "wanted").touch()
    attendance = session._learner.arena.view(Attendance)
    until(  # asking who lives lets others speak to it; the start of a process, on a busy machine
        lambda: VICTIM not in session.living and attendance.back[VICTIM] == 1, seconds=100.0
    )
    session.meet()
    assert VICTIM not in session.living


def die_beside_it(session: Session) -> None:
    """Die while the victim waits, which leaves no learner on this host that could let it in."""
    attendance = session._learner.arena.view(Attendance)
    until(lambda: VICTIM not in session.living and attendance.back[VICTIM] == 1, seconds=100.0)
    lose(whole_host=False)


def lose(whole_host: bool) -> None:
    if whole_host:
        os.kill(host_process().process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(strategy: str, folder: Path, how: str) -> None:
    model, optimizer = made()
    if how == "later" and (folder / "died").exists() and roundelay.rank() == VICTIM:
        until((folder / "wanted").exists, seconds=100.0)
    hosts = {"listen": PEERS[roundelay.rank()]} if PEERS else {}
    session = roundelay.attach(model, optimizer, strategy, on_death="go-on", patience=60, hosts=hosts)
    whole_host = session._learner._host_process is not None and os.environ["LOCAL_WORLD_SIZE"] == "1"
    whole_host = whole_host and "ALONE" not in os.environ
    if session.came_back and how == "again" and not (folder / "again").exists():
        (folder / "again").touch()
        others = set(range(session.learners)) - {VICTIM}  # one that sees it dead already would meet once more, alone
        until(lambda: all((folder / f"seen by {rank}").exists() for rank in others), seconds=100.0)
        lose(whole_host)
    sampler = session.sampler(DATA, batch_size=BATCH)
    loader: DataLoader[Any] = DataLoader(DATA, batch_sampler=sampler, num_workers=0)
    trained: list[list[int]] = [[] for _ in range(EPOCHS)]
    found, begun = [], sampler.epoch
    for epoch in range(begun, EPOCHS):
        for step, (numbers, inputs) in enumerate(loader):
            if not session.came_back and epoch == 0:
                if session.rank == VICTIM and step == FATAL:
                    (folder / "died").write_text(json.dumps(trained[0]))
                    lose(whole_host)
                if step == MET and how in ("comes", "again"):
                    meet_until_it_is_back(session, folder)
                if step == MET and how == "alone":
                    if session.rank == BESIDE:
                        die_beside_it(session)
                    meet_until_it_is_back(session, folder, [BESIDE])
            if how == "later" and not session.came_back and (epoch, step) == (1, MET):
                meet_without_it(session, folder)
            optimizer.zero_grad()
            loss(model, inputs).backward()  # type: ignore[no-untyped-call]
            session.examples = len(numbers)
            optimizer.step()
            trained[epoch] += numbers.tolist()
        if epoch == {"again": 0, "later": 1}.get(how) and not session.came_back:
            meet_until_it_is_back(session, folder)
        with session.consensus():
            found.append(values(model))
    living, rounds = list(session.living), len(loader)
    row, steps = session._learner.me.x.tolist(), session.steps
    session.close()
    report(
        law="back",
        rank=session.rank,
        trained=trained,
        values=found,
        row=row,
        steps=steps,
        living=living,
        rounds=rounds,
        begun=begun,
        came_back=session.came_back,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
