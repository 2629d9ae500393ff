"""Terms that all hosts of a run have in common, and what each says of itself when it comes.

Legend: P parameters.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.runtime.procs.driver import OnDeath
from roundelay.strategies.base import Strategy

CONTROL, CHAIN, MIX, EXCHANGE = ROLES = ("control", "chain", "mix", "exchange")
"""Roles of links: of a host's first one to the coordinator, of those for means, for mixes and for exchanges."""

EXCHANGE_SHARE = 0.04
"""Share of a busy core's time for exchanges, unless the user says otherwise."""


def identity(rank: int) -> dict[str, Any]:
    """A host's identity, told to whoever connects: its lowest rank. Whoever connects looks for just that host."""
    return {"what": "host", "first": rank}


@dataclass(frozen=True)
class HostTerms:
    """Terms on which hosts deal with each other.

    Args:
        patience_seconds: how long learners wait for each other, and hosts for others to start.
        host_patience: seconds of silence after which a host counts as dead.
        on_death: what the death of a learner means under an asynchronous strategy.
        agreement: what must be the same on all hosts, plain values: the recipe.
        threads: torch threads of each learner; None: a fair share of the cores.
        wire: name of the codec by which rows are exchanged with other hosts, and gradients go into a mean with them.
        fragments: in how many exchanges a row is through.
        encrypts: is what hosts say to each other hidden, besides being authenticated?
        exchange_share: of the time of busy cores, what exchanges with other hosts that nobody waits for may take.
    """

    patience_seconds: float = 300.0
    host_patience: float = 10.0
    on_death: OnDeath = "replace"
    agreement: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    wire: str = "fp32"
    fragments: int = 1
    encrypts: bool = True
    exchange_share: float = EXCHANGE_SHARE


def check_hosts(strategy: Strategy, on_death: str, record: bool) -> None:
    """Can this be trained on several hosts?

    Raises:
        UserError: no; says why, and what can.
    """
    label = strategy.label
    if record:
        raise UserError("training.record is for one host: a trace of several cannot be replayed yet. Leave it out.")
    if strategy.traits.synchronous and on_death not in ("auto", "stop"):
        raise UserError(
            f"training.on_death is {on_death!r}: under {label} on several hosts the death of a learner ends the run, "
            "with a complete checkpoint. Choose stop; the same command goes on from there, also with fewer learners."
        )


def fingerprint(row: Tensor) -> int:
    """Of a starting point (P,): equal on two hosts if they begin with the same weights."""
    return zlib.crc32(row.numpy().tobytes())


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Differences of two plain values, by dotted key."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = sorted({*ours, *theirs}, key=str)
        return [d for k in keys for d in differences(ours.get(k), theirs.get(k), f"{where}.{k}" if where else str(k))]
    return [] if ours == theirs else [f"{where} is {ours!r} here and {theirs!r} there"]
