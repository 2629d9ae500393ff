"""All features of a corpus in one array on disk, and where each utterance and speaker is in it.

Legend: T frames of all utterances together, F features, U utterances, N speakers.

A folder holds `features.npy` ((T, F) float32, utterances one after the other), `speakers.npz` (names, mean, std,
frames) and `index.json`, which is written last: without it the folder is not a store. In the place of `features.npy`
may be a folder of shards (see shards).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from roundelay.core.checksums import read_checked
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json
from roundelay_speech.data.arrays import BROKEN, Float32, Float64, map_array
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.shards import IN_SHARDS, StoredShard, open_shards, shard_of

FEATURES = "features.npy"
SPEAKER_STATISTICS = "speakers.npz"
INDEX = "index.json"
STORE_VERSION = 2


@dataclass(frozen=True, eq=False)
class SpeakerStats:
    """Mean and standard deviation of every feature over all frames of each speaker in the corpus."""

    names: tuple[str, ...]  # N, sorted
    mean: Float32  # (N, F)
    std: Float32  # (N, F), never below STD_FLOOR
    frames: npt.NDArray[np.int64]  # (N,)

    # A band that never changes (digital silence) must not be divided by nothing.
    STD_FLOOR = 1e-3

    def indices(self, utterances: Sequence[Utterance]) -> list[int]:
        """Return the index of each utterance's speaker."""
        of = {name: index for index, name in enumerate(self.names)}
        return [of[u.speaker] for u in utterances]


def write_speakers(path: Path, speakers: SpeakerStats) -> None:
    """Write the statistics of a store's speakers."""
    with atomic_write(path) as file:
        np.savez(file, names=np.array(speakers.names), mean=speakers.mean, std=speakers.std, frames=speakers.frames)


