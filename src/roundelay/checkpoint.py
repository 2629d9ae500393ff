"""Saves on disk: complete, atomic, and readable by any program (safetensors and JSON).

A save has one part or several. `NAME.safetensors` holds the vectors of a part; `NAME.json` is written after it, names
its checksum and its own, and holds all the rest. A part exists when its JSON does. One that is written again (a run
that goes on with other learners and is stopped at once) names another file for its tensors, so that there too one
rename replaces the old by the new.

A checkpoint, the save of a run, is one part with every row and every vector that belongs to it, and the run's position
in data and schedule. Random numbers need no state of their own: their streams are named by seed and counters, which are
here. Names sort by the place in the data: `epoch-0002` is the end of the second epoch, `epoch-0002-at-000000128` lies
128 rounds further on. A save of a session of a user's loop has a part of each learner (attached/save_files.py).

Legend: P parameters, L learners.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from roundelay.core.checksums import Damaged, checksum, is_file_name, read_sums, write_checked_with
from roundelay.core.errors import UserError
from roundelay.core.files import DiskFull, atomic_write, read_json
from roundelay.runtime.base import ClusterState, wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.resize import TrainedBy

VERSION = 2
"""Version 1 of a checkpoint had a crc32 of the tensors and none of the JSON, that of a session's part did not name its
tensors; both are still read."""
PLAIN_VALUES = "plain values"
"""Name of the tensor that holds a part's JSON in packed bytes, where no file does."""
DAMAGED = ".damaged"
"""Ending of the names of damaged files that were set aside."""
RETRY_SECONDS = 5.0
"""Seconds before a full disk is tried again."""
DISK_LOOK_SECONDS = 0.2
"""Seconds between two questions, while a full disk is waited for, whether to stop."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A part of a save: plain values, and tensors by name."""

    path: Path
    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def write_part(path: Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the part whose JSON is `path`; an earlier part there stays whole until this one is complete.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    data, beside = save(dict(tensors)), path.with_suffix(".safetensors")
    if path.exists() and beside in _tensors(path):
        beside = path.with_name(f"{path.stem}-again.safetensors")
    with atomic_write(beside) as file:
        file.write(data)
    write_checked_with(path, {"version": VERSION, "tensors": beside.name, **meta}, {beside.name: checksum(data)})


def pack_part(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Pack a part into bytes, to send it to another process."""
    return save({**tensors, PLAIN_VALUES: torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)})


def unpack_part(data: bytes) -> Part:
    """Return the part of these bytes: the inverse of `pack_part`."""
    tensors = load(data)
    return Part(Path(), json.loads(bytes(tensors.pop(PLAIN_VALUES).numpy())), tensors)


def read_meta(path: Path) -> dict[str, Any]:
    """Return the plain values of the part whose JSON is `path`.

    Raises:
        Damaged: the JSON is not as it was written.
        UserError: the part is of a version that this program does not read.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the plain values of a part, and the checksums of its files of tensors, by name; a checkpoint of version 1
    has none."""
    meta, sums = read_sums(path, "")
    version = meta.get("version")
    if sums and version == 1:
        meta.setdefault("tensors", path.with_suffix(".safetensors").name)
    elif sums and version != VERSION:
        raise UserError(f"{path}: a save of version {version}, this program reads {VERSION}.")
    elif not sums and version != 1:
        raise Damaged(f"{path}: damaged: a save of version {version!r} without checksums.")
    name = meta.get("tensors")
    if not isinstance(name, str) or not is_file_name(name):
        raise Damaged(f"{path}: no part of a save: it names no file of tensors.")
    return meta, sums


def read_part(path: Path) -> Part:
    """Return the part whose JSON is `path`, held to its checksums.

    Raises:
        Damaged: a file is missing or not as it was written; names it.
        UserError: the part is of a version that this program does not read.
    """
    meta, data = _whole(path)
    try:
        return Part(path, meta, load(data))
    except SafetensorError as error:
        raise Damaged(f"{path.with_name(meta['tensors'])}: damaged ({error}).") from error


def check_part(path: Path) -> None:
    """Hold the part whose JSON is `path` to its checksums; raises the errors of `read_part`."""
    _whole(path)


def _whole(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a part whole, held to its checksums; return its plain values and the bytes of its tensors."""
    meta, sums = _read(path)
    tensors = path.with_name(meta["tensors"])
    try:
        data = tensors.read_bytes()
    except OSError as error:
        raise Damaged(f"{tensors}: cannot be read ({error.strerror or error}).") from error
    found: object = checksum(data) if sums else [len(data), zlib.crc32(data)]
    if found != (sums.get(tensors.name) if sums else [meta.get("bytes"), meta.get("crc32")]):
        raise Damaged(f"{tensors}: damaged, its checksum does not fit {path.name}.")
    return meta, data


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run: the state of all learners, and the run's position as plain JSON values.

    Attributes:
        trained: the strategy that trained it; None: saved by a version that did not note it.
    """

    state: ClusterState
    position: dict[str, Any]
    trained: TrainedBy | None = None


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; the previous one stays whole until this one is complete. Return the path of its JSON.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    path, state = folder / f"{name}.json", checkpoint.state
    meta = {"integers": state.integers, "virtual_ns": state.virtual_ns, "position": checkpoint.position}
    write_part(path, meta | (checkpoint.trained.to_json() if checkpoint.trained else {}), state.vectors)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint whose JSON is `path`.

    Raises:
        Damaged: a file is missing or not as it was written; names it.
        UserError: the checkpoint is of a version that this program does not read.
    """
    part = read_part(path)
    try:
        meta = part.meta
        trained = TrainedBy.from_json(meta) if "strategy" in meta else None
        state = ClusterState(dict(part.tensors), meta["integers"], meta["virtual_ns"])
        return Checkpoint(state, dict(meta["position"]), trained)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: not a checkpoint ({error!r}).") from error


def _tensors(path: Path) -> tuple[Path, ...]:
    """Return the files of tensors of the part whose JSON is `path`; those with the usual names, if the JSON cannot be
    read."""
    try:
        meta = read_json(path)
    except UserError:
        meta = None
    name = meta.get("tensors") if isinstance(meta, dict) else None
    if isinstance(name, str) and is_file_name(name):
        return (path.with_name(name),)
    return path.with_suffix(".safetensors"), path.with_name(f"{path.stem}-again.safetensors")


def checkpoints(folder: Path) -> list[Path]:
    """Return the paths of the JSONs of all checkpoints in `folder`, the newest last."""
    return sorted(folder.glob("*.json"), key=lambda path: path.stem)


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder`, by name; None if there is none. `load_checkpoint` finds whether it is
    whole."""
    found = checkpoints(folder)
    return found[-1] if found else None


def newest_whole(saves: Iterable[S], read: Callable[[S], T | None]) -> tuple[T | None, dict[S, str]]:
    """Find the newest save that is whole. Return the first result of `read` over `saves` (newest first) that is not
    None, and the damaged saves before it, each with its fault."""
    damaged = dict[S, str]()
    for one in saves:
        try:
            if (found := read(one)) is not None:
                return found, damaged
        except Damaged as error:
            damaged[one] = str(error)
    return None, damaged


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of the part whose JSON is `path`, which may not all be there."""
    return path, *_tensors(path)


def set_aside(path: Path) -> None:
    """Rename the files of a damaged part, the JSON first, so that the part is not found any more."""
    files = [file for file in files_of(path) if file.exists()]
    for file in files:
        file.replace(file.with_name(file.name + DAMAGED))


def bytes_of(vectors: Collection[Tensor]) -> int:
    """Return the bytes on disk that a checkpoint of these vectors needs, without its JSON."""
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


class Room:
    """Waits, where a disk is full, until there is room.

    Args:
        patience: seconds after which the wait ends with the error; 0: no wait.
        asked: returns True if the run is to stop, which ends the wait too.
        say: called with a sentence when a wait begins.
    """

    def __init__(self, patience: float, asked: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._patience, self._asked, self._say = patience, asked, say

    def wait_for(self, write: Callable[[], T], folder: Path, needed: int = 0) -> T:
        """Call `write`, again after each `DiskFull`, until it succeeds; return its result. It needs about `needed`
        bytes in `folder`.

        Raises:
            DiskFull: there is still no room.
        """
        deadline = 0.0
        while True:
            try:
                return write()
            except DiskFull as error:
                now = wall_clock()
                if self._patience and not deadline:
                    deadline = now + self._patience
                    self._say(self._complaint(error, folder, needed))
                if self._asked() or now >= deadline:
                    raise
            again = wall_clock() + RETRY_SECONDS
            while wall_clock() < again and not self._asked():
                pause(DISK_LOOK_SECONDS)

    def _complaint(self, error: DiskFull, folder: Path, needed: int) -> str:
        path = str(error).partition(": the disk is full")[0]
        wanted = f"about {_size(needed)} are needed" if needed else "a little room is needed"
        minutes = f"{self._patience / 60:g} min"
        return (
            f"{path}: the disk is full: {wanted}, {_size(shutil.disk_usage(folder).free)} are free. Free some "
            f"space: it is tried again every {RETRY_SECONDS:g} s for {minutes}, and nothing trained is "
            "lost. Ctrl-C gives up, and earlier checkpoints stay."
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
