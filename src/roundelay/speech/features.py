"""Features of a whole corpus: computed once, kept in one array (see feature_store).

What is computed is named part by part: filterbanks of the audio, and matrices from elsewhere. While it is computed,
every finished utterance is in `partial.f32` and has a line in `partial.jsonl`; whoever is interrupted goes on there.

Legend: T frames of all utterances together, F features.
"""

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, unwritable, write_text
from roundelay.core.progress import Progress
from roundelay.speech.audio import AudioError, audio_path, bad_audio, read_audio
from roundelay.speech.corpus.manifest import Utterance, is_one_word, repeated
from roundelay.speech.culprits import BadPolicy, LeftOut, listing
from roundelay.speech.external import ExternalError, Matrices
from roundelay.speech.fbank import FbankConfig, fbank
from roundelay.speech.feature_store import (
    FEATURES,
    INDEX,
    SPEAKERS,
    VERSION,
    FeatureStore,
    Float32,
    SpeakerStats,
    StoredPart,
)
from roundelay.speech.processes import cores, start_workers

__all__ = ["FbankConfig", "FeatureConfig", "FeatureStore", "SpeakerStats", "compute_features", "fbank", "features_of"]

# A worker process takes about two seconds to import torch; below this much audio one process is done sooner.
_SECONDS_WORTH_A_PROCESS = 2 * 3600.0
_SECONDS_AT_ONCE = 120.0  # of audio; what a worker is handed, and what an interrupted run may have to compute again
_HEADER_BYTES = 128
_PARTIAL, _JOURNAL = "partial.f32", "partial.jsonl"


@dataclass(frozen=True)
class Filterbank:
    """Log mel energies of the audio.

    Attributes:
        deltas: orders of deltas that networks see beside it: 0, 1 or 2.
        normalise: `speaker`, by the mean and standard deviation over the speaker's frames, or `none`.
        spliced: with its neighbours, where a network splices frames; else the frame alone.
    """

    kind: Literal["fbank"] = "fbank"
    name: str = "fbank"
    fbank: FbankConfig = FbankConfig()
    deltas: int = 2
    normalise: Literal["speaker", "none"] = "speaker"
    spliced: bool = True


@dataclass(frozen=True)
class External:
    """Matrices from elsewhere, by utterance; see `external` for the kinds of source, `Filterbank` for the rest.

    Attributes:
        every: frames that a row stands for: 1; 10 as Kaldi's online i-vectors have; 0, one row for all of an utterance.
    """

    kind: Literal["external"] = "external"
    name: str = "external"
    source: Path = Path()
    every: int = 1
    deltas: int = 0
    normalise: Literal["speaker", "none"] = "none"
    spliced: bool = True


@dataclass(frozen=True)
class FeatureConfig:
    """What is stored, side by side.

    Attributes:
        parts: in the order of their columns.
        tolerance: frames that the parts of an utterance may differ by; the shortest decides.
    """

    parts: tuple[Filterbank | External, ...] = (Filterbank(),)
    tolerance: int = 0

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        problems = [f"{name}: the name is there twice" for name in repeated(names)]
        problems += [f"{name!r}: no name" for name in names if not is_one_word(name) or "/" in name]
        problems += [f"{p.name}: deltas is {p.deltas}: 0, 1 or 2" for p in self.parts if not 0 <= p.deltas <= 2]
        problems += [
            f"{p.name}: every is {p.every}: 0 or more" for p in self.parts if isinstance(p, External) and p.every < 0
        ]
        if len({(p.fbank.frame_length_ms, p.fbank.frame_shift_ms) for p in self.filterbanks}) > 1:
            problems.append("all filterbanks must have the same frames")
        if not self.parts or self.tolerance < 0:
            problems.append("give at least one part, and a tolerance of 0 or more frames")
        if problems:
            raise UserError(f"Features: {'; '.join(problems)}.")

    @property
    def filterbanks(self) -> list[Filterbank]:
        """Those parts that are computed from the audio."""
        return [part for part in self.parts if isinstance(part, Filterbank)]

    @property
    def externals(self) -> list[External]:
        """Those parts that are read."""
        return [part for part in self.parts if isinstance(part, External)]

    @property
    def frames(self) -> FbankConfig:
        """Where frames are: those of the filterbanks."""
        return self.filterbanks[0].fbank if self.filterbanks else FbankConfig()

    @property
    def folder(self) -> str:
        """What the store's folder in a corpus is called."""
        return "-".join(f"{p.name}{p.fbank.num_bins}" if isinstance(p, Filterbank) else p.name for p in self.parts)


