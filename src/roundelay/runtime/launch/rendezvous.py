"""Rendezvous of hosts: where the first one listens. The environment says so, or, under `torchrun`, the store that its
agent holds.

The store is torch.distributed's. Its agent listens on a network and lets anybody read and write, so an address there
carries a keyed hash (HMAC-SHA256) over the secret of the run, its name, and the place where it is said; one with none,
or a wrong one, is refused.
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
from roundelay.runtime.launch.addresses import Address
from roundelay.runtime.launch.world import SECRET_BYTES, HostPlace

COORDINATOR = "coordinator"
"""Name under which the first host of a run says where it listens."""
STORE_LOOK_SECONDS = 0.02
FACT_BYTES = 1 << 16
"""Length in bytes of the longest fact."""
DIGITS = 2 * hashlib.sha256().digest_size
"""Number of hexadecimal digits of a hash."""


def say_address(place: HostPlace, seconds: float, address: Address, what: str = COORDINATOR) -> None:
    """Write the address at which this host, the first, listens for purpose `what` into the store of `torchrun`, if
    there is one, for the other hosts.

    Raises:
        UserError: the store does not answer within `seconds`.
    """
    if place.hosted:
        text = json.dumps(dict(zip(("host", "port"), address, strict=True)))
        _store(place, seconds).set(what, _proof(place, what, text) + text)


def first_address(place: HostPlace, seconds: float, what: str = COORDINATOR) -> Address:
    """Return the address at which the first host listens for purpose `what`.

    Raises:
        UserError: the first host does not say so within `seconds`, or the store's entry was not written by a host of
            this run.
    """
    if not place.hosted:
        return place.address, place.port
    rank, store = place.ranks[0], _store(place, seconds)
    try:
        _wait(place, seconds, lambda: bool(store.check([what])), "rank 0 said nothing")
        raw = store.get(what)
    except (DistError, RuntimeError, ValueError) as error:
        raise _nobody(place, f"no host is there any more ({str(error).splitlines()[0]})") from error
    try:
        text = raw.decode() if len(raw) <= FACT_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    if not hmac.compare_digest(text[:DIGITS].encode(), _proof(place, what, text[DIGITS:]).encode()):
        raise UserError(
            f"rank {rank}: what the store at {place.address}:{place.port} holds as said by rank 0 ({what}) was not "
            "written with this run's secret. Is the secret the same on all hosts? If it is, somebody else writes to "
            "that store."
        )
    fact: dict[str, Any] = json.loads(text[DIGITS:])
    host, port = fact["host"], fact["port"]
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise UserError(f"rank {rank}: rank 0 says {fact} ({what}), which is no address.")
    return host, port


def _proof(place: HostPlace, what: str, text: str) -> str:
    said = json.dumps(["roundelay rendezvous", f"{place.address}:{place.port}", place.learners, what, text])
    return hmac.new(place.secret, said.encode(), hashlib.sha256).hexdigest()


def _wait(place: HostPlace, seconds: float, ready: Callable[[], bool], otherwise: str) -> None:
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > seconds:
            raise _nobody(place, f"{otherwise} for {seconds:.0f} s")
        time.sleep(STORE_LOOK_SECONDS)


@cache  # one store for all that is said in a process
def _store(place: HostPlace, seconds: float) -> Store:
    if len(place.secret) < SECRET_BYTES:
        raise UserError(f"rank {place.ranks[0]}: hosts that meet at a launcher's store need a secret.")
    # torch waits too, but fills the terminal with messages meanwhile
    _wait(place, seconds, lambda: _answers(place), "no answer")
    try:
        store = TCPStore(
            place.address,
            place.port,
            place.learners,
            is_master=False,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
    except (DistError, RuntimeError) as error:
        raise _nobody(place, str(error).splitlines()[0]) from error
    return PrefixStore("roundelay", store)


def _answers(place: HostPlace) -> bool:
    try:
        socket.create_connection((place.address, place.port), timeout=1).close()
    except OSError:
        return False
    return True


def _nobody(place: HostPlace, why: str) -> UserError:
    return UserError(
        f"rank {place.ranks[0]} of {place.learners} could not meet the others at {place.address}:{place.port}: {why}. "
        "Is rank 0 running, and do all hosts have the same MASTER_ADDR and MASTER_PORT?"
    )
