"""Features in shards: the training utterances cut into parts that a host can have alone.

In the place of `features.npy` a store then has, in its folder `shards`,

    train-003-of-008/rows.f32           the features of a part, as they lie in the array of all
    train-003-of-008/utterances.jsonl   its utterances, a line of the manifest each
    train-003-of-008/shard.json         its origin, and checksums; written last
    held-out-0/...                      the same for other splits; every host needs these

The array of all utterances is the same with and without shards, and so is all that is computed from it: the shards that
are here are mapped at their places (see data/joined). `shards` of the store's index says which utterances are in which.

Legend: F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import read_sums
from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Integers
from roundelay_speech.data.joined import UNIT, FilePiece, JoinedFiles

SHARDS, SHARD, ROWS, MANIFEST = "shards", "shard.json", "rows.f32", "utterances.jsonl"
IN_SHARDS = "shards"
"""Key of a store's index: `train` and `held_out`, lists of [first utterance, end]."""


@final
@dataclass(frozen=True)
class StoredShard:
    """A shard: the utterances `first` to `end` of the store, and whether their features are on this host."""

    first: int
    end: int
    here: bool


@final
@dataclass(frozen=True)
class StoreStretch:
    """A stretch of a store: utterances `first` to `end`, and the name of the folder of their features."""

    name: str
    first: int
    end: int

    def bytes(self, offsets: Integers, width: int) -> tuple[int, int]:
        """Return the place of the stretch's features in the bytes of the array, in whole units."""
        row = 4 * width
        return int(offsets[self.first]) * row // UNIT * UNIT, -(-int(offsets[self.end]) * row // UNIT) * UNIT


def stretches(index: Mapping[str, Any]) -> tuple[list[StoreStretch], list[StoreStretch]]:
    """Return the shards of a store's index, and the stretches of other splits."""
    train, held_out = index[IN_SHARDS]["train"], index[IN_SHARDS]["held_out"]
    return (
        [StoreStretch(f"train-{n:03d}-of-{len(train):03d}", int(a), int(b)) for n, (a, b) in enumerate(train)],
        [StoreStretch(f"held-out-{n}", int(a), int(b)) for n, (a, b) in enumerate(held_out)],
    )


def shard_of(shards: Sequence[StoredShard], position: int) -> int | None:
    """Return the number of the shard of the utterance at `position` of the store; None if it is in no shard."""
    return next((number for number, one in enumerate(shards) if one.first <= position < one.end), None)


def open_shards(
    folder: Path, index: Mapping[str, Any], offsets: Integers, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], tuple[StoredShard, ...]]:
    """Map the array of all utterances of a store, of shape `shape` (frames, F); return it and the shards. Rows of
    missing shards are zeros.

    Raises:
        UserError: no shard is here, or one is of other features or cut short; features of another split are missing.
    """
    train, held_out = stretches(index)
    here = [one for one in train if (folder / SHARDS / one.name / SHARD).is_file()]
    if not here:
        raise UserError(
            f"{folder / SHARDS}: none of the {len(train)} shards of the training utterances is here (folders "
            f"{train[0].name} to {train[-1].name}). Copy some to this host, or run `roundelay prepare` again."
        )
    pieces = [_piece(folder, one, index, offsets, shape[1]) for one in [*here, *held_out]]
    try:
        joined = JoinedFiles(pieces, 4 * shape[0] * shape[1])
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / SHARDS}: a shard is damaged ({error}). Copy it again.") from error
    return joined.array(*shape), tuple(StoredShard(one.first, one.end, one in here) for one in train)


def absent_shards(folder: Path) -> list[int]:
    """Return the numbers of a store's missing shards, by the names of those present; empty for a store without
    shards."""
    here = [path.parent.name for path in shard_files(folder) if path.parent.name.startswith("train-")]
    shards = int(here[0].rpartition("-")[2]) if here else 0
    return sorted(set(range(shards)) - {int(name.split("-")[1]) for name in here})


def shard_files(folder: Path) -> list[Path]:
    """Return the files `shard.json` of a store's shards that are present, in order."""
    return sorted((folder / SHARDS).glob(f"*/{SHARD}"))


def _piece(folder: Path, stretch: StoreStretch, index: Mapping[str, Any], offsets: Integers, width: int) -> FilePiece:
    """Return the file of a stretch, checked to be of these features.

    Raises:
        UserError: the file is missing, or of other features.
    """
    where = folder / SHARDS / stretch.name
    if not (where / SHARD).is_file():
        raise UserError(f"{where}: missing (no {SHARD}). Every host needs it: copy it to this one.")
    told, _ = read_sums(where / SHARD, f"Copy {where} again.")
    if told != shard_facts(stretch, index):
        raise UserError(
            f"{where}: a shard of other features than those of {folder}, or cut otherwise. Copy both from one host."
        )
    return FilePiece(where / ROWS, *stretch.bytes(offsets, width))


def shard_facts(stretch: StoreStretch, index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a stretch's `shard.json`, without checksums."""
    return {"version": 1, "of": index.get("fingerprint", ""), "utterances": [stretch.first, stretch.end]}
