"""Checkpoints: complete, atomic, and readable by anybody (safetensors and JSON).

`NAME.safetensors` holds every row and every vector that belongs to it; `NAME.json` is written after it, names its size
and checksum, and holds all the rest: position in the data, schedule, clocks, seeds. Random numbers need no state of
their own: their streams are named by seed and counters, which are here. A checkpoint exists when its JSON does. One
that is written again (a run that goes on with other learners and is stopped at once) names another file for its
tensors, so that there too one rename replaces the old by the new.

Legend: P parameters, L learners.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, write_json
from roundelay.runtime.base import ClusterState

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A cluster's state and the run's own position, as plain JSON values."""

    state: ClusterState
    position: dict[str, Any]


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write it; the previous checkpoint stays whole until this one is. Returns the JSON's path.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    data = save(checkpoint.state.vectors)
    path = folder / f"{name}.json"
    tensors = folder / f"{name}.safetensors"
    if path.exists() and _tensors(path) == tensors:
        tensors = folder / f"{name}-again.safetensors"
    with atomic_write(tensors) as file:
        file.write(data)
    write_json(
        path,
        {
            "version": VERSION,
            "tensors": tensors.name,
            "bytes": len(data),
            "crc32": zlib.crc32(data),
            "integers": checkpoint.state.integers,
            "virtual_ns": checkpoint.state.virtual_ns,
            "position": checkpoint.position,
        },
    )
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint whose JSON is `path`.

    Raises:
        UserError: a file is missing or not what was written; names it.
    """
    meta, tensors = read_json(path), _tensors(path)
    try:
        data = tensors.read_bytes()
    except OSError as error:
        raise UserError(f"{tensors}: cannot be read ({error.strerror}). {_OLDER}") from error
    try:
        if meta["version"] != VERSION:
            raise UserError(f"{path}: checkpoint version {meta['version']}, this program reads {VERSION}.")
        if (len(data), zlib.crc32(data)) != (meta["bytes"], meta["crc32"]):
            raise UserError(f"{tensors}: damaged, its checksum does not fit {path.name}. {_OLDER}")
        return Checkpoint(ClusterState(load(data), meta["integers"], meta["virtual_ns"]), meta["position"])
    except (KeyError, TypeError, SafetensorError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a checkpoint ({error!r}). {_OLDER}") from error


_OLDER = "Remove this checkpoint's two files to go on from the one before."


def _tensors(path: Path) -> Path:
    """Where the tensors of the checkpoint are whose JSON is `path`."""
    meta = read_json(path)
    name = meta.get("tensors") if isinstance(meta, dict) else None
    return path.with_name(name) if isinstance(name, str) else path.with_suffix(".safetensors")


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, by name."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stem)
    return found[-1] if found else None


def prune(folder: Path, keep: set[str]) -> None:
    """Remove all checkpoints but those named in `keep`; the JSON first, so that none is left half."""
    for path in folder.glob("*.json"):
        if path.stem not in keep:
            path.unlink()
    needed = {_tensors(path) for path in folder.glob("*.json")}
    for path in folder.glob("*.safetensors"):
        if path not in needed:
            path.unlink()
