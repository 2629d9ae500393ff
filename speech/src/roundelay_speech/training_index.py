"""Everything that learners read of a prepared corpus and its alignment, in arrays that all processes of a host map
together.

Manifests, names of utterances and checksums of thousands of hours take minutes and gigabytes; a learner needs none of
them. So the first process that wants to train on a corpus reads and checks all of it once, and leaves in the folder
`index` of the alignment

    offsets.npy, speakers.npy         of utterances in the store (see features/store)
    mean.npy, std.npy                 of speakers
    SPLIT.firsts.npy, utterances, ends, ...    labelled frames of each split (see models/labelled)
    index.json                        sizes and checksums, and its sources; written last

Of a corpus some of whose shards are not here (see features/shards) it has the labelled frames of the others.

An index of files that have changed since, by size or time of change, is made again. Where the alignment's folder cannot
be written every process makes its own, in its memory.
"""

import dataclasses
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.core.checksums import Damaged, read_checked, read_sums, write_checked
from roundelay_speech.data.arrays import BROKEN, map_array, save_array
from roundelay_speech.features.shards import IN_SHARDS, StoredShard, open_shards, shard_files
from roundelay_speech.features.store import FEATURES, INDEX, FeatureStore, SpeakerStats, StoredPart
from roundelay_speech.hmm.alignment import PDFS, SUMMARY, Alignment
from roundelay_speech.models.frames import LabelledRuns
from roundelay_speech.prepared import CORPUS, load_corpus

FOLDER, META = "index", "index.json"
_RUNS = tuple(field.name for field in dataclasses.fields(LabelledRuns))


@dataclass(frozen=True, eq=False)
class TrainingIndex:
    """The index of a corpus for training: features, labels and labelled frames."""

    store: FeatureStore  # without names of utterances and speakers
    labels: NDArray[np.int32]  # (T,) tied state of every frame in store order, -1 where there is none
    splits: Mapping[str, LabelledRuns]  # labelled frames by split
    num_pdfs: int  # tied states

    @classmethod
    def make(cls, corpus: Path, alignment: Path) -> "TrainingIndex":
        """Make the index of a corpus and its alignment, both read whole and checked by their checksums.

        Raises:
            UserError: corpus or alignment is missing or broken.
        """
        prepared, aligned = load_corpus(corpus), Alignment.load(alignment)
        store = prepared.features()
        splits = {
            name: LabelledRuns.find(aligned.pdf, store, [u.id for u in utterances])
            for name, utterances in prepared.splits.items()
        }
        return cls(store, aligned.pdf, splits, aligned.num_pdfs)

    @classmethod
    def open(cls, corpus: Path, alignment: Path) -> "TrainingIndex":
        """Open the existing index of a corpus and its alignment, or make a new one if there is none, or only one of
        other files.

        Raises:
            UserError: corpus or alignment is missing or broken.
        """
        folder, wanted = alignment / FOLDER, _made_from(corpus, alignment)
        try:
            with _locked(folder, fcntl.LOCK_SH):
                if (found := _read(folder, wanted, corpus, alignment)) is not None:
                    return found
            with _locked(folder, fcntl.LOCK_EX):
                if (found := _read(folder, wanted, corpus, alignment)) is None:
                    _write(folder, wanted, cls.make(corpus, alignment))
                    found = _read(folder, wanted, corpus, alignment)
                if found is not None:
                    return found
        except OSError:  # not our folder, or a full disk
            pass
        return cls.make(corpus, alignment)


def is_in_shards(corpus: Path) -> bool:
    """Return True if the training features of a prepared corpus are in shards, some of which may be on other hosts."""
    if not (corpus / CORPUS).is_file():
        return False
    features = str(read_sums(corpus / CORPUS, "Run `roundelay prepare` again.")[0].get("features"))
    return bool(shard_files(corpus / features))


def _made_from(corpus: Path, alignment: Path) -> list[Any]:
    """Return the size and time of change of all files that an index depends on."""
    if not (corpus / CORPUS).is_file() or not (alignment / SUMMARY).is_file():
        return []
    features = corpus / str(read_sums(corpus / CORPUS, "Run `roundelay prepare` again.")[0].get("features"))
    paths = [corpus / CORPUS, features / INDEX, features / FEATURES, alignment / SUMMARY, alignment / PDFS]
    states = [path.stat() if path.is_file() else None for path in paths]
    shards = [[path.parent.name, path.stat().st_mtime_ns] for path in shard_files(features)]
    return [features.name, *([state.st_size, state.st_mtime_ns] if state else None for state in states), *shards]


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Within the `with`, lock the index against writers, or against readers too."""
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _write(folder: Path, made_from: list[Any], index: TrainingIndex) -> None:
    (folder / META).unlink(missing_ok=True)
    store = index.store
    arrays = {
        "offsets": store.offsets,
        "speakers": store.speaker_indices,
        "mean": store.speakers.mean,
        "std": store.speakers.std,
        **{f"{split}.{name}": getattr(runs, name) for split, runs in index.splits.items() for name in _RUNS},
    }
    for name, array in arrays.items():
        save_array(folder / f"{name}.npy", array)
    about = {
        "made_from": made_from,
        "splits": list(index.splits),
        "num_pdfs": index.num_pdfs,
        "parts": [dataclasses.asdict(part) for part in store.parts],
        "sampling_rate": store.sampling_rate,
        "frame_shift": store.frame_shift,
        "frame_length": store.frame_length,
        "config": store.config,
    }
    if store.shards:
        whole, _ = read_sums(store.folder / INDEX, "")
        about["in_shards"] = {key: whole.get(key, "") for key in ("fingerprint", IN_SHARDS)}
    write_checked(folder / META, about, [f"{name}.npy" for name in arrays])


def mapped(path: Path) -> NDArray[Any]:
    """Map the array in a file as a plain one, since an element of numpy's class of mapped arrays takes a microsecond
    more."""
    return np.asarray(map_array(path))


def _read(folder: Path, wanted: list[Any], corpus: Path, alignment: Path) -> TrainingIndex | None:
    """Read the index in a folder; return None if it is of other files, or damaged."""
    if not wanted or not (folder / META).is_file():
        return None
    try:
        about = read_checked(folder / META, "")
        if about["made_from"] != wanted:
            return None

        def array(name: str) -> Any:
            return mapped(folder / f"{name}.npy")

        mean, offsets = array("mean"), array("offsets")
        shards: tuple[StoredShard, ...] = ()
        if "in_shards" in about:
            shape = int(offsets[-1]), mean.shape[1]
            features, shards = open_shards(corpus / wanted[0], about["in_shards"], offsets, shape)
        else:
            features = mapped(corpus / wanted[0] / FEATURES)
        store = FeatureStore(
            corpus / wanted[0],
            features,
            (),
            offsets,
            array("speakers"),
            SpeakerStats((), mean, array("std"), np.zeros(len(mean), np.int64)),
            int(about["sampling_rate"]),
            about["config"],
            tuple(StoredPart(**part) for part in about["parts"]),
            float(about["frame_shift"]),
            float(about["frame_length"]),
            shards,
        )
        splits = {
            str(split): LabelledRuns(**{name: array(f"{split}.{name}") for name in _RUNS}) for split in about["splits"]
        }
        return TrainingIndex(store, mapped(alignment / PDFS), splits, int(about["num_pdfs"]))
    except (Damaged, *BROKEN):
        return None
