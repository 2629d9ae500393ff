"""Files of saved sessions: a folder for each save, in it two files for each learner.

    DIRECTORY/save-000000012/learner-0-of-2.safetensors      row, memory, the optimizers' state, buffers
                             learner-0-of-2.json             the rest, and the checksum of both; written last

A learner's part of a save exists when its JSON does. Learners write theirs without waiting for each other, and nobody
removes an older save before all have come to the next, so there is always one that all of them have whole.

Nested values, as optimizers and schedules keep their state, become plain JSON and tensors beside it: dicts (with keys
of any plain type), lists, tuples, numbers, texts, None and tensors; nothing else, since whoever reads them runs no code
of theirs.

Legend: L learners.
"""

import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from roundelay.core.checksums import Damaged, checksum, read_sums, write_checked_with
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write

VERSION = 1
SAVE_FOLDER = re.compile(r"save-(\d{9,})")
PART = re.compile(r"learner-(\d+)-of-(\d+)\.json")
OTHER_SAVE = "Give the directory of another save, or restore it from a backup."


@dataclass(frozen=True)
class Part:
    """A learner's part of a save: plain values, and tensors by name."""

    path: Path
    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def folder_of(directory: Path, number: int) -> Path:
    """The folder of a save."""
    return directory / f"save-{number:09d}"


def saves(directory: Path) -> list[int]:
    """Numbers of all saves in a directory, whole or not, the newest first."""
    found = (SAVE_FOLDER.fullmatch(path.name) for path in directory.glob("save-*"))
    return sorted((int(name[1]) for name in found if name is not None), reverse=True)


def part_path(folder: Path, rank: int, learners: int) -> Path:
    """The JSON of a learner's part."""
    return folder / f"learner-{rank}-of-{learners}.json"


def parts(folder: Path) -> Iterator[Path]:
    """The JSON of every part that is there."""
    return (path for path in sorted(folder.glob("learner-*.json")) if PART.fullmatch(path.name))


def write_part(path: Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a part; its JSON is `path`.

    Raises:
        UserError: the disk is full or not writable; names the file.
    """
    data, beside = save(dict(tensors)), path.with_suffix(".safetensors")
    with atomic_write(beside) as file:
        file.write(data)
    write_checked_with(path, {"version": VERSION, **meta}, {beside.name: checksum(data)})


def read_meta(path: Path) -> dict[str, Any]:
    """The plain values of the part whose JSON is `path`.

    Raises:
        Damaged: it is not what was written, or of another version.
    """
    meta, sums = read_sums(path, OTHER_SAVE)
    if not sums or meta.get("version") != VERSION:
        raise Damaged(f"{path}: no part of a save that this program reads. {OTHER_SAVE}")
    return meta


def read_part(path: Path) -> Part:
    """The part whose JSON is `path`, held to its checksums.

    Raises:
        Damaged: a file is missing or not what was written; names it.
    """
    meta, beside = read_meta(path), path.with_suffix(".safetensors")
    _, sums = read_sums(path, OTHER_SAVE)
    try:
        data = beside.read_bytes()
    except OSError as error:
        raise Damaged(f"{beside}: cannot be read ({error.strerror or error}). {OTHER_SAVE}") from error
    if checksum(data) != sums.get(beside.name):
        raise Damaged(f"{beside}: damaged, its checksum is not the one in {path.name}. {OTHER_SAVE}")
    try:
        return Part(path, meta, load(data))
    except SafetensorError as error:
        raise Damaged(f"{beside}: damaged ({error}). {OTHER_SAVE}") from error


@dataclass(frozen=True)
class FoundSave:
    """The newest save of which a learner can take its state.

    Attributes:
        before: number of the save before it in that directory, which may be there no more; 0: it is the first.
        paths: JSON of this learner's part alone; or of all parts, where `resized`.
        resized: there were other learners.
    """

    number: int
    before: int
    paths: tuple[Path, ...]
    resized: bool


def find(directory: Path, rank: int, learners: int, most: int | None = None) -> FoundSave | None:
    """The newest save for learner `rank` of so many; with `most`, none with a higher number.

    Raises:
        Damaged: a part of it is not what was written.
    """
    for number in saves(directory):
        if most is not None and number > most:
            continue
        folder = folder_of(directory, number)
        own = part_path(folder, rank, learners)
        if own.exists() and (meta := read_meta(own))["ranks"] == list(range(learners)):
            return FoundSave(number, meta["before"], (own,), resized=False)
        for one in parts(folder):
            meta = read_meta(one)
            every = tuple(part_path(folder, other, meta["learners"]) for other in meta["ranks"])
            if (meta["learners"] != learners or len(every) != learners) and all(path.exists() for path in every):
                return FoundSave(number, meta["before"], every, resized=True)
    return None


def prune(directory: Path, below: int) -> None:
    """Remove the saves with numbers below this one. Others may be doing the same."""
    for number in saves(directory):
        if number < below:
            shutil.rmtree(folder_of(directory, number), ignore_errors=True)


Plain = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value of JSON."""


def to_plain(value: object, name: str, tensors: MutableMapping[str, Tensor]) -> Plain:
    """`value` as JSON; its tensors go into `tensors`, in the memory of the host, under names that begin with `name`.

    Raises:
        UserError: it holds something else; names it and its place.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Tensor():
            tensors[name] = _own(value)
            return {"tensor": name}
        case list():
            return [to_plain(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]
        case tuple():
            return {"tuple": [to_plain(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]}
        case dict():
            kind = "counter" if isinstance(value, Counter) else "dict"
            return {kind: [[_key(key, name), to_plain(value[key], f"{name}.{key}", tensors)] for key in value]}
        case _:
            raise UserError(
                f"{name} is a {type(value).__name__}, which a save cannot hold: give numbers, texts, tensors, and "
                "lists and dicts of them."
            )


def from_plain(said: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the inverse of `to_plain`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    if isinstance(said, list):
        return [from_plain(item, tensors) for item in said]
    if not isinstance(said, dict):
        return said
    ((kind, content),) = said.items()
    if kind == "tensor":
        return tensors[content]
    if kind in ("dict", "counter"):
        found = {key: from_plain(item, tensors) for key, item in content}
        return found if kind == "dict" else Counter(found)
    if kind == "tuple":
        return tuple(from_plain(item, tensors) for item in content)
    if kind != "float":
        raise ValueError(f"a value of kind {kind!r}")
    return float(content)


def _key(key: object, name: str) -> object:
    if not isinstance(key, str | int | float | bool | None):
        raise UserError(f"{name} has a key that is a {type(key).__name__}: a save holds texts and numbers as keys.")
    return key


def _own(tensor: Tensor) -> Tensor:
    """On the host, in a storage that no other tensor has a part of."""
    plain = tensor.detach()
    return torch.empty_like(plain, device="cpu", memory_format=torch.contiguous_format).copy_(plain)
