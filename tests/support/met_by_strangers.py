"""Run as two learners by tests/faults/test_strangers.py: rank 1 is late, and a stranger uses the time."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import roundelay
from roundelay.runtime.launch.local_rendezvous import _socket_name
from roundelay.runtime.launch.world import read_world
from support.launched import report
from support.until import until

INTERNET = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")


def rank_0_is_there() -> bool:
    """Return True if rank 0 has come to the place where learners meet."""
    return "@" + _socket_name(read_world(), 0)[1:] in Path("/proc/net/unix").read_text()


def overwrite(victim: str) -> None:
    """Attack as a process that reaches the store: write there that rank 0's memory is the file `victim`."""
    client = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, wait_for_workers=False)
    store, key = PrefixStore("roundelay", client), "arena 0"
    until(lambda: store.check([key]) or rank_0_is_there())
    facts = json.loads(store.get(key)) if store.check([key]) else {}
    store.set(key, json.dumps({**facts, "path": victim}))


def internet_sockets(process: str) -> list[str]:
    """Return the lines of /proc/net for the sockets of a process."""
    mine = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        link = os.readlink(descriptor) if descriptor.is_symlink() else ""
        if link.startswith("socket:["):
            mine.add(link[8:-1])
    found = []
    for protocol in INTERNET:
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            if line.split()[9] in mine:
                found.append(f"{protocol} {line}")
    return found


def main() -> None:
    if len(sys.argv) > 1 and roundelay.rank() == 1:
        overwrite(sys.argv[1])
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "adpsgd", patience=60) as session:
        sockets = internet_sockets("self")
        if roundelay.rank() == 0 and "ROUNDELAY_JOB" in os.environ:
            sockets += internet_sockets(str(os.getppid()))
        model(torch.ones(2, 5)).sum().backward()
        session.step()
    report(law="met", rank=session.rank, sockets=sockets, values=float(model.weight.detach().sum()))


if __name__ == "__main__":
    main()
