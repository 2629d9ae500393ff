"""Sound of any kind, block by block: what libsndfile reads (wav, flac, ogg, mp3, ...) and, through the program ffmpeg
where it is installed, everything else (m4a, webm, video).

A recording may be hours long, so nobody holds all of it. ffmpeg runs in a process of its own, may open this one file
and no address, and is ended when it writes nothing for a minute, or when nobody wants more.

Legend: N samples of a block, C channels.
"""

import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, final

import numpy as np

from roundelay_speech.audio.reading import READ_AT_ONCE, AudioError, Samples, SoundFile, hushed, opened
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.problems import Unusable, counted

FFMPEG = "ffmpeg"
LOWEST_RATE, HIGHEST_RATE, MOST_CHANNELS = 1_000, 768_000, 64
LOUDEST = 100.0
"""Samples lie between -1 and 1, and decoders leave that a little; numbers like these are no such samples."""
_PATIENCE = 60.0  # s, that ffmpeg may be silent
_AU_HEADER = struct.Struct(">4sIIIII")  # magic, where samples begin, their bytes, their kind, rate, channels
_AU_FLOAT = 6
# Kinds of files that hold sound themselves: a playlist would have ffmpeg open others.
_CONTAINERS = "mov,mp4,m4a,matroska,webm,aac,amr,ac3,ape,asf,avi,caf,flv,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv,flac,aiff"
_EXACT = frozenset({"WAV", "FLAC", "AIFF", "NIST", "WAVEX", "AU"})
"""Formats whose header says how many samples there are; that of an MP3 guesses."""


@final
@dataclass(frozen=True, eq=False)
class Sound:
    """A recording that is open."""

    rate: int  # Hz
    channels: int
    samples: int | None  # of each channel, as the header has it; None where it does not say
    blocks: Iterator[Samples]  # (N, C) float32, between -1 and 1; reading raises `Unusable`
    remarks: list[str] = field(default_factory=list)  # on what could not be read, once all else is


@contextmanager
def open_sound(path: Path) -> Iterator[Sound]:
    """Open a recording, to be read once from beginning to end.

    Raises:
        AudioError: it is missing, empty, cut short, of a kind that nothing here reads, or holds NaN or infinity; also
            while its blocks are read.
    """
    try:
        with _opened_somehow(path) as sound:
            if not LOWEST_RATE <= sound.rate <= HIGHEST_RATE or not 1 <= sound.channels <= MOST_CHANNELS:
                raise Unusable(f"has {counted(sound.channels, 'channel')} at {sound.rate} Hz, which is no recording")
            yield sound
    except Unusable as error:
        raise AudioError(f"{path}: {error}") from None


@contextmanager
def _opened_somehow(path: Path) -> Iterator[Sound]:
    if _known(path):
        remarks: list[str] = []
        with ExitStack() as stack:
            with hushed(path) as notes:
                file = stack.enter_context(opened(path))
            blocks = _read(file, path, notes, remarks)
            yield Sound(file.samplerate, file.channels, file.frames, _finite(blocks), remarks)
        return
    program = shutil.which(FFMPEG)
    if program is None:
        raise Unusable(
            "is not of a kind that is read here (wav, flac, ogg, mp3). For others, such as m4a, install the program "
            f"{FFMPEG} so that it is on PATH, or convert the file"
        )
    with _decoded(program, path) as sound:
        yield sound