@dataclass(frozen=True)
class StoredPart:
    """A part of the stored features: adjacent columns, with their deltas and normalisation."""

    name: str
    width: int  # how many columns
    deltas: int = 2  # orders of deltas beside the features: 0, 1 or 2
    # `speaker`, by the mean and standard deviation of the speaker, or `none` (which are then 0 and 1).
    normalise: Literal["speaker", "none"] = "speaker"
    spliced: bool = True  # with neighbouring frames, where the network splices; else the frame alone
    filterbank: bool = True  # log energies of mel bands, in order: cepstra are made of them, masks hide them


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """A store of features, read-only; the array is memory-mapped, so that many processes share one copy."""

    folder: Path
    array: Float32  # (T, F), read-only: torch.from_numpy wants a copy, or a warning silenced
    utterance_ids: tuple[str, ...]  # U, in the order of their frames
    offsets: npt.NDArray[np.int64]  # (U + 1,): utterance u has the frames offsets[u] to offsets[u + 1]
    speaker_indices: npt.NDArray[np.int32]  # (U,): into speakers.names
    speakers: SpeakerStats
    sampling_rate: int  # Hz
    config: Mapping[str, Any]  # of its making
    parts: tuple[StoredPart, ...] = ()  # of the columns, from the first on; none: one filterbank
    frame_shift: float = 0.010  # s
    frame_length: float = 0.025  # s
    shards: tuple[StoredShard, ...] = ()  # of the training utterances, by number; none: all are in one file

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", (StoredPart("fbank", self.array.shape[1]),))

    @classmethod
    def open(cls, folder: Path) -> "FeatureStore":
        """Open a store; `folder` is the one that holds index.json (DATA/fbank40).

        Raises:
            UserError: no store there, or its files do not belong together.
        """
        if not (folder / INDEX).is_file():
            raise UserError(f"{folder}: no features here (no {INDEX}). Run `roundelay prepare` to compute them.")
        remedy = f"Delete {folder} and run `roundelay prepare` again."
        index = read_checked(folder / INDEX, remedy, skip=(FEATURES,))  # which may be larger than memory
        try:
            ids, frames = index["utterances"], np.array(index["frames"], dtype=np.int64)
            speaker_indices = np.array(index["speakers"], dtype=np.int32)
            width, rows = sum(part["width"] for part in index.get("parts", ())), int(frames.sum())
            shards: tuple[StoredShard, ...] = ()
            if IN_SHARDS in index:
                array, shards = open_shards(folder, index, np.concatenate([[0], np.cumsum(frames)]), (rows, width))
            else:
                array = map_array(folder / FEATURES)
            with np.load(folder / SPEAKER_STATISTICS, allow_pickle=False) as stats:
                speakers = SpeakerStats(tuple(stats["names"].tolist()), stats["mean"], stats["std"], stats["frames"])
            offsets = np.concatenate([[0], np.cumsum(frames)]).astype(np.int64)
            config = index["config"]
            # Version 1 knew one filterbank, and its options only.
            given = index.get("parts") or [{"name": "fbank", "width": config["num_bins"]}]
            parts = tuple(StoredPart(**part) for part in given)
            whole = (
                array.shape == (int(offsets[-1]), sum(part.width for part in parts))
                and min(part.width for part in parts) > 0
                and array.dtype == np.float32
                and len(ids) == len(frames) == len(speaker_indices)
                and speakers.mean.shape == speakers.std.shape == (len(speakers.names), array.shape[1])
                and (len(ids) == 0 or 0 <= speaker_indices.min() <= speaker_indices.max() < len(speakers.names))
            )
            rate = int(index["sampling_rate"])
            shift = float(index.get("frame_shift", config.get("frame_shift_ms", 10.0) / 1000))
            length = float(index.get("frame_length", config.get("frame_length_ms", 25.0) / 1000))
        except BROKEN as error:
            raise UserError(
                f"{folder}: broken features ({error}). Delete this folder and run `roundelay prepare` again."
            ) from error
        if not whole:
            raise UserError(
                f"{folder}: its files do not belong together. Delete this folder and run `roundelay prepare` again."
            )
        return cls(
            folder, array, tuple(ids), offsets, speaker_indices, speakers, rate, config, parts, shift, length, shards
        )

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The place in `utterance_ids` of each utterance whose features are here, by id."""
        found = {name: position for position, name in enumerate(self.utterance_ids)}
        for name in self.absent:
            del found[name]
        return found

    @property
    def absent(self) -> list[str]:
        """Ids of the utterances in shards that are not here."""
        return [name for one in self.shards if not one.here for name in self.utterance_ids[one.first : one.end]]

    def __contains__(self, utterance: object) -> bool:
        return utterance in self.positions

    def must_be_whole(self, what: str) -> None:
        """Raise a UserError if shards are missing, since `what` is done with all utterances."""
        if lacking := [number for number, one in enumerate(self.shards) if not one.here]:
            which = ", ".join(map(str, lacking))
            raise UserError(
                f"{self.folder}: shards {which} of {len(self.shards)} are not here, and {what} all utterances of every "
                "speaker. Do this on a host that has all shards."
            )

    def position(self, utterance: str) -> int:
        """Return the place of an utterance in `utterance_ids`.

        Raises:
            UserError: the utterance has no features.
        """
        try:
            return self.positions[utterance]
        except KeyError:
            pass
        remedy = "Run `roundelay prepare` again."
        if utterance in self.utterance_ids:
            shard = shard_of(self.shards, self.utterance_ids.index(utterance))
            remedy = f"It is in shard {shard} of {len(self.shards)}, which is not here: copy it to this host."
        raise UserError(f"{self.folder}: no features of utterance {utterance}. {remedy}")

    def span(self, utterance: str) -> tuple[int, int]:
        """Return (first frame in `array`, number of frames) of an utterance."""
        position = self.position(utterance)
        first = int(self.offsets[position])
        return first, int(self.offsets[position + 1]) - first

    def frames(self, utterance: str) -> int:
        """Return the number of frames of an utterance."""
        return self.span(utterance)[1]

    def get(self, utterance: str) -> Float32:
        """Return the features of an utterance, (its frames, F): a read-only view."""
        first, frames = self.span(utterance)
        return self.array[first : first + frames]

    def frame_times(self, frames: int) -> npt.NDArray[np.float64]:
        """Return the centre of each frame, (frames,), in seconds from the beginning of the utterance."""
        return np.arange(frames, dtype=np.float64) * np.float64(self.frame_shift) + np.float64(self.frame_length / 2)

    @cached_property
    def columns(self) -> Mapping[str, slice]:
        """Columns of each part, by its name."""
        ends = np.cumsum([part.width for part in self.parts]).tolist()
        return {part.name: slice(end - part.width, end) for part, end in zip(self.parts, ends, strict=True)}

    def filterbank(self) -> slice:
        """Return the columns of the first filterbank.

        Raises:
            UserError: the store has no filterbank.
        """
        for part in self.parts:
            if part.filterbank:
                return self.columns[part.name]
        raise UserError(
            f"{self.folder}: no filterbank among the features ({', '.join(part.name for part in self.parts)}). Add one."
        )

    def speaker_of(self, utterance: str) -> int:
        """Return the index of an utterance's speaker in `speakers.names`."""
        return int(self.speaker_indices[self.position(utterance)])

    def speaker_stats(self, utterance: str) -> tuple[Float32, Float32]:
        """Return (mean (F,), std (F,)) of the speaker of an utterance."""
        speaker = self.speaker_of(utterance)
        return self.speakers.mean[speaker], self.speakers.std[speaker]

    def normalised(self, utterance: str) -> Float32:
        """Return the features of an utterance with its speaker's mean and variance normalised, (its frames, F), a
        copy."""
        mean, std = self.speaker_stats(utterance)
        normal: Float32 = (self.get(utterance) - mean) / std
        return normal

    @cached_property
    def frame_speakers(self) -> npt.NDArray[np.int32]:
        """Speaker of every frame, (T,), as an index into `speakers.names`."""
        return np.repeat(self.speaker_indices, np.diff(self.offsets))


