"""Files of saved sessions: a folder for each save, in it a part of each learner (checkpoint.py).

    DIRECTORY/save-000000012/learner-0-of-2.safetensors      row, memory, the optimizers' state, buffers
                             learner-0-of-2.json             the rest, and the checksum of both; written last

Learners write their parts without waiting for each other, and none removes an older save before all have come to the
next, so there is always one that all of them have whole. A search for one passes over those that are damaged.

Nested values, as optimizers and schedules keep their state, become plain JSON and tensors beside it: dicts (with keys
of any plain type), lists, tuples, numbers, texts, None and tensors; nothing else, since their reader must not run code
of theirs.

Legend: L learners.
"""

import logging
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundelay.checkpoint import check_part, newest_whole, read_meta
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import local
from roundelay.runtime.resize import TrainedBy
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")
SAVE_FOLDER = re.compile(r"save-(\d{9,})")
PART = re.compile(r"learner-(\d+)-of-(\d+)\.json")


def folder_of(directory: Path, number: int) -> Path:
    """Return the folder in `directory` of the save with this number."""
    return directory / f"save-{number:09d}"


def saves(directory: Path) -> list[int]:
    """Return numbers of all saves in a directory, whole or not, the newest first."""
    found = (SAVE_FOLDER.fullmatch(path.name) for path in directory.glob("save-*"))
    return sorted((int(name[1]) for name in found if name is not None), reverse=True)


def part_path(folder: Path, rank: int, learners: int) -> Path:
    """Return the path of the JSON of learner `rank`'s part in a save's folder."""
    return folder / f"learner-{rank}-of-{learners}.json"


def parts(folder: Path) -> Iterator[Path]:
    """Yield the path of the JSON of every part in a save's folder."""
    return (path for path in sorted(folder.glob("learner-*.json")) if PART.fullmatch(path.name))


@dataclass(frozen=True)
class FoundSave:
    """The newest save from which a learner can go on."""

    number: int
    before: int  # number of the save before it in that directory, which may be there no more; 0: it is the first
    paths: tuple[Path, ...]  # JSON of this learner's part alone; or of all parts, where they are `dealt` out
    dealt: bool  # there were other learners, or another strategy


def find(
    directory: Path, rank: int, learners: int, strategy: Strategy | None = None, most: int | None = None
) -> FoundSave | None:
    """Return the newest save from which learner `rank` of `learners` can go on, under `strategy` or, without it, under
    the save's own; with `most`, none of a higher number; None if there is no save. Where parts are dealt out, each
    learner checks some of them.

    Raises:
        UserError: there are saves, and all are damaged; names each and its fault.
    """

    def read(number: int) -> FoundSave | None:
        found = _find(folder_of(directory, number), number, rank, learners, strategy)
        for path in found.paths[rank::learners] if found and found.dealt else found.paths if found else ():
            check_part(path)
        return found

    found, damaged = newest_whole((one for one in saves(directory) if most is None or one <= most), read)
    for why in damaged.values():
        log.warning("rank %d: %s The save is passed over.", rank, why)
    if damaged and found is None:
        raise UserError(
            f"{directory}: no save is whole. {' '.join(damaged.values())} Restore one from a backup, or resume from "
            "another directory."
        )
    return found


def _find(folder: Path, number: int, rank: int, learners: int, strategy: Strategy | None) -> FoundSave | None:
    """Return what a learner goes on from in the save `number`; None unless all parts that it needs are there."""
    own = part_path(folder, rank, learners)
    if own.exists():
        meta, under = read_meta(own), strategy
        if meta["ranks"] == list(range(learners)) and (not under or TrainedBy.from_json(meta).remembered_by(under)):
            return FoundSave(number, meta["before"], (own,), dealt=False)
    for one in parts(folder):
        meta = read_meta(one)
        every = tuple(part_path(folder, other, meta["learners"]) for other in meta["ranks"])
        if all(path.exists() for path in every):
            return FoundSave(number, meta["before"], every, dealt=True)
    return None


def prune(directory: Path, whole: int, keep: int) -> None:
    """Remove old saves. Of those up to number `whole`, which all learners have whole, the newest `keep` - 1 stay, for
    one more is being written. Other learners may remove the same ones at the same time."""
    for number in [number for number in saves(directory) if number <= whole][keep - 1 :]:
        shutil.rmtree(folder_of(directory, number), ignore_errors=True)


Plain = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value of JSON."""


def to_plain(value: object, name: str, tensors: MutableMapping[str, Tensor]) -> Plain:
    """Return `value` as JSON. Its tensors go into `tensors`, in the memory of the host, under names that begin with
    `name`.

    Raises:
        UserError: `value` holds something that is not plain; names it and its place.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Tensor():
            tensors[name] = _own(local(value))
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
    """Return the value that `to_plain` has made `said` and `tensors` of.

    Raises:
        KeyError, TypeError, ValueError: `said` was not made by `to_plain`.
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
    """Return a copy of `tensor` on the host, in a storage that it shares with no other tensor."""
    plain = tensor.detach()
    return torch.empty_like(plain, device="cpu", memory_format=torch.contiguous_format).copy_(plain)
