"""Cuts the features of a corpus into shards (see shards), or into another number of them.

Nothing is computed again. The store is one in shards once its index says so, which is written last; the former files go
after that. Cutting needs room for the features twice. Shards that an interrupted run has written stay.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roundelay.core.checksums import read_sums, write_checked, write_checked_with
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay.core.progress import Progress
from roundelay_speech.data.arrays import Integers
from roundelay_speech.data.manifest import Utterance, write_manifest
from roundelay_speech.features.shards import (
    IN_SHARDS,
    MANIFEST,
    ROWS,
    SHARD,
    SHARDS,
    StoreStretch,
    shard_facts,
    stretches,
)
from roundelay_speech.features.store import FEATURES, INDEX, FeatureStore

COPIED_AT_ONCE = 1 << 26
"""Bytes that are copied at a time."""


def even_cuts(offsets: Integers, first: int, end: int, shards: int) -> list[list[int]]:
    """Divide utterances into `shards` runs with about equally many frames, none empty; return [first, end] of each.

    Args:
        offsets: (U + 1,) first frame of every utterance, and the end of the last.
        first, end: the utterances to be divided.
    """
    wanted = offsets[first] + (offsets[end] - offsets[first]) * np.arange(1, shards) // shards
    inner = (first + np.searchsorted(offsets[first : end + 1], wanted)).tolist()
    cuts = [first, *inner, end]
    for number in range(1, shards):  # a long utterance leaves its neighbours some
        cuts[number] = min(max(cuts[number], cuts[number - 1] + 1), end - (shards - number))
    return [[cuts[number], cuts[number + 1]] for number in range(shards)]


def cut_into_shards(
    store: FeatureStore, utterances: Sequence[Utterance], train: Sequence[Utterance], shards: int, progress: Progress
) -> FeatureStore:
    """Cut the training utterances of a whole store into so many shards.

    Args:
        utterances: all utterances of the corpus.
        train: the training utterances among them, which are consecutive in the store.
        progress: advances with every shard.

    Raises:
        UserError: there are fewer training utterances than shards; the disk is full.
    """
    places = [store.position(u.id) for u in train if u.id in store]
    first, end = min(places), max(places) + 1
    if not 1 <= shards <= end - first:
        raise UserError(f"--shards {shards}: there are {end - first} training utterances. Ask for 1 to {end - first}.")
    index, sums = read_sums(store.folder / INDEX, f"Delete {store.folder} and run `roundelay prepare` again.")
    held_out = [[a, b] for a, b in ((0, first), (end, len(store.utterance_ids))) if a < b]
    cuts = {"train": even_cuts(store.offsets, first, end, shards), "held_out": held_out}
    if index.get(IN_SHARDS) == cuts:
        return store
    index[IN_SHARDS] = cuts
    by_id = {u.id: u for u in utterances}
    in_order = [by_id[name] for name in store.utterance_ids]
    all_of_them = [one for some in stretches(index) for one in some]
    progress.start("writing shards", len(all_of_them))
    try:
        for stretch in all_of_them:
            facts = shard_facts(stretch, index)
            if not _is_there(store, stretch, facts):
                _write(store, stretch, facts, in_order[stretch.first : stretch.end])
            progress.advance()
    finally:
        progress.finish()
    sums = {name: value for name, value in sums.items() if name != FEATURES}
    write_checked_with(store.folder / INDEX, index, sums, one_line=True)
    (store.folder / FEATURES).unlink(missing_ok=True)
    _keep_only(store.folder, {one.name for one in all_of_them})
    return FeatureStore.open(store.folder)


def drop_old_shards(folder: Path) -> None:
    """Delete the shards of features that a store in one file has replaced."""
    if IN_SHARDS not in read_sums(folder / INDEX, "")[0]:
        shutil.rmtree(folder / SHARDS, ignore_errors=True)


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in sorted((folder / SHARDS).iterdir()):
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _is_there(store: FeatureStore, stretch: StoreStretch, facts: dict[str, object]) -> bool:
    """Return True if a stretch was already written, by an interrupted run."""
    where = store.folder / SHARDS / stretch.name
    begin, end = stretch.bytes(store.offsets, store.array.shape[1])
    try:
        return read_sums(where / SHARD, "")[0] == facts and (where / ROWS).stat().st_size == end - begin
    except (UserError, OSError):
        return False


def _write(
    store: FeatureStore, stretch: StoreStretch, facts: dict[str, object], utterances: Sequence[Utterance]
) -> None:
    where = store.folder / SHARDS / stretch.name
    begin, end = stretch.bytes(store.offsets, store.array.shape[1])
    where.mkdir(parents=True, exist_ok=True)
    (where / SHARD).unlink(missing_ok=True)
    content = store.array.view(np.uint8).reshape(-1)
    with atomic_write(where / ROWS) as file:
        for at in range(begin, end, COPIED_AT_ONCE):
            file.write(content[at : min(at + COPIED_AT_ONCE, end)].data)
        file.write(bytes(max(0, end - len(content))))  # the last unit of the array
    write_manifest(where / MANIFEST, utterances)
    write_checked(where / SHARD, facts, [ROWS, MANIFEST])