def whole_store(folder: Path, fingerprint: str) -> tuple[FeatureStore, list[LeftOut]] | None:
    """Return the store in `folder` and the utterances left out, if it is whole and has this fingerprint."""
    try:
        index = read_json(folder / INDEX)
        if index["fingerprint"] != fingerprint:
            return None
        left_out = [LeftOut(**one) for one in index["left_out"]]
        store = FeatureStore.open(folder)
    except (UserError, KeyError, TypeError):
        return None
    return None if store.absent else (store, left_out)


def file_state(path: Path) -> tuple[int, int]:
    """Return the size and time of change (ns) of a file; -1 for a missing one."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


class SpeakerSums:
    """Sums of frames by speaker, in double precision, so that the order of additions changes only the last digits."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, Float64, Float64]] = {}

    def add(self, speaker: str, features: Float32) -> None:
        """Add more frames (frames, F) of a speaker."""
        double = features.astype(np.float64)
        self.add_sums(speaker, len(double), double.sum(0), np.einsum("tf,tf->f", double, double))

    def add_sums(self, speaker: str, frames: float, total: Float64, squares: Float64) -> None:
        """Add sums (F,) and sums of squares (F,) of more frames of a speaker."""
        before = self._sums.get(speaker, (0, np.zeros(len(total)), np.zeros(len(total))))
        self._sums[speaker] = before[0] + frames, before[1] + total, before[2] + squares

    def finish(self, parts: Sequence[StoredPart] = ()) -> SpeakerStats:
        """Return the statistics of all speakers; columns of parts that are not normalised have mean 0 and deviation
        1."""
        names = tuple(sorted(self._sums))
        counts = np.array([self._sums[name][0] for name in names])
        mean = np.stack([self._sums[name][1] for name in names]) / counts[:, None]
        variance = np.stack([self._sums[name][2] for name in names]) / counts[:, None] - np.square(mean)
        std = np.maximum(np.sqrt(np.maximum(variance, 0.0)), SpeakerStats.STD_FLOOR)
        first = 0
        for part in parts:
            if part.normalise == "none":
                mean[:, first : first + part.width] = 0.0
                std[:, first : first + part.width] = 1.0
            first += part.width
        frames = np.maximum(1, np.round(counts)).astype(np.int64)
        return SpeakerStats(names, mean.astype(np.float32), std.astype(np.float32), frames)
