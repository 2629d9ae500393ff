"""Rendezvous of hosts that `torchrun` has started: the store that its agent holds, at the start only.

The store is torch.distributed's. Its agent listens on a network and lets anybody read and write, so every fact carries
a keyed hash (HMAC-SHA256) over the secret of the run, the name of the fact, and the place where it is said; a fact with
none, or a wrong one, is refused. Facts are JSON.
"""

import hashlib
import hmac
import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from roundelay.core.errors import UserError
from roundelay.runtime.launch.world import SECRET_BYTES, World

STORE_LOOK_SECONDS = 0.02
FACT_BYTES = 1 << 16
"""Length in bytes of the longest fact."""
DIGITS = 2 * hashlib.sha256().digest_size
"""Number of hexadecimal digits of a hash."""


class Rendezvous:
    """The meeting point of hosts, a store of facts by rank. Facts never change.

    Args:
        world: the world of hosts, with the run's secret.

    Raises:
        UserError: from every method, when no host comes within the patience; names the one that waits, those it waits
            for, and the place. Also when a fact in the store was not written by a host of this run.
    """

    def __init__(self, world: World, patience_seconds: float) -> None:
        if len(world.secret) < SECRET_BYTES:
            raise UserError(f"rank {world.rank}: hosts that meet at a launcher's store need a secret.")
        self._world, self._seconds = world, patience_seconds
        self._store = _store(world, patience_seconds)

    def say(self, what: str, fact: dict[str, Any]) -> None:
        """Tell the other hosts a fact, named `what`."""
        text = json.dumps(fact)
        self._store.set(what, self._proof(what, text) + text)

    def hear(self, what: str, whom: int = 0) -> dict[str, Any]:
        """Wait for the fact named `what` of rank `whom`; return it."""
        try:
            _wait(self._world, self._seconds, lambda: bool(self._store.check([what])), f"rank {whom} said nothing")
            raw = self._store.get(what)
        except (DistError, RuntimeError, ValueError) as error:
            raise _nobody(self._world, f"nobody is there any more ({str(error).splitlines()[0]})") from error
        try:
            text = raw.decode() if len(raw) <= FACT_BYTES else ""
        except UnicodeDecodeError:
            text = ""
        if not hmac.compare_digest(text[:DIGITS].encode(), self._proof(what, text[DIGITS:]).encode()):
            raise UserError(
                f"rank {self._world.rank}: what the store at {self._where} holds as said by rank {whom} ({what}) was "
                "not written with this run's secret. Is the secret the same on all hosts? If it is, somebody else "
                "writes to that store."
            )
        fact = json.loads(text[DIGITS:])
        if not isinstance(fact, dict):
            raise UserError(f"rank {self._world.rank}: what rank {whom} said ({what}) is not what a host says.")
        return fact

    def hear_address(self, what: str) -> tuple[str, int]:
        """Wait for the fact `what` of rank 0, which is an address, {"host": ..., "port": ...}; return (host, port)."""
        fact = self.hear(what)
        host, port = fact.get("host"), fact.get("port")
        if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 1 << 16:
            raise UserError(f"rank {self._world.rank}: rank 0 says {fact} ({what}), which is no address.")
        return host, port

    @property
    def _where(self) -> str:
        return f"{self._world.address}:{self._world.port}"

    def _proof(self, what: str, text: str) -> str:
        said = json.dumps(["roundelay rendezvous", self._where, self._world.learners, what, text])
        return hmac.new(self._world.secret, said.encode(), hashlib.sha256).hexdigest()


def _wait(world: World, seconds: float, ready: Callable[[], bool], otherwise: str) -> None:
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > seconds:
            raise _nobody(world, f"{otherwise} for {seconds:.0f} s")
        time.sleep(STORE_LOOK_SECONDS)


@cache  # one store for all that is said in a process
def _store(world: World, seconds: float) -> Store:
    # torch waits too, but fills the terminal with messages meanwhile
    _wait(world, seconds, lambda: _answers(world), "nobody answered")
    try:
        store = TCPStore(
            world.address,
            world.port,
            world.learners,
            is_master=False,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
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
        "rank 0 running, and do all hosts have the same MASTER_ADDR and MASTER_PORT?"
    )
