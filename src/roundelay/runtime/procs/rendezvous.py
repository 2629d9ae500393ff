"""How learners that somebody else has started find the arena: over a torch.distributed store, at the start only.

Rank 0 makes the arena and says where it is; the others open it. What is said is JSON. Under `torchrun` its agent holds
the store; else the process of rank 0 does, in the way torch.distributed does it, so that a script may use both.
"""

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from roundelay.core.errors import UserError
from roundelay.runtime.procs.world import World

PAUSE_SECONDS = 0.02


class Rendezvous:
    """The meeting point of a world. Asking again for what was said before gives the same answer.

    Raises:
        UserError: from every method, when nobody comes within the patience; names who waits, for whom, and where.
    """

    def __init__(self, world: World, patience_seconds: float) -> None:
        self._world, self._seconds = world, patience_seconds
        self._store = _store(world, patience_seconds)

    def say(self, what: str, fact: dict[str, Any]) -> None:
        """Tell the others."""
        self._store.set(what, json.dumps(fact))

    def hear(self, what: str, whom: int = 0) -> dict[str, Any]:
        """What rank `whom` says, once it has."""
        try:
            _wait(self._world, self._seconds, lambda: bool(self._store.check([what])), f"rank {whom} said nothing")
            fact: dict[str, Any] = json.loads(self._store.get(what))
        except (DistError, RuntimeError, ValueError) as error:
            raise _nobody(self._world, f"nobody is there any more ({str(error).splitlines()[0]})") from error
        return fact

    def check(self) -> None:
        """Has the launcher seen somebody end who should come?"""
        _check(self._world)


def _check(world: World) -> None:
    for rank, status in world.ended().items():
        raise UserError(f"rank {world.rank}: learner {rank} ended with status {status} before all had attached.")


def _wait(world: World, seconds: float, ready: Callable[[], bool], otherwise: str) -> None:
    started = time.monotonic()
    while not ready():
        _check(world)
        if time.monotonic() - started > seconds:
            raise _nobody(world, f"{otherwise} for {seconds:.0f} s")
        time.sleep(PAUSE_SECONDS)


@cache  # one store serves all sessions of a process
def _store(world: World, seconds: float) -> Store:
    host = world.rank == 0 and not world.hosted
    if not host:  # torch waits too, but fills the terminal with what it waits for
        _wait(world, seconds, lambda: _answers(world), "nobody answered")
    try:
        store = TCPStore(
            world.address, world.port, world.learners, is_master=host, timeout=timedelta(seconds=seconds),
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except (DistError, RuntimeError) as error:
        raise _nobody(world, str(error).splitlines()[0]) from error
    return PrefixStore("roundelay", store)


def _answers(world: World) -> bool:
    try:
        socket.create_connection((world.address, world.port), timeout=1).close()
    except OSError:
        return False
    return True


def _nobody(world: World, why: str) -> UserError:
    return UserError(
        f"rank {world.rank} of {world.learners} could not meet the others at {world.address}:{world.port}: {why}. Is "
        "rank 0 running, and do all learners have the same MASTER_ADDR and MASTER_PORT?"
    )
