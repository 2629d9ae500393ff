"""Checkpoints: complete, atomic, and readable by anybody (safetensors and JSON).

`NAME.safetensors` holds every row and every vector that belongs to it; `NAME.json` is written after it, names its
checksum and its own, and holds all the rest: position in the data, schedule, clocks, seeds. Random numbers need no
state of their own: their streams are named by seed and counters, which are here. A checkpoint exists when its JSON
does. One that is written again (a run that goes on with other learners and is stopped at once) names another file for
its tensors, so that there too one rename replaces the old by the new.

Names sort by the place in the data: `epoch-0002` is the end of the second epoch, `epoch-0002-at-000000128` lies 128
rounds further on.

Legend: P parameters, L learners.
"""

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from roundelay.core.checksums import Damaged, checksum, is_file_name, read_sums, write_checked_with
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json
from roundelay.runtime.base import ClusterState

CHECKPOINT_VERSION = 2
"""Version 1 had a crc32 of the tensors and none of the JSON; it is still read."""
DAMAGED = ".damaged"
"""Ends the names of files that were set aside."""


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
    if path.exists() and tensors in _tensors(path):
        tensors = folder / f"{name}-again.safetensors"
    with atomic_write(tensors) as file:
        file.write(data)
    write_checked_with(
        path,
        {
            "version": CHECKPOINT_VERSION,
            "tensors": tensors.name,
            "integers": checkpoint.state.integers,
            "virtual_ns": checkpoint.state.virtual_ns,
            "position": checkpoint.position,
        },
        {tensors.name: checksum(data)},
    )
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint whose JSON is `path`.

    Raises:
        Damaged: a file is missing or not what was written; names it.
        UserError: it is of a version that this program does not read.
    """
    meta, sums = read_sums(path, "")
    if sums and meta.get("version") != CHECKPOINT_VERSION:
        raise UserError(f"{path}: checkpoint version {meta.get('version')}, this program reads {CHECKPOINT_VERSION}.")
    name = meta.get("tensors")
    if not isinstance(name, str) or not is_file_name(name):
        raise Damaged(f"{path}: not a checkpoint: it names no file of tensors.")
    tensors = path.with_name(name)
    try:
        data = tensors.read_bytes()
    except OSError as error:
        raise Damaged(f"{tensors}: cannot be read ({error.strerror or error}).") from error
    try:
        if sums:
            whole = checksum(data) == sums[name]
        elif meta["version"] == 1:
            whole = (len(data), zlib.crc32(data)) == (meta["bytes"], meta["crc32"])
        else:
            raise Damaged(f"{path}: damaged: a checkpoint of version {meta['version']!r} without checksums.")
        if not whole:
            raise Damaged(f"{tensors}: damaged, its checksum does not fit {path.name}.")
        return Checkpoint(ClusterState(load(data), meta["integers"], meta["virtual_ns"]), dict(meta["position"]))
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise Damaged(f"{path}: not a checkpoint ({error!r}).") from error


def _tensors(path: Path) -> tuple[Path, ...]:
    """Files of tensors of the checkpoint whose JSON is `path`; likely ones, if that cannot be read."""
    try:
        meta = read_json(path)
    except UserError:
        meta = None
    name = meta.get("tensors") if isinstance(meta, dict) else None
    if isinstance(name, str) and is_file_name(name):
        return (path.with_name(name),)
    return path.with_suffix(".safetensors"), path.with_name(f"{path.stem}-again.safetensors")


def checkpoints(folder: Path) -> list[Path]:
    """The JSON of every checkpoint, the newest last."""
    return sorted(folder.glob("*.json"), key=lambda path: path.stem)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint, by name; whether it is whole is for `load_checkpoint` to find."""
    found = checkpoints(folder)
    return found[-1] if found else None


def files_of(path: Path) -> tuple[Path, ...]:
    """The files of the checkpoint whose JSON is `path`, which may not all be there."""
    return path, *_tensors(path)


def set_aside(path: Path) -> None:
    """Rename the files of a damaged checkpoint, so that it does not count any more; the JSON first."""
    files = [file for file in files_of(path) if file.exists()]
    for file in files:
        file.replace(file.with_name(file.name + DAMAGED))


def bytes_of(vectors: Collection[Tensor]) -> int:
    """The room on disk that a checkpoint of these vectors needs, but for its JSON."""
    return sum(vector.numel() * vector.element_size() for vector in vectors)


def prune(folder: Path, keep: Collection[str]) -> None:
    """Remove all checkpoints but those named in `keep`; the JSON first, so that none is left half."""
    for path in folder.glob("*.json"):
        if path.stem not in keep:
            path.unlink()
    needed = {tensors for path in folder.glob("*.json") for tensors in _tensors(path)}
    for path in folder.glob("*.safetensors"):
        if path not in needed:
            path.unlink()
