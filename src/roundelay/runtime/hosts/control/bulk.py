"""Rows and what belongs to them, from the arena of one host to that of another, in pieces.

Legend: P parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.wire import Message
from roundelay.runtime.procs.memory.arena import Arena

ROW_PIECE = 8 * CHUNK
"""Elements in one message: 2 MiB, which a link of 10 Mbit/s carries in two seconds."""
EVERYONE = -1
"""In place of a rank: all learners of the host that is written to."""


def send_vector(monitored: MonitoredLink, name: str, rank: int, vector: Tensor) -> None:
    """Send `vector` (P,), to be written into vector `name` of learner `rank`."""
    for at in range(0, len(vector), ROW_PIECE):
        monitored.send("piece", {"name": name, "rank": rank, "at": at}, [vector[at : at + ROW_PIECE].numpy()])


def take_piece(arena: Arena, message: Message, ranks: Sequence[int]) -> None:
    """Write what came into the arena; only vectors of `ranks` may be written.

    Raises:
        KeyError, InvalidMessage: it is for nobody here, or does not fit.
    """
    name, rank = checks.text(message.header["name"]), checks.whole(message.header["rank"], low=EVERYONE)
    at, size = checks.whole(message.header["at"]), len(message.payload)
    to = list(ranks) if rank == EVERYONE else [rank]
    if not set(to) <= set(ranks) or name not in ("row", *arena.layout.memory):
        raise checks.InvalidMessage(f"vector {name!r} of learner {rank} is not to be written here")
    if not size or size % 4 or at + size // 4 > arena.layout.parameters:
        raise checks.InvalidMessage(f"{size} bytes do not fit at {at} of {arena.layout.parameters} parameters")
    piece = torch.frombuffer(message.payload, dtype=torch.float32)
    for one in to:
        arena.vector(name, one)[at : at + len(piece)].copy_(piece)


def integers(arena: Arena, ranks: Sequence[int]) -> dict[str, Any]:
    """The numbers that belong to the rows of `ranks`, for JSON."""
    return {
        "steps": arena.optimizer.steps[list(ranks)].tolist(),
        "versions": arena.row_versions.versions[list(ranks)].tolist(),
        "scalars": arena.optimizer.scalars[list(ranks)].tolist(),
    }


def enter_integers(arena: Arena, ranks: Sequence[int], found: Mapping[str, Any]) -> None:
    """The inverse of `integers`: writes all of it, or nothing.

    Raises:
        KeyError, InvalidMessage: `found` is no such thing.
    """
    state = arena.optimizer
    tables = {"steps": state.steps, "versions": arena.row_versions.versions, "scalars": state.scalars}
    values = {name: checks.table(found[name], table[list(ranks)]) for name, table in tables.items()}
    for name, table in tables.items():
        table[list(ranks)] = values[name]
