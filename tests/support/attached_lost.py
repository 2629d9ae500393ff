"""Run as the learners of three hosts by tests/faults/test_attach_deaths.py: the first is lost as a whole, comes back
where hosts know of each other, and then the second is lost, which leads by then."""

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
from roundelay.attached import Session
from roundelay.runtime.attached.hosts.starting import host_process
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.hosts.control.succession import may_be_led_by_another
from roundelay.runtime.procs.coordination.passes import PassTables
from support.launched import report
from support.until import until

EXAMPLES, BATCH = 120, 4
LAST = {0: 3, 1: 6}
"""Minibatches after which a learner's host is lost, by its rank."""
BACK = 4
"""Minibatches after which the first host is back."""
DRAWN = {0: 4 + 3 + 3, 1: 4 + 7 + 6 - 1}
"""Minibatches of the epoch that are drawn by then, one of them twice; without the one that who is back holds then."""
PEERS = [one for one in os.environ.get("ROUNDELAY_PEERS", "").split(",") if one]


def lose_host() -> None:
    """All processes of this host end at once."""
    os.kill(host_process().process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def drawn(session: Session) -> int:
    """Minibatches that are drawn, as far as this host has heard."""
    return int(session._learner.arena.view(PassTables).next_index.max())


def main(strategy: str, folder: Path) -> None:
    data, model = TensorDataset(torch.arange(EXAMPLES)), nn.Linear(1, 1)
    hosts = {"listen": PEERS[roundelay.rank()]} if PEERS else {}
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    if roundelay.rank() == 0 and (folder / "0").exists():  # it is no part of a meeting of the others
        until(lambda: all((folder / f"met-{rank}").exists() for rank in (1, 2)), seconds=100.0)
    session = roundelay.attach(model, sgd, strategy, patience=60, hosts=hosts)
    back = session.came_back
    loader: DataLoader[Any] = DataLoader(data, batch_sampler=session.sampler(data, BATCH))
    trained: list[int] = []
    error = ""
    try:
        for number, (numbers,) in enumerate(loader):
            torch.autograd.backward(model(numbers[:, None].float() / EXAMPLES).mean())
            if back and number == 0:
                until(lambda: drawn(session) == DRAWN[1] + 1)  # it is the next, again
                (folder / "next-knows-1").touch()
                until(lambda: 1 not in session.living)
            if PEERS and not back and number == BACK:
                until(lambda: 0 in session.living, seconds=100.0)  # the start of a process, on a busy machine
            for victim, last in LAST.items() if not back else ():
                said = folder / f"next-knows-{victim}"
                if number == last and session.rank == victim:
                    (folder / f"{victim}").write_text(json.dumps(trained))
                    until(said.exists)
                    lose_host()
                if number == last - 1 and session.rank > victim:  # so that there is something left to draw
                    if session.rank == victim + 1 and not (PEERS and victim):
                        if may_be_led_by_another(session.strategy, goes_on=False):
                            until(lambda victim=victim: drawn(session) == DRAWN[victim])  # type: ignore[misc]
                        said.touch()
                    until(lambda victim=victim: victim not in session.living)  # type: ignore[misc]
            session.step()
            trained += numbers.tolist()
            if number == LAST[0] and not back:
                with session.consensus():
                    pass
                (folder / f"met-{session.rank}").touch()
        with session.consensus():
            pass
    except LearnerDied as found:
        error = str(found)
        session.abandon()
    living = list(session.living)
    session.close()
    report(law="lost", rank=session.rank, living=living, trained=trained, error=error, back=back)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
