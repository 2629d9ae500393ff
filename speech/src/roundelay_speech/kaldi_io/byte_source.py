"""A file read forwards, byte by byte: it knows its position, and checks lengths before it reserves memory.

An archive may be gzipped. Every failure names the file, the byte and the key.
"""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from roundelay_speech.data.manifest import is_one_word
from roundelay_speech.kaldi_io.locations import ArchiveError

_LONGEST_KEY = 4096  # bytes
_LONGEST_LINE = 1 << 24  # bytes; the alignment of an hour is 2 MB
_PIECE = 1 << 20  # bytes read at once where the length of the file is not known
_BLANKS = b" \t\n\r"


class ByteSource:
    """A file read forwards, which knows where it is, and how long it is unless it is packed."""

    def __init__(self, file: BinaryIO, path: Path, size: int | None) -> None:
        self.file, self.path, self.size = file, path, size
        self.position = 0

    def failure(self, what: str, at: int | None = None, key: str | None = None) -> ArchiveError:
        where = f"{self.path}: byte {self.position if at is None else at}: "
        return ArchiveError(f"{where}{f'{key}: ' if key else ''}{what}.")

    def seek(self, offset: int) -> None:
        if self.size is None:
            raise self.failure("a place inside a packed file; unpack it", offset)
        if offset >= self.size:
            raise self.failure(f"the file ends at byte {self.size}; get it again", offset)
        self.file.seek(offset)
        self.position = offset

    def some(self, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end."""
        return self._read(self.file.read, length)

    def _read(self, read: Callable[[int], bytes], most: int) -> bytes:
        try:
            found = read(most)
        except (OSError, EOFError, zlib.error) as error:
            raise self.failure(f"cannot be read ({error}); get the file again") from None
        self.position += len(found)
        return found

    def exactly(self, length: int, what: str, key: str | None) -> bytes:
        """Read exactly `length` bytes; no memory is reserved for more than the file has."""
        start = self.position
        if self.size is not None and length > self.size - start:
            raise self.failure(f"cut short: {what} needs {length} bytes, {self.size - start} are left", start, key)
        pieces = []
        missing = length
        while missing:
            piece = self.some(min(missing, _PIECE) if self.size is None else missing)
            if not piece:
                raise self.failure(f"cut short: {what} needs {length} bytes, {length - missing} are left", start, key)
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def line(self, key: str | None) -> bytes:
        """Read the rest of the line, without its end."""
        start = self.position
        read = self._read(self.file.readline, _LONGEST_LINE)
        if len(read) == _LONGEST_LINE:
            raise self.failure(f"a line of more than {_LONGEST_LINE} bytes; this is no archive", start, key)
        # A list of numbers that ends with the file may have been longer; one that ends with its bracket is whole.
        if not read.endswith(b"\n") and not read.rstrip().endswith(b"]"):
            raise self.failure("cut short: the last line has no end", start, key)
        return read.removesuffix(b"\n")


@contextmanager
def opened(path: Path) -> Iterator[ByteSource]:
    """Open a file, unpacked if its name ends in `.gz`; errors name the file and the byte."""
    try:
        # A named pipe or a terminal would be waited for without end.
        if path.exists() and not path.is_file():
            raise ArchiveError(f"{path}: not a plain file.")
        file: BinaryIO
        with open(path, "rb") as plain:
            packed = path.suffix == ".gz"
            size = None if packed else os.fstat(plain.fileno()).st_size
            if packed and os.fstat(plain.fileno()).st_size == 0:
                raise ArchiveError(f"{path}: byte 0: an empty file, which is not a packed one; get it again.")
            file = io.BufferedReader(gzip.GzipFile(fileobj=plain)) if packed else plain
            yield ByteSource(file, path, size)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read ({error.strerror or error}).") from None


def next_key(source: ByteSource) -> tuple[str, bytes] | None:
    """Read the next key, and the byte that ended it; return None at the end of the file."""
    start, name = source.position, bytearray()
    while byte := source.some(1):
        if byte not in _BLANKS:
            name += byte
            if len(name) > _LONGEST_KEY:
                raise source.failure(f"a key of more than {_LONGEST_KEY} bytes; this is no archive", start)
        elif name:
            try:
                key = name.decode()
            except UnicodeDecodeError:
                raise source.failure("a key that is not UTF-8 text; this is no archive", start) from None
            if not is_one_word(key):
                raise source.failure(f"the key {key!r} is not one word; this is no archive", start)
            return key, byte
    if name:
        raise source.failure("cut short: a key without an object", start)
    return None


def room_for(source: ByteSource, key: str | None, width: int, *shape: int) -> int:
    """Return the bytes of an object of this shape, checked against the rest of the file."""
    if min(shape) < 0 or (min(shape) == 0) != (max(shape) == 0):
        raise source.failure(f"impossible size {' x '.join(map(str, shape))}", None, key)
    room = width
    for length in shape:
        room *= length
    return room
