"""Sound that comes through a pipe while it is made: WAV as recorders write it (`arecord -t wav`), or bare samples.

Only the next samples are waited for: a block is all that is there.

Legend: N samples of a block, C channels.
"""

import struct
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from roundelay_speech.audio.reading import AudioError
from roundelay_speech.audio.sound import HIGHEST_RATE, LOWEST_RATE, MOST_CHANNELS, Sound
from roundelay_speech.data.arrays import Samples

_LONGEST_CHUNK = 1 << 20  # of a header
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_AT_ONCE = 1 << 16  # bytes


class Pipe(Protocol):
    """A stream of bytes, as `sys.stdin.buffer` is."""

    def read1(self, size: int, /) -> bytes:
        """Return the bytes that have come, at most `size`; wait if there are none; empty at the end."""


def arriving(pipe: Pipe, rate: int | None) -> Sound:
    """Return the sound that comes through a pipe: WAV of 16-bit integers or 32-bit floats, or bare samples.

    Args:
        rate: sampling rate in Hz of bare 16-bit samples of one channel, without a header; None: there is a header.

    Raises:
        AudioError: the header is of another kind, or missing.
    """
    if rate is not None:
        return Sound(rate, 1, None, _blocks(pipe, b"", 1, np.dtype("<i2")))
    head = _exactly(pipe, 12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise AudioError(
            "standard input: a stream begins with the header of a WAV file (arecord -t wav), or is bare 16-bit samples "
            "of one channel: then give --rate HZ."
        )
    kind = channels = bits = 0
    found = 0
    while True:
        chunk = _exactly(pipe, 8)
        if len(chunk) < 8:
            raise AudioError("standard input: ends within the header of a WAV file.")
        name, length = chunk[:4], int.from_bytes(chunk[4:], "little")
        if name == b"data":
            break
        if length > _LONGEST_CHUNK:
            raise AudioError("standard input: the header of this WAV file is broken.")
        body = _exactly(pipe, length + length % 2)
        if name == b"fmt " and len(body) >= 16:
            kind, channels, found, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            kind = int.from_bytes(body[24:26], "little") if kind == _EXTENSIBLE else kind
    types: dict[tuple[int, int], np.dtype[Any]] = {(_PCM, 16): np.dtype("<i2"), (_FLOAT, 32): np.dtype("<f4")}
    if (kind, bits) not in types or not 1 <= channels <= MOST_CHANNELS or not LOWEST_RATE <= found <= HIGHEST_RATE:
        raise AudioError(
            f"standard input: WAV of {bits} bits, {channels} channels and {found} Hz; a stream is of 16-bit integers "
            "or 32-bit floats (arecord -f S16_LE)."
        )
    return Sound(found, channels, None, _blocks(pipe, b"", channels, types[kind, bits]))


def _blocks(pipe: Pipe, waiting: bytes, channels: int, kind: np.dtype[Any]) -> Iterator[Samples]:
    width = channels * kind.itemsize
    while data := pipe.read1(_AT_ONCE):
        waiting += data
        whole = len(waiting) - len(waiting) % width
        if whole:
            block = np.frombuffer(waiting[:whole], kind).reshape(-1, channels)
            scaled = block.astype(np.float32) / np.float32(32768 if kind.kind == "i" else 1)
            yield np.nan_to_num(np.clip(scaled, -1, 1))
            waiting = waiting[whole:]


def _exactly(pipe: Pipe, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := pipe.read1(count - len(data))):
        data += more
    return data
