"""Sound of any kind, block by block: what libsndfile reads (wav, flac, ogg, mp3, ...) and, through the program ffmpeg
where it is installed, everything else (m4a, webm, video).

A recording may be hours long, so it is never in memory as a whole. ffmpeg runs in a process of its own, may open this
one file and no address, and is ended when it writes nothing for a minute, or when no more is wanted. A page gets a file
that browsers play, and a spectrogram.

Legend: N samples of a block, C channels.
"""

import io
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, final

import numpy as np
import numpy.typing as npt

from roundelay_speech.audio.reading import READ_AT_ONCE, AudioError, SoundFile, check_samples, hushed, opened
from roundelay_speech.bindings import soundfile
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.problems import Unusable, counted

FFMPEG = "ffmpeg"
LOWEST_RATE, HIGHEST_RATE, MOST_CHANNELS = 1_000, 768_000, 64
_PATIENCE = 60.0  # s, that ffmpeg may be silent
_AU_HEADER = struct.Struct(">4sIIIII")  # magic, where samples begin, their bytes, their kind, rate, channels
_AU_FLOAT = 6
# Kinds of files that hold sound themselves: a playlist would have ffmpeg open others.
_CONTAINERS = "mov,mp4,m4a,matroska,webm,aac,amr,ac3,ape,asf,avi,caf,flv,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv,flac,aiff"
_EXACT = frozenset({"WAV", "FLAC", "AIFF", "NIST", "WAVEX", "AU"})
"""Formats whose header gives the exact number of samples, unlike MP3."""


@final
@dataclass(frozen=True, eq=False)
class Sound:
    """An open recording: rate, channels, and blocks of samples."""

    rate: int  # Hz
    channels: int
    samples: int | None  # of each channel, as the header has it; None where it does not say
    blocks: Iterator[Samples]  # (N, C) float32, between -1 and 1; reading raises `Unusable`
    remarks: list[str] = field(default_factory=list)  # on parts that could not be read, once all else is

    def check(self, channel: int) -> None:
        """Look for a channel, from 1; 0 stands for the mean of all.

        Raises:
            Unusable: there is none of that number.
        """
        if channel > self.channels:
            raise Unusable(f"has {counted(self.channels, 'channel')}, no channel {channel}")


def one_channel(block: Samples, channel: int) -> Samples:
    """Return a channel, from 1, of samples (N, C); for 0 the mean of all."""
    return block.mean(1) if channel == 0 else np.ascontiguousarray(block[:, channel - 1])


@contextmanager
def open_sound(path: Path) -> Iterator[Sound]:
    """Open a recording, to be read once from beginning to end.

    Raises:
        AudioError: the file is missing, empty, cut short, of an unknown kind, or holds NaN or infinity; also raised
            while blocks are read.
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
    """Return True if libsndfile reads a file, or nothing can since it is missing or empty."""
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
        check_samples(block, before)
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
    """Read `count` bytes from a stream; fewer if it ends."""
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
    """Return the last line of ffmpeg's messages, without the name of the file."""
    said.seek(0)
    lines = [line.strip() for line in said.read(4000).decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1].removeprefix(f'file:{path}: ')[:200]})" if lines else ""


_WINDOW_S, _SHIFT_S = 0.025, 0.005
_RANGE_DB = 55.0  # below the loudest point is white
_PNG_GREY = 0


def flac(samples: Samples, rate: int) -> bytes:
    """Encode samples, (N,) between -1 and 1, as a FLAC file of 16 bits."""
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def spectrogram_png(samples: Samples, rate: int, height: int = 160, most_columns: int = 1200) -> bytes:
    """Return the spectrogram of samples (N,) as a PNG: time to the right over its whole width, frequency upwards from 0
    to half the rate, darker for louder, white 55 dB below the loudest point."""
    window, shift = round(_WINDOW_S * rate), max(1, round(_SHIFT_S * rate))
    shift = max(shift, len(samples) // most_columns)
    padded = np.pad(samples.astype(np.float64), (0, max(0, window - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::shift] * np.hanning(window)
    power = np.square(np.abs(np.fft.rfft(frames, n=max(2 * height, 1 << (window - 1).bit_length()), axis=1)))
    edges = np.linspace(0, power.shape[1], height + 1).astype(int)[:-1]
    bands = np.add.reduceat(power, edges, axis=1)  # (columns, height)
    level = 10 * np.log10(np.maximum(bands, 1e-12))
    dark = np.clip((level - level.max() + _RANGE_DB) / _RANGE_DB, 0, 1)
    return _png(np.round(255 * (1 - dark)).astype(np.uint8).T[::-1])


def _png(grey: npt.NDArray[np.uint8]) -> bytes:
    """Encode a picture of grey levels, (H, W), by the PNG specification (W3C, third edition)."""
    height, width = grey.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), grey], axis=1).tobytes()  # filter 0 before each line
    head = struct.pack(">IIBBBBB", width, height, 8, _PNG_GREY, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
