"""Files of saved sessions: a folder for each save, in it two files for each learner.

    DIRECTORY/save-000000012/learner-0-of-2.safetensors      row, memory, the optimizers' state, buffers
                             learner-0-of-2.json             the rest, and the checksum of both; written last

A learner's part of a save exists when its JSON does. Learners write theirs without waiting for each other, and nobody
removes an older save before all have come to the next, so there is always one that all of them have whole.

Legend: L learners.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from roundelay.core.checksums import Damaged, checksum, read_sums, write_checked_with
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
