"""Samples of an utterance, or a message that says what is wrong with its file; and recordings of NIST SPHERE,
compressed ones as files that can be read.

A WAV or SPHERE file cut short is the treacherous case: libsndfile quietly reports the samples that are left, so the
length that the file's own header declares is read here. The opposite is a header that declares more than there can be:
room is made for samples only as they are read.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, tracked
from roundelay_speech.audio.distortion import distorted
from roundelay_speech.audio.headers import SphereHeader, check_whole, read_sphere
from roundelay_speech.audio.speed import resampled
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, Unusable, counted, listing

SoundFile = Any  # soundfile.SoundFile: the binding has no types

READ_AT_ONCE = 1 << 20
"""Samples read at once, all channels together."""

LOUDEST = 100.0
"""Largest absolute value of a sample: samples lie between -1 and 1, or a little beyond."""


class AudioError(UserError):
    """One utterance's audio cannot be used; the message names the utterance, the file and the reason."""


def audio_path(utterance: Utterance, folder: Path) -> Path:
    """Return the path of an utterance's file of samples; `folder` is the manifest's."""
    return folder / utterance.path


def read_audio(utterance: Utterance, folder: Path, rate: int | None = None) -> Samples:
    """Return the samples of one utterance, (num_samples,), between -1 and 1; of a copy at another speed, (num_samples /
    speed,); of a distorted copy with its distortion.

    Args:
        rate: sampling rate in Hz to resample to; None: no resampling.

    Raises:
        AudioError: the file is missing, unreadable, cut short, empty, at another sampling rate or without the channel,
            ends before the utterance does, or holds NaN or infinity.
    """
    path = audio_path(utterance, folder)
    try:
        with hushed(path), opened(path) as file:
            wanted = rate or utterance.sampling_rate
            read = resampled(_samples(file, utterance), utterance.sampling_rate, wanted, utterance.speed)
            return distorted(read, wanted, utterance)
    except Unusable as error:
        raise AudioError(f"{utterance.id}: {path}: {error}") from None


def audio_length(path: Path) -> tuple[int, int]:
    """Return the sampling rate in Hz and the number of samples per channel, from the header.

    Raises:
        AudioError: the file is missing, unreadable, cut short or empty.
    """
    return audio_shape(path)[:2]


def whole_recording(
    name: str, path: Path, speaker: str, text: str, gender: str | None = None, subset: str | None = None
) -> Utterance:
    """Return a file as one utterance.

    Raises:
        AudioError: the file cannot be used.
    """
    rate, samples = audio_length(path)
    return Utterance(
        id=name,
        recording_id=name,
        path=os.path.abspath(path),
        start=0.0,
        duration=samples / rate,
        channel=0,
        sampling_rate=rate,
        num_samples=samples,
        speaker=speaker,
        text=text,
        gender=gender,
        subset=subset,
    )


def audio_shape(path: Path) -> tuple[int, int, int]:
    """Return the sampling rate in Hz, samples per channel, and channels, as `audio_length`."""
    try:
        with hushed(path), opened(path) as file:
            return int(file.samplerate), int(file.frames), int(file.channels)
    except Unusable as error:
        raise AudioError(f"{path}: {error}") from None


def channel_levels(utterance: Utterance, folder: Path, seconds: float = 60.0) -> list[float]:
    """Return the root mean square of every channel of an utterance's recording, over its first `seconds` at most.

    Raises:
        AudioError: the file cannot be read, or ends before the utterance begins.
    """
    path = audio_path(utterance, folder)
    try:
        with hushed(path), opened(path) as file:
            file.seek(min(utterance.start_sample, file.frames))
            wanted = min(utterance.num_samples, int(seconds * utterance.sampling_rate))
            block = np.nan_to_num(file.read(wanted, dtype="float32", always_2d=True))
            return [float(np.sqrt(np.mean(np.square(channel)))) if len(channel) else 0.0 for channel in block.T]
    except Unusable as error:
        raise AudioError(f"{utterance.id}: {path}: {error}") from None


def bad_audio(left_out: Sequence[LeftOut], of: int, where: Path | None = None, what: str = "utterance") -> UserError:
    """Return the error that names all utterances left out of `of`; `where` is their place, `what` their name."""
    return UserError(
        f"{'' if where is None else f'{where}: '}{len(left_out)} of {counted(of, what)} cannot be used. Mend the files "
        f"or their entries, or leave these out (`--on-bad-audio skip`):\n{listing([one.reason for one in left_out])}"
    )


_QUIET = (b"RIFF", b"RF64", b"fLaC", b"NIST", b"OggS", b"FORM")
"""First bytes of kinds of files whose reader prints no notes."""


@contextmanager
def hushed(path: Path) -> Iterator[list[str]]:
    """Keep libmpg123 from printing notes on a file; afterwards the list has them. Everything written to standard error
    counts as such notes, so no other thread may write to it."""
    said: list[str] = []
    try:
        with open(path, "rb") as file:
            talks = file.read(4) not in _QUIET
        kept = os.dup(2) if talks else None
    except OSError:  # without a file, or without standard error
        kept = None
    if kept is None:
        yield said
        return
    sys.stderr.flush()
    with os.fdopen(os.memfd_create("notes"), "rb") as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            notes.seek(0)
            said += notes.read().decode(errors="replace").splitlines()


