"""Rows and the vectors beside them, from the arena of one host to that of another, in pieces.

A vector that is expected to be the same on all hosts stays where it is: the host that asks for it lays out its own in
the place of all others, and says its digest; only vectors with another digest are sent.

Legend: P parameters.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.control.messages import EVERYONE, Piece
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.messages import InvalidMessage, table
from roundelay.runtime.procs.memory.arena import Arena

ROW_PIECE = 8 * CHUNK
"""Elements of a vector in one message: 2 MiB, which a link of 10 Mbit/s carries in two seconds."""


def lay_out(arena: Arena, names: Collection[str], source: int, ranks: Iterable[int]) -> dict[str, str]:
    """Copy vectors `names` of learner `source` into those of `ranks`; return their digests, by name."""
    for name in names:
        for rank in ranks:
            arena.vector(name, rank).copy_(arena.vector(name, source))
    return {name: digest(arena.vector(name, source)) for name in names}


def digest(vector: Tensor) -> str:
    """Return the SHA-256 of a vector (P,), as it lies in memory: no two vectors are known to share one."""
    lying: Any = vector.cpu().numpy()
    return hashlib.sha256(memoryview(lying).cast("B")).hexdigest()


def give(monitored: MonitoredLink, arena: Arena, name: str, ranks: Iterable[int], laid_out: Mapping[str, str]) -> None:
    """Send vector `name` of learners `ranks`, except those whose digest is that of `laid_out[name]`."""
    for rank in ranks:
        vector = arena.vector(name, rank)
        if name not in laid_out or digest(vector) != laid_out[name]:
            send_vector(monitored, name, rank, vector)


def send_vector(monitored: MonitoredLink, name: str, rank: int, vector: Tensor) -> None:
    """Send `vector` (P,), to be written into vector `name` of learner `rank`."""
    for at in range(0, len(vector), ROW_PIECE):
        monitored.say(Piece(name, rank, at), [vector[at : at + ROW_PIECE].cpu().numpy()])


def take_piece(arena: Arena, message: Piece, ranks: Sequence[int], beside: tuple[str, int] | None = None) -> None:
    """Write a received piece of a vector into the arena. Only vectors of `ranks` may be written, and `beside` them the
    one of this name and rank.

    Raises:
        InvalidMessage: the piece is for another vector, or does not fit into it.
    """
    name, at, size = message.name, message.at, len(message.payload)
    to = list(ranks) if message.rank == EVERYONE else [message.rank]
    theirs = set(to) <= set(ranks) and name in ("row", *arena.layout.memory)
    if not theirs and (name, message.rank) != beside:
        raise InvalidMessage(f"vector {name!r} of learner {message.rank} is not to be written here")
    if not size or size % 4 or at + size // 4 > arena.layout.parameters:
        raise InvalidMessage(f"{size} bytes do not fit at {at} of {arena.layout.parameters} parameters")
    piece = torch.frombuffer(message.payload, dtype=torch.float32)
    for one in to:
        arena.vector(name, one)[at : at + len(piece)].copy_(piece)


def integers(arena: Arena, ranks: Sequence[int]) -> dict[str, Any]:
    """Return steps, versions and optimizer scalars of learners `ranks`, as lists by name, for JSON."""
    return {
        "steps": arena.optimizer.steps[list(ranks)].tolist(),
        "versions": arena.row_versions.versions[list(ranks)].tolist(),
        "scalars": arena.optimizer.scalars[list(ranks)].tolist(),
    }


def enter_integers(arena: Arena, ranks: Sequence[int], found: Mapping[str, Any]) -> None:
    """Write what `integers` returned on another host into the tables of learners `ranks`: all of it, or nothing.

    Raises:
        InvalidMessage: `found` lacks a table, or one has another shape or type.
    """
    state = arena.optimizer
    tables = {"steps": state.steps, "versions": arena.row_versions.versions, "scalars": state.scalars}
    values = {name: table(found.get(name), one[list(ranks)]) for name, one in tables.items()}
    for name, one in tables.items():
        one[list(ranks)] = values[name]
