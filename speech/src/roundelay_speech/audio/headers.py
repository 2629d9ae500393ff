"""Headers of audio files, NIST SPHERE and WAV: their declarations, which libsndfile does not hold a file to.

A SPHERE file begins with two lines, `NIST_1A` and the length of the header in bytes (usually 1024); then lines
`NAME -TYPE VALUE` (-i whole number, -r real number, -sN text of N bytes) up to `end_head`. The samples behind it are
plain (pcm, ulaw, alaw), which libsndfile reads, or compressed (`ulaw,embedded-shorten-v2.00`), which only `sph2pipe`
turns into WAV. A WAV file is `RIFF`, a length, `WAVE`, and chunks: a name, a length, and as many bytes.
"""

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from roundelay_speech.data.problems import Unusable

SPHERE = b"NIST_1A\n"
STREAMED = 0x7FFFF000
"""Lengths in a WAV header from this one on mean "unknown": the writer could not go back to fill them in."""
_LARGEST_HEADER = 1 << 20
_PLAIN = frozenset({"pcm", "ulaw", "mu-law", "alaw"})


@dataclass(frozen=True)
class SphereHeader:
    """Fields declared in the header of a SPHERE file."""

    channels: int
    sampling_rate: int  # Hz
    samples: int  # of each channel
    sample_bytes: int
    coding: str  # pcm, ulaw, ..., perhaps with a compression behind a comma

    @property
    def compressed(self) -> bool:
        return self.coding not in _PLAIN


def read_sphere(file: BinaryIO) -> SphereHeader:
    """Read and check the header of a SPHERE file from its beginning; of plain samples also that all that are declared
    are there.

    Raises:
        Unusable: it is faulty or cut short; names the byte.
    """
    head = file.read(16)
    if head[:8] != SPHERE:
        raise Unusable("not a SPHERE file (it does not begin with NIST_1A)")
    size = head[8:].strip()
    if not size.isdigit() or not 16 < int(size) <= _LARGEST_HEADER:
        raise Unusable(f"at byte 8 there is {head[8:]!r}, not the length of the header")
    text = head + file.read(int(size) - 16)
    if len(text) < int(size):
        raise Unusable(f"is cut short in its header, after {len(text)} of {int(size)} bytes; get the file again")
    fields = _fields(text)
    coding = fields.get("sample_coding", (0, "pcm"))[1].lower()
    least = 1 if coding.startswith(("ulaw", "mu-law", "alaw")) else 2
    header = SphereHeader(
        _whole(fields, "channel_count", 1),
        _whole(fields, "sample_rate"),
        _whole(fields, "sample_count"),
        _whole(fields, "sample_n_bytes", least),
        coding,
    )
    if not header.compressed:
        there = os.fstat(file.fileno()).st_size - int(size)
        _check_length(there, header.samples * header.channels * header.sample_bytes)
    return header


def _check_length(there: int, declared: int) -> None:
    if there < declared:
        raise Unusable(
            f"is cut short: {max(0, there)} of the {declared} bytes of samples its header declares are there; get the "
            "file again"
        )


def _fields(text: bytes) -> dict[str, tuple[int, str]]:
    """Return the fields by name: the byte where the line begins, and the value."""
    found: dict[str, tuple[int, str]] = {}
    place = 16
    for line in text[16:].split(b"\n"):
        stripped = line.strip()
        if stripped == b"end_head":
            return found
        if stripped and not stripped.startswith(b";"):
            parts = stripped.split(None, 2)
            if len(parts) < 3 or not parts[1].startswith(b"-"):
                raise Unusable(f"at byte {place} there is {stripped[:40]!r}, not `NAME -TYPE VALUE`")
            found[parts[0].decode("latin-1")] = place, parts[2].decode("latin-1").strip()
        place += len(line) + 1
    raise Unusable(f"its header of {len(text)} bytes has no `end_head`")


def _whole(fields: dict[str, tuple[int, str]], name: str, default: int | None = None) -> int:
    if name not in fields:
        if default is None:
            raise Unusable(f"its header has no {name}")
        return default
    place, value = fields[name]
    if not re.fullmatch(r"[0-9]{1,15}", value) or int(value) == 0:
        raise Unusable(f"at byte {place}, {name} is {value[:40]!r}, not a whole number above 0")
    return int(value)


def wav_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield name and length of each chunk of a WAV file, placed at the chunk's first byte; nothing for other files."""
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return
    while len(chunk := file.read(8)) == 8:
        name, length = struct.unpack("<4sI", chunk)
        here = file.tell()
        yield name, length
        file.seek(here + length + length % 2)


def check_whole(file: BinaryIO, size: int) -> None:
    """Raise `Unusable` if a WAV or SPHERE file of `size` bytes is shorter than its header says, or is compressed."""
    if file.read(8) == SPHERE:
        file.seek(0)
        if (header := read_sphere(file)).compressed:
            raise Unusable(f"is compressed ({header.coding}); unpack it first, e.g. with sph2pipe")
    file.seek(0)
    for name, length in wav_chunks(file):
        if name == b"data":
            # Writers to a pipe cannot go back to fill in the length: they leave 0 or the largest number.
            if length < STREAMED:
                _check_length(size - file.tell(), length)
            return