def _known(path: Path) -> bool:
    """Return True if libsndfile reads it, or nothing will: it is missing, or empty."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return True
        with hushed(path), soundfile.SoundFile(path):
            return True
    except soundfile.LibsndfileError:
        with open(path, "rb") as file:
            head = file.read(12)
        # A damaged file of a known kind gets libsndfile's message, not that of a program for other kinds.
        return head[:4] in (b"RIFF", b"fLaC", b"OggS") and head[8:12] != b"AVI "
    except OSError:
        return True


def _read(file: SoundFile, path: Path, notes: list[str], remarks: list[str]) -> Iterator[Samples]:
    size, read = max(1, READ_AT_ONCE // file.channels), 0
    while True:
        with hushed(path) as said:
            block = file.read(size, dtype="float32", always_2d=True)
        notes += said
        if not len(block):
            break
        read += len(block)
        yield block
    if read >= file.frames:
        return
    if file.format in _EXACT:
        raise Unusable(f"is cut short: {read} of {counted(file.frames, 'sample')} can be read; get the file again")
    if notes:  # of its decoder; else the header may only have guessed
        lost = (file.frames - read) / file.samplerate
        remarks.append(f"damaged or cut short: about {lost:.1f} s of it cannot be read; get the file again")


def _finite(blocks: Iterator[Samples]) -> Iterator[Samples]:
    before = 0
    for block in blocks:
        if not np.isfinite(block).all():
            raise Unusable(f"holds NaN or infinity, first at sample {before + int(np.isfinite(block).all(1).argmin())}")
        if (peak := float(np.abs(block).max())) > LOUDEST:
            raise Unusable(f"holds samples up to {peak:g}, where 1 is as loud as can be; scale them")
        before += len(block)
        yield block


@contextmanager
def _decoded(program: str, path: Path) -> Iterator[Sound]:
    command = [program, "-nostdin", "-v", "error", "-protocol_whitelist", "file,pipe"]
    command += ["-format_whitelist", _CONTAINERS, "-i", f"file:{path}"]
    command += ["-map", "0:a:0", "-f", "au", "-c:a", "pcm_f32be", "pipe:1"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        assert process.stdout is not None
        try:
            header = _exactly(process.stdout, _AU_HEADER.size)
            if len(header) < _AU_HEADER.size:
                process.wait(_PATIENCE)
                raise Unusable(f"cannot be read as audio by {FFMPEG}{_last_words(said, path)}")
            magic, begin, _, kind, rate, channels = _AU_HEADER.unpack(header)
            if magic != b".snd" or kind != _AU_FLOAT or channels < 1:
                raise Unusable(f"cannot be read: {FFMPEG} gives something else than samples")
            _exactly(process.stdout, begin - _AU_HEADER.size)
            blocks = _converted(process, channels, partial(_last_words, said, path))
            yield Sound(rate, channels, None, _finite(blocks))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait()


def _converted(process: subprocess.Popen[bytes], channels: int, last_words: Callable[[], str]) -> Iterator[Samples]:
    assert process.stdout is not None
    width = 4 * channels
    size = max(1, READ_AT_ONCE // channels) * width
    found = False
    while data := _exactly(process.stdout, size):
        whole = data[: len(data) - len(data) % width]
        found = found or bool(whole)
        # Decoders of lossy formats leave the range here and there, as libsndfile's do.
        yield np.frombuffer(whole, ">f4").astype(np.float32).reshape(-1, channels)
    if process.wait(_PATIENCE):
        raise Unusable(f"is damaged or cut short, says {FFMPEG}{last_words()}; get the file again")
    if not found:
        raise Unusable("holds no samples")


def _exactly(stream: IO[bytes], count: int) -> bytes:
    """Return so many bytes, or fewer where the stream ends."""
    data = bytearray()
    while len(data) < count:
        if not select.select([stream], [], [], _PATIENCE)[0]:
            raise Unusable(f"cannot be read: {FFMPEG} wrote nothing for {_PATIENCE:g} s and was ended")
        more = os.read(stream.fileno(), min(count - len(data), 1 << 20))
        if not more:
            break
        data += more
    return bytes(data)


def _last_words(said: IO[bytes], path: Path) -> str:
    """Return the last line that ffmpeg has said, without the name of the file, which the message begins with."""
    said.seek(0)
    lines = [line.strip() for line in said.read(4000).decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1].removeprefix(f'file:{path}: ')[:200]})" if lines else ""
