"""Features of a whole corpus: computed once, kept in one array (see feature_store).

Legend: T frames of all utterances together, F features.
"""

import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, write_text
from roundelay.core.progress import Progress
from roundelay.speech.audio import AudioError, audio_path, bad_audio, check_audio, read_audio
from roundelay.speech.corpus.manifest import Utterance, repeated
from roundelay.speech.culprits import BadPolicy, LeftOut, listing
from roundelay.speech.fbank import FbankConfig, fbank
from roundelay.speech.feature_store import FEATURES, INDEX, SPEAKERS, VERSION, FeatureStore, Float32, SpeakerStats

__all__ = ["FbankConfig", "FeatureStore", "SpeakerStats", "compute_features", "fbank", "fbank_of"]

# A worker process takes about two seconds to import torch; below this much audio one process is done sooner.
_SECONDS_WORTH_A_PROCESS = 2 * 3600.0
_HEADER_BYTES = 128


def compute_features(
    utterances: Sequence[Utterance],
    folder: Path,
    config: FbankConfig,
    progress: Progress,
    *,
    audio_folder: Path = Path(),
    workers: int | None = None,
    on_bad: BadPolicy = "error",
) -> tuple[FeatureStore, list[LeftOut]]:
    """Compute the features of all utterances into `folder`, in their order, unless they are there already.

    They are there when the store is complete and was made from the same utterances, the same files (by size and time of
    change) and the same configuration, under a policy that would have left out the same utterances.

    Args:
        utterances: of all splits; all at one sampling rate.
        folder: where to put the store.
        config: of the filterbank.
        progress: told of every utterance.
        audio_folder: what relative paths of utterances are relative to.
        workers: processes; None: as many as pay.
        on_bad: `error`, or `skip` utterances that cannot be read, are shorter than a frame or give NaN.

    Returns:
        The store, and the utterances left out (under `skip`) with the reason.

    Raises:
        UserError: repeated ids, several sampling rates, a full disk; under `error` any bad utterance (all are listed);
            under `skip` when nothing is left. What was in the folder before stays.
    """
    rate = _sampling_rate(utterances)
    fingerprint = _fingerprint(utterances, audio_folder, config)
    if (done := _complete(folder, fingerprint, on_bad)) is not None:
        return done
    # All of the audio is read first, so that a bad file is known before an hour of features has been computed in vain.
    sound, left_out = check_audio(utterances, audio_folder, progress, on_bad)
    progress.start("computing features", len(sound))
    statistics = _Statistics(config.num_bins)
    kept: list[Utterance] = []
    frames: list[int] = []
    try:
        with atomic_write(folder / FEATURES) as file:
            file.write(_npy_header(0, config.num_bins))
            with _mapper(_workers(sound, workers)) as run:
                for utterance, features in zip(sound, run(partial(_one, audio_folder, config), sound), strict=True):
                    progress.advance()
                    if isinstance(features, str):
                        left_out.append(LeftOut(utterance.id, features))
                        continue
                    file.write(features.tobytes())
                    statistics.add(utterance.speaker, features)
                    kept.append(utterance)
                    frames.append(len(features))
            if left_out and (on_bad == "error" or not kept):
                raise bad_audio(left_out, len(utterances))
            file.seek(0)
            file.write(_npy_header(sum(frames), config.num_bins))
            # Once the new array is safe on disk, and only then, the old store ceases to be one: its index goes before
            # the array is replaced, and the new index comes last.
            file.flush()
            os.fsync(file.fileno())
            (folder / INDEX).unlink(missing_ok=True)
    finally:
        progress.finish()
    speakers = statistics.finish()
    _write_speakers(folder / SPEAKERS, speakers)
    indices = {name: index for index, name in enumerate(speakers.names)}
    index = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "sampling_rate": rate,
        "config": dataclasses.asdict(config),
        "utterances": [u.id for u in kept],
        "frames": frames,
        "speakers": [indices[u.speaker] for u in kept],
        "left_out": [dataclasses.asdict(culprit) for culprit in left_out],
    }
    write_text(folder / INDEX, json.dumps(index, ensure_ascii=False, separators=(",", ":")) + "\n")
    return FeatureStore.open(folder), left_out


def fbank_of(utterance: Utterance, audio_folder: Path, config: FbankConfig) -> Float32:
    """The features of one utterance, (its frames, F).

    Raises:
        AudioError: its audio cannot be used, is shorter than a frame, or its features are NaN or infinite.
    """
    wave = read_audio(utterance, audio_folder)
    features: Float32 = fbank(torch.from_numpy(wave), utterance.sampling_rate, config).numpy()
    where = f"{utterance.id}: {audio_path(utterance, audio_folder)}"
    if len(features) == 0:
        raise AudioError(
            f"{where}: {utterance.duration * 1000:.0f} ms are shorter than one frame of {config.frame_length_ms:g} ms"
        )
    if not np.isfinite(features).all():
        frame = int(np.isfinite(features).all(axis=1).argmin())
        raise AudioError(
            f"{where}: the features of frame {frame} are NaN or infinite; its samples are out of all bounds"
        )
    return features


def _one(audio_folder: Path, config: FbankConfig, utterance: Utterance) -> Float32 | str:
    """The features, or the reason why there are none: exceptions would end the pool's map."""
    try:
        return fbank_of(utterance, audio_folder, config)
    except AudioError as error:
        return str(error)


_Run = Callable[[Callable[[Utterance], Float32 | str], Sequence[Utterance]], Iterator[Float32 | str]]


@contextmanager
def _mapper(workers: int) -> Iterator[_Run]:
    """Something that maps in order, in this process or in several."""
    if workers <= 1:
        # One thread: the pieces are small, and two threads waiting for each other on busy cores took 15 times as long.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield map
        finally:
            torch.set_num_threads(threads)
        return
    # Spawned, not forked: a child forked after torch has started its threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield partial(pool.map, chunksize=32)


def _workers(utterances: Sequence[Utterance], workers: int | None) -> int:
    if workers is not None:
        return workers
    seconds = sum(u.duration for u in utterances)
    return max(1, min(os.cpu_count() or 1, int(seconds / _SECONDS_WORTH_A_PROCESS)))


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


def _fingerprint(utterances: Sequence[Utterance], audio_folder: Path, config: FbankConfig) -> str:
    """Changes with the utterances, the files they are in, and the configuration."""
    digest = hashlib.blake2b(json.dumps([VERSION, dataclasses.asdict(config)]).encode(), digest_size=16)
    files: dict[str, tuple[int, int]] = {}
    for u in utterances:
        if u.path not in files:
            try:
                status = audio_path(u, audio_folder).stat()
                files[u.path] = (status.st_size, status.st_mtime_ns)
            except OSError:
                files[u.path] = (-1, -1)
        digest.update(
            json.dumps(
                [u.id, u.path, *files[u.path], u.start, u.num_samples, u.channel, u.sampling_rate, u.speaker]
            ).encode()
        )
    return digest.hexdigest()


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
    """The head of a .npy file of float32, always as long: it is written again once the number of rows is known."""
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
        self.sums[speaker] = (count + len(double), total + double.sum(0), squares + np.square(double).sum(0))

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
