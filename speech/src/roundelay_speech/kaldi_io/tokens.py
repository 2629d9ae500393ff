"""Kaldi's tokens and numbers, of which its trees and models consist, in binary.

A file begins with two bytes, a zero and `B`. Numbers in binary carry their size in bytes in front (negative:
unsigned), vectors of whole numbers the size of one and how many.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write

_BINARY = b"\0B"
LONGEST_TOKEN = 64


class BinaryInput:
    """A reader of a binary file of Kaldi's: tokens that end with a blank, and numbers with their sizes. Errors name the
    place: a `fault` is in what comes next, something `wrong` in what was just read."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._at = path, data, len(_BINARY)

    def left(self) -> int:
        return len(self._data) - self._at

    def fault(self, what: str) -> UserError:
        if self._at >= len(self._data):
            return UserError(f"{self._path}: cut short: {what} where the file ends. Get the file again.")
        return UserError(f"{self._path}: byte {self._at}: {what}, found {self._data[self._at : self._at + 12]!r}.")

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self._path}: before byte {self._at}: {what}.")

    def token(self) -> str:
        end = self._data.find(b" ", self._at, self._at + LONGEST_TOKEN)
        word = self._data[self._at : max(end, self._at)]
        if not word or not word.isascii():
            raise self.fault("expected a token")
        self._at = end + 1
        return word.decode()

    def _take(self, size: int, what: str) -> bytes:
        if size > self.left():
            self._at = len(self._data)
            raise self.fault(f"expected {what}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _sized(self, kinds: Mapping[int, str], what: str) -> float:
        size = self._data[self._at : self._at + 1]
        code = kinds.get(struct.unpack("b", size)[0]) if size else None
        if code is None:
            raise self.fault(f"expected {what}")
        self._at += 1
        return float(struct.unpack(f"<{code}", self._take(struct.calcsize(code), what))[0])

    def integer(self) -> int:
        return int(self._sized({4: "i", -4: "I"}, "a whole number of 4 bytes"))

    def real(self) -> float:
        return self._sized({4: "f", 8: "d"}, "a number of 4 or 8 bytes")

    def integers(self) -> list[int]:
        if self._data[self._at : self._at + 1] != b"\4":
            raise self.fault("expected a vector of whole numbers of 4 bytes")
        self._at += 1
        (size,) = struct.unpack("<i", self._take(4, "the size of a vector"))
        if size < 0 or 4 * size > self.left():
            self._at -= 4
            raise self.fault(f"a vector of {size} numbers, more than the file has left")
        return [int(value) for value in np.frombuffer(self._take(4 * size, "a vector"), "<i4")]

    def reals(self) -> list[float]:
        kind = self.token()
        if kind not in ("FV", "DV"):
            self._at -= len(kind) + 1
            raise self.fault("expected a vector (FV or DV)")
        size, width = self.integer(), 4 if kind == "FV" else 8
        if size < 0 or width * size > self.left():
            raise self.fault(f"expected a vector of {size} numbers, more than the file has left")
        return [float(value) for value in np.frombuffer(self._take(width * size, "a vector"), f"<f{width}")]


def open_input(path: Path) -> BinaryInput:
    """Open a binary file of Kaldi's.

    Raises:
        UserError: the file cannot be read, is empty, or is not binary.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if not data:
        raise UserError(f"{path}: the file is empty.")
    if data[:2] != _BINARY:
        raise UserError(
            f"{path}: not Kaldi's binary form, which begins with a zero and B. If it is text, write it anew by Kaldi's "
            "`copy-tree` or `copy-transition-model`."
        )
    return BinaryInput(path, data)


def expect(source: BinaryInput, *wanted: str) -> str:
    """Read a token that must be one of those wanted, and return it."""
    found = source.token()
    if found not in wanted:
        raise source.wrong(f"expected {' or '.join(wanted)}, found {found[:LONGEST_TOKEN]!r}")
    return found


def read_count(source: BinaryInput, what: str) -> int:
    """Read the number of elements that follow. Each takes at least a byte, so a number larger than the bytes left is an
    error, which names `what` is counted."""
    value = source.integer()
    if not 0 <= value <= source.left():
        raise source.wrong(f"{value} {what}, which cannot be")
    return value


class BinaryOutput:
    """A writer of tokens and numbers in Kaldi's binary form."""

    def __init__(self) -> None:
        self.data = bytearray(_BINARY)

    def token(self, word: str) -> None:
        self.data += f"{word} ".encode()

    def integer(self, value: int) -> None:
        self.data += struct.pack("<bi", 4, value)

    def size(self, value: int) -> None:
        self.data += struct.pack("<bI", -4, value)

    def real(self, value: float) -> None:
        self.data += struct.pack("<bf", 4, value)

    def integers(self, values: Sequence[int]) -> None:
        self.data += struct.pack("<bi", 4, len(values)) + np.array(values, "<i4").tobytes()

    def reals(self, values: Sequence[float]) -> None:
        self.token("FV")
        self.integer(len(values))
        self.data += np.array(values, "<f4").tobytes()


def save(path: Path, out: BinaryOutput) -> None:
    """Write the output to a file, whole or not at all."""
    with atomic_write(path) as file:
        file.write(bytes(out.data))