def only_fbank(config: FbankConfig) -> FeatureConfig:
    """One filterbank."""
    return FeatureConfig((Filterbank(fbank=config),))


# One utterance --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sources:
    """What a worker needs for every utterance."""

    audio_folder: Path
    config: FeatureConfig
    matrices: Mapping[str, Matrices]

    @classmethod
    def of(cls, audio_folder: Path, config: FeatureConfig) -> "Sources":
        return cls(audio_folder, config, {part.name: Matrices.open(part.source) for part in config.externals})


def features_of(utterance: Utterance, sources: Sources) -> Float32:
    """The features of one utterance, (its frames, F).

    Raises:
        AudioError: its audio cannot be used, is shorter than a frame, or its features are NaN or infinite.
        ExternalError: a part is missing or has another number of frames.
    """
    config = sources.config
    where = f"{utterance.id}: {audio_path(utterance, sources.audio_folder)}"
    found: dict[str, Float32] = {}
    if config.filterbanks:
        wave = torch.from_numpy(read_audio(utterance, sources.audio_folder))
        for part in config.filterbanks:
            features: Float32 = fbank(wave, utterance.sampling_rate, part.fbank).numpy()
            if not len(features):
                raise AudioError(
                    f"{where}: {1000 * len(wave) / utterance.sampling_rate:.0f} ms are shorter than one frame of "
                    f"{part.fbank.frame_length_ms:g} ms"
                )
            if not np.isfinite(features).all():
                frame = int(np.isfinite(features).all(axis=1).argmin())
                raise AudioError(
                    f"{where}: the features of frame {frame} are NaN or infinite; its samples are out of all bounds"
                )
            found[part.name] = features
    lengths = {name: len(features) for name, features in found.items()}
    for external in config.externals:
        found[external.name] = sources.matrices[external.name].get(utterance.id)
        if external.every == 1:
            lengths[external.name] = len(found[external.name])
    if not lengths:
        raise ExternalError(f"{utterance.id}: no part says how many frames there are")
    if max(lengths.values()) - min(lengths.values()) > config.tolerance:
        raise ExternalError(
            f"{utterance.id}: its parts differ in frames: {', '.join(f'{n} {v}' for n, v in lengths.items())}"
        )
    frames = min(lengths.values())
    parts = [
        found[p.name][:frames]
        if isinstance(p, Filterbank) or p.every == 1
        else _stretched(found[p.name], frames, p, utterance.id, config.tolerance)
        for p in config.parts
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _stretched(rows: Float32, frames: int, part: External, name: str, tolerance: int) -> Float32:
    """Each row for `every` frames (0: the only row for all)."""
    if part.every == 0:
        if len(rows) != 1:
            raise ExternalError(f"{name}: {part.name} has {len(rows)} rows, where one vector is expected (every: 0)")
        return np.repeat(rows, frames, axis=0)
    if len(rows) * part.every + tolerance < frames or (len(rows) - 1) * part.every - tolerance >= frames:
        raise ExternalError(
            f"{name}: {part.name} has {len(rows)} rows of {part.every} frames, for {frames} frames in all"
        )
    return rows[np.minimum(np.arange(frames) // part.every, len(rows) - 1)]


_Found = list[tuple[Float32 | None, str]]
"""Features, or None and the reason why there are none: exceptions would end the pool's map."""

_sources: Sources | None = None  # of this worker process


def _begin_worker(sources: Sources) -> None:
    global _sources  # noqa: PLW0603 what a worker process is for
    _sources = sources
    torch.set_num_threads(1)


def _some(utterances: Sequence[Utterance]) -> _Found:
    assert _sources is not None
    return [_one(utterance, _sources) for utterance in utterances]


def _one(utterance: Utterance, sources: Sources) -> tuple[Float32 | None, str]:
    try:
        return features_of(utterance, sources), ""
    except (AudioError, ExternalError) as error:
        return None, str(error)


@contextmanager
def _mapper(workers: int, sources: Sources) -> Iterator[Callable[[list[Sequence[Utterance]]], Iterator[_Found]]]:
    """Something that maps batches in order, in this process or in several."""
    if workers <= 1:
        # One thread: the pieces are small, and two threads waiting for each other on busy cores took 15 times as long.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            # Utterance by utterance, so that each is safe as soon as it is there.
            yield lambda batches: ([_one(u, sources)] for batch in batches for u in batch)
        finally:
            torch.set_num_threads(threads)
        return
    with start_workers(workers, _begin_worker, sources) as running:
        yield lambda batches: running.in_order(_some, batches)


def _batches(utterances: Sequence[Utterance]) -> list[Sequence[Utterance]]:
    batches: list[Sequence[Utterance]] = []
    batch: list[Utterance] = []
    for u in utterances:
        batch.append(u)
        if sum(b.duration for b in batch) >= _SECONDS_AT_ONCE:
            batches.append(batch)
            batch = []
    return [*batches, batch] if batch else batches


def _workers(utterances: Sequence[Utterance], workers: int | None) -> int:
    if workers is not None:
        return workers
    seconds = sum(u.duration for u in utterances)
    return max(1, min(cores(), int(seconds / _SECONDS_WORTH_A_PROCESS)))


# All of them ----------------------------------------------------------------------------------------------------------


def compute_features(
    utterances: Sequence[Utterance],
    folder: Path,
    config: FeatureConfig | FbankConfig,
    progress: Progress,
    *,
    audio_folder: Path = Path(),
    workers: int | None = None,
    on_bad: BadPolicy = "error",
) -> tuple[FeatureStore, list[LeftOut]]:
    """Compute the features of all utterances into `folder`, in their order, unless they are there already.

    They are there when the store is complete and was made from the same utterances, the same files (by size and time of
    change) and the same configuration, under a policy that would have left out the same utterances. Utterances that an
    interrupted run has finished are not computed again, unless their files have changed.

    Args:
        utterances: of all splits; all at one sampling rate.
        folder: where to put the store.
        config: the parts; a FbankConfig alone is one filterbank.
        progress: told of every utterance.
        audio_folder: what relative paths of utterances are relative to.
        workers: processes; None: as many as pay.
        on_bad: `error`, or `skip` utterances that cannot be read, are shorter than a frame, give NaN or lack a part.

    Returns:
        The store, and the utterances left out (under `skip`) with the reason.

    Raises:
        UserError: repeated ids, several sampling rates, a full disk; under `error` any bad utterance (all are listed);
            under `skip` when nothing is left. What was in the folder before stays.
    """
    config = only_fbank(config) if isinstance(config, FbankConfig) else config
    rate = _sampling_rate(utterances)
    keys = _keys(utterances, audio_folder, config)
    fingerprint = _digest([f"{u.id} {keys[u.id]}" for u in utterances])
    if (done := _complete(folder, fingerprint, on_bad)) is not None:
        return done
    sources = Sources.of(audio_folder, config)
    if on_bad == "error":
        _refuse_missing(utterances, audio_folder, config)
    with _Partial.opened(folder) as partial:
        progress.start("computing features", len(utterances))
        partial.keep(keys)
        waiting = [u for u in utterances if u.id not in partial.entries]
        progress.advance(len(utterances) - len(waiting))
        try:
            with _mapper(_workers(waiting, workers), sources) as run:
                rest = iter(waiting)
                for found in run(_batches(waiting)):
                    for features, reason in found:
                        utterance = next(rest)
                        partial.add(utterance.id, keys[utterance.id], features, reason)
                        progress.advance()
                    partial.flush()
        finally:
            progress.finish()
        left_out = [LeftOut(u.id, reason) for u in utterances if (reason := partial.entries[u.id].reason)]
        kept = [u for u in utterances if not partial.entries[u.id].reason]
        if left_out and (on_bad == "error" or not kept):
            raise bad_audio(left_out, len(utterances))
        widths = {partial.entries[u.id].width: u.id for u in reversed(kept)}
        if len(widths) > 1:
            odd = [f"{width} features, first in {name}" for width, name in widths.items()]
            raise UserError(f"All utterances must have as many features:\n{listing(odd)}")
        speakers = _finish(partial, kept, config, sources)
    indices = {name: index for index, name in enumerate(speakers.names)}
    index = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "sampling_rate": rate,
        "frame_shift": config.frames.frame_shift(rate) / rate,
        "frame_length": config.frames.frame_length(rate) / rate,
        "config": plain(config),
        "parts": [dataclasses.asdict(part) for part in stored_parts(sources, kept[0])],
        "utterances": [u.id for u in kept],
        "frames": [partial.entries[u.id].frames for u in kept],
        "speakers": [indices[u.speaker] for u in kept],
        "left_out": [dataclasses.asdict(culprit) for culprit in left_out],
    }
    write_text(folder / INDEX, json.dumps(index, ensure_ascii=False, separators=(",", ":")) + "\n")
    partial.discard()
    return FeatureStore.open(folder), left_out


def stored_parts(sources: Sources, utterance: Utterance) -> tuple[StoredPart, ...]:
    """The columns of a store; how wide matrices from elsewhere are, an utterance tells."""
    return tuple(
        StoredPart(p.name, p.fbank.num_bins, p.deltas, p.normalise, p.spliced)
        if isinstance(p, Filterbank)
        else StoredPart(
            p.name, sources.matrices[p.name].get(utterance.id).shape[1], p.deltas, p.normalise, p.spliced, False
        )
        for p in sources.config.parts
    )


def _finish(partial: "_Partial", kept: Sequence[Utterance], config: FeatureConfig, sources: Sources) -> SpeakerStats:
    """From what was computed to the array and the speakers' statistics; the old store is none from here on."""
    width = partial.entries[kept[0].id].width
    statistics = _Statistics(width)
    for u in kept:
        statistics.add(u.speaker, partial.features(u.id))
    speakers = statistics.finish()
    first = 0
    for part in stored_parts(sources, kept[0]):
        if part.normalise == "none":
            speakers.mean[:, first : first + part.width] = 0.0
            speakers.std[:, first : first + part.width] = 1.0
        first += part.width
    partial.become(partial.folder / FEATURES, [u.id for u in kept], width)
    _write_speakers(partial.folder / SPEAKERS, speakers)
    return speakers


# What is finished so far ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """An utterance in the partial file; `reason` when it is left out."""

    key: str
    offset: int  # bytes
    frames: int
    width: int
    checksum: int
    reason: str

    @property
    def size(self) -> int:
        return 4 * self.frames * self.width


class _Partial:
    """Features in the order in which they were computed, and a line for each utterance, written after its features.

    The file begins with room for the head of a .npy file, so that it need not be copied when all is well.
    """

    def __init__(self, folder: Path, data: BinaryIO, journal: BinaryIO) -> None:
        self.folder, self._data, self._journal = folder, data, journal
        self.entries: dict[str, _Entry] = {}
        self._end = _HEADER_BYTES

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator["_Partial"]:
        """The folder's, and nobody else's meanwhile."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / _JOURNAL, "a+b") as journal, open(folder / _PARTIAL, "a+b") as data:
                try:
                    fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"{folder}: another process is computing these features. Wait for it, or end it."
                    ) from None
                yield cls(folder, data, journal)
        except OSError as error:
            raise unwritable(folder / FEATURES, error) from error

    def keep(self, keys: Mapping[str, str]) -> None:
        """Read what an interrupted run has left, as far as it is whole; what has another key is not wanted any more."""
        self._journal.seek(0)
        content = self._journal.read()
        whole = 0
        total = os.fstat(self._data.fileno()).st_size
        for line in content.splitlines(keepends=True):
            entry = _parsed(line, self._end)
            if entry is None or entry[1].offset + entry[1].size > total:
                break
            name, found = entry
            if zlib.crc32(self._read(found)) != found.checksum:
                break
            if keys.get(name) == found.key and not found.reason:  # what was bad may have been mended
                self.entries[name] = found
            self._end, whole = found.offset + found.size, whole + len(line)
        if not self.entries:
            self._end, whole = _HEADER_BYTES, 0
        self._journal.truncate(whole)
        self._data.truncate(self._end)  # also makes room for the head

    def _read(self, entry: _Entry) -> bytes:
        return os.pread(self._data.fileno(), entry.size, entry.offset)

    def add(self, name: str, key: str, features: Float32 | None, reason: str) -> None:
        """One more."""
        content = b"" if features is None else np.ascontiguousarray(features, "<f4").tobytes()
        frames, width = (0, 0) if features is None else features.shape
        entry = _Entry(key, self._end, frames, width, zlib.crc32(content), reason)
        self._data.write(content)
        fields = [name, key, frames, width, entry.checksum, reason]
        self._data.flush()  # before the line that says so
        self._journal.write(json.dumps(fields).encode() + b"\n")
        self.entries[name] = entry
        self._end += len(content)

    def flush(self) -> None:
        """What was added is safe from the death of this process."""
        self._journal.flush()

    def features(self, name: str) -> Float32:
        """(frames, F) of an utterance."""
        entry = self.entries[name]
        return np.frombuffer(self._read(entry), "<f4").reshape(entry.frames, entry.width)

    def become(self, path: Path, names: Sequence[str], width: int) -> None:
        """Put the features of `names` into a .npy file, by renaming where they lie in that order."""
        header = _npy_header(sum(self.entries[name].frames for name in names), width)
        # Once the new array is safe on disk, and only then, the old store ceases to be one: its index goes before the
        # array is replaced, and the new index comes last.
        if self._in_order(names):
            descriptor = os.open(self.folder / _PARTIAL, os.O_RDWR)
            try:
                os.pwrite(descriptor, header, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            (self.folder / INDEX).unlink(missing_ok=True)
            os.replace(self.folder / _PARTIAL, path)
            return
        with atomic_write(path) as file:
            file.write(header)
            for name in names:
                file.write(self._read(self.entries[name]))
            file.flush()
            os.fsync(file.fileno())
            (self.folder / INDEX).unlink(missing_ok=True)

    def _in_order(self, names: Sequence[str]) -> bool:
        """Whether the file holds these utterances one after the other and nothing else."""
        offset = _HEADER_BYTES
        for name in names:
            if self.entries[name].offset != offset:
                return False
            offset += self.entries[name].size
        return offset == self._end

    def discard(self) -> None:
        """The store is whole: nothing is partial any more."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        (self.folder / _PARTIAL).unlink(missing_ok=True)


def _parsed(line: bytes, offset: int) -> tuple[str, _Entry] | None:
    """The utterance and entry of a line of the journal; None when it is not a whole one."""
    try:
        name, key, frames, width, checksum, reason = json.loads(line)
    except ValueError:
        return None
    if not line.endswith(b"\n") or not all(isinstance(n, int) and n >= 0 for n in (frames, width)):
        return None
    return str(name), _Entry(str(key), offset, frames, width, checksum, str(reason))


def _sampling_rate(utterances: Sequence[Utterance]) -> int:
    """The one sampling rate of all utterances, whose ids differ."""
    if not utterances:
        raise UserError("There are no utterances to compute features of.")
    if again := repeated(u.id for u in utterances):
        raise UserError(f"{len(again)} utterance ids occur more than once; rename the utterances:\n{listing(again)}")
    rates: dict[int, str] = {}
    for u in utterances:
        rates.setdefault(u.sampling_rate, u.id)
    if len(rates) > 1:
        found = [f"{rate} Hz, first in {first}" for rate, first in rates.items()]
        raise UserError(f"All audio of a corpus must have one sampling rate; resample some:\n{listing(found)}")
    return utterances[0].sampling_rate


def _digest(values: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def _file_state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _keys(utterances: Sequence[Utterance], audio_folder: Path, config: FeatureConfig) -> dict[str, str]:
    """Utterance id -> what changes with the utterance, the files it is made from, and the configuration."""
    external = [[str(part.source), *_file_state(part.source)] for part in config.externals]
    common = _digest([VERSION, plain(config), external])
    files: dict[str, tuple[int, int]] = {}
    keys = {}
    for u in utterances:
        if u.path not in files:
            files[u.path] = _file_state(audio_path(u, audio_folder)) if config.filterbanks else (0, 0)
        place = [u.path, *files[u.path], u.start, u.num_samples, u.channel, u.sampling_rate, u.speaker, u.speed]
        keys[u.id] = _digest([common, *place])
    return keys


def _refuse_missing(utterances: Sequence[Utterance], audio_folder: Path, config: FeatureConfig) -> None:
    """Raise for files that are not there, before an hour of features has been computed in vain."""
    if not config.filterbanks:
        return
    absent: list[LeftOut] = []
    for u in utterances:
        if not audio_path(u, audio_folder).is_file():
            try:
                read_audio(u, audio_folder)
            except AudioError as error:
                absent.append(LeftOut(u.id, str(error)))
    if absent:
        raise bad_audio(absent, len(utterances))


def _complete(folder: Path, fingerprint: str, on_bad: BadPolicy) -> tuple[FeatureStore, list[LeftOut]] | None:
    """The store in `folder` if it is whole and is the one wanted."""
    try:
        index = read_json(folder / INDEX)
        if index["fingerprint"] != fingerprint:
            return None
        left_out = [LeftOut(**culprit) for culprit in index["left_out"]]
        store = FeatureStore.open(folder)
    except (UserError, KeyError, TypeError):
        return None
    return None if left_out and on_bad == "error" else (store, left_out)


def _npy_header(rows: int, columns: int) -> bytes:
    """The head of a .npy file of float32, always as long: it is written once the number of rows is known."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)})
    header = buffer.getvalue()
    assert len(header) == _HEADER_BYTES
    return header


class _Statistics:
    """Sums per speaker, in double precision."""

    def __init__(self, features: int) -> None:
        self.features = features
        self.sums: dict[str, tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}

    def add(self, speaker: str, features: Float32) -> None:
        zero = (0, np.zeros(self.features), np.zeros(self.features))
        count, total, squares = self.sums.get(speaker, zero)
        double = features.astype(np.float64)
        self.sums[speaker] = (
            count + len(double), total + double.sum(0), squares + np.einsum("tf,tf->f", double, double)
        )  # fmt: skip

    def finish(self) -> SpeakerStats:
        names = tuple(sorted(self.sums))
        counts = np.array([self.sums[name][0] for name in names], dtype=np.int64)
        mean = np.stack([self.sums[name][1] for name in names]) / counts[:, None]
        variance = np.stack([self.sums[name][2] for name in names]) / counts[:, None] - np.square(mean)
        std = np.maximum(np.sqrt(np.maximum(variance, 0.0)), SpeakerStats.STD_FLOOR)
        return SpeakerStats(names, mean.astype(np.float32), std.astype(np.float32), counts)


def _write_speakers(path: Path, speakers: SpeakerStats) -> None:
    with atomic_write(path) as file:
        np.savez(file, names=np.array(speakers.names), mean=speakers.mean, std=speakers.std, frames=speakers.frames)