@contextmanager
def opened(path: Path) -> Iterator[SoundFile]:
    """Open a file of audio.

    Raises:
        Unusable: the file has a fault, found at once or while the block reads.
    """
    try:
        _check_whole(path)
        with soundfile.SoundFile(path) as file:
            if file.frames == 0:
                raise Unusable("holds no samples")
            yield file
    except soundfile.LibsndfileError as error:
        raise Unusable(f"cannot be read as audio ({error.error_string.rstrip('.')}); get the file again") from None
    except OSError as error:
        raise Unusable(f"cannot be read ({error.strerror or error})") from None


def _samples(file: SoundFile, utterance: Utterance) -> Samples:
    first, last = utterance.start_sample, utterance.start_sample + utterance.num_samples
    if file.samplerate != utterance.sampling_rate:
        raise Unusable(
            f"sampled at {file.samplerate} Hz, {utterance.sampling_rate} Hz when it was prepared; prepare the corpus "
            "again"
        )
    if utterance.channel >= file.channels:
        raise Unusable(f"has {counted(file.channels, 'channel')}, no channel {utterance.channel} (counted from 0)")
    if last > file.frames:
        raise Unusable(f"ends after {counted(file.frames, 'sample')}, the utterance needs samples {first} to {last}")
    file.seek(first)
    block = max(1, READ_AT_ONCE // file.channels)
    pieces: list[Samples] = []
    missing = utterance.num_samples
    while missing > 0:
        read = file.read(min(block, missing), dtype="float32", always_2d=True)[:, utterance.channel]
        pieces.append(np.ascontiguousarray(read))
        missing -= len(read)
        if len(read) == 0:
            break
    samples = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    if len(samples) < utterance.num_samples:
        found = f"{len(samples)} of {counted(utterance.num_samples, 'sample')}"
        raise Unusable(f"is cut short: {found} can be read; get the file again")
    check_samples(samples)
    return samples


def check_samples(samples: Samples, before: int = 0) -> None:
    """Raise `Unusable` if samples, (T,) or (T, channels), are not finite or too large; `before`: samples before
    them."""
    if not (finite := np.isfinite(samples)).all():
        raise Unusable(f"holds NaN or infinity, first at sample {before + int(np.argwhere(~finite)[0][0])}")
    if (peak := float(np.abs(samples).max(initial=0.0))) > LOUDEST:
        raise Unusable(f"holds samples up to {peak:g}, where 1 is as loud as can be; scale them")


def _check_whole(path: Path) -> None:
    """Raise `Unusable` if a file is missing or empty, or a WAV or SPHERE file shorter than its header says."""
    if not path.is_file():
        raise Unusable("is a folder, not a file" if path.is_dir() else "no such file")
    size = path.stat().st_size
    if size == 0:
        raise Unusable("the file is empty (0 bytes)")
    with open(path, "rb") as file:
        check_whole(file, size)


CONVERTER = "sph2pipe"


def read_header(path: Path) -> SphereHeader:
    """Read and check a SPHERE header; for plain samples also that the file has all that it declares.

    Raises:
        AudioError: the file is missing, not SPHERE, faulty or cut short; names the file and the byte.
    """
    try:
        with open(path, "rb") as file:
            return read_sphere(file)
    except Unusable as error:
        raise AudioError(f"{path}: {error}") from None
    except OSError as error:
        raise AudioError(f"{path}: cannot be read ({error.strerror or error})") from None


def readable(paths: Sequence[Path], folder: Path, progress: Progress) -> tuple[dict[Path, Path], list[str]]:
    """Return the readable file of each recording: its own, or a WAV in `folder` where it is compressed.

    Files converted before are kept.

    Returns:
        Recording -> file, for those that can be used; and the faults of the others.

    Raises:
        UserError: some recordings are compressed, and there is no converter.
    """
    found: dict[Path, Path] = {}
    bad: list[str] = []
    pending: list[tuple[Path, SphereHeader]] = []
    for path in paths:
        try:
            header = read_header(path)
        except AudioError as error:
            bad.append(str(error))
            continue
        found[path] = path
        if header.compressed:
            found[path] = folder / f"{path.stem}.wav"
            if not _is_whole(found[path], header):
                pending.append((path, header))
    if not pending:
        return found, bad
    converter = shutil.which(CONVERTER)
    if converter is None:
        raise UserError(
            f"{counted(len(pending), 'recording')} in compressed SPHERE format ({pending[0][1].coding}), which needs "
            f"the program {CONVERTER} (of the LDC, or of Kaldi's tools): install it so that it is on PATH. The first "
            f"are:\n{listing([str(path) for path, _ in pending])}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, header in tracked(progress, f"converting with {CONVERTER}", pending):
        if problem := _convert(converter, path, header, found[path]):
            bad.append(problem)
            del found[path]
    return found, bad


def _convert(converter: str, path: Path, header: SphereHeader, target: Path) -> str | None:
    """Convert a compressed recording to `target`, whole or not at all; return the fault, or None."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        command = [converter, "-f", "wav", "-p", str(path), str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            return f"{path}: {CONVERTER} gives up ({done.stderr.strip()[:200] or f'status {done.returncode}'})"
        if not _is_whole(temporary, header):
            return f"{path}: {CONVERTER} does not find the {header.samples} samples that its header declares"
        os.replace(temporary, target)
    except OSError as error:
        return f"{path}: {CONVERTER} cannot be run ({error.strerror or error})"
    finally:
        temporary.unlink(missing_ok=True)
    return None


def _is_whole(path: Path, header: SphereHeader) -> bool:
    try:
        return audio_length(path) == (header.sampling_rate, header.samples)
    except AudioError:
        return False
