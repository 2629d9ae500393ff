"""Kaldi's tokens and numbers, in binary or text: what its trees and models are written in.

A binary file begins with two bytes, a zero and `B`. Numbers in binary carry their size in bytes in front (negative:
unsigned), vectors of whole numbers the size of one and how many.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write

_BINARY = b"\0B"
LONGEST_TOKEN = 64


class Input(Protocol):
    """The next thing in a file, text or binary; raises UserError with the place where it is something else."""

    def token(self) -> str: ...
    def integer(self) -> int: ...
    def real(self) -> float: ...
    def integers(self) -> list[int]: ...
    def reals(self) -> list[float]: ...
    def fault(self, what: str) -> UserError: ...  # with what comes next
    def wrong(self, what: str) -> UserError: ...  # with what was just read
    def left(self) -> int: ...


class TextInput:
    """Words between blanks, numbered by line."""

    def __init__(self, path: Path, data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: neither Kaldi's binary form nor text (byte {error.start}).") from None
        self._path = path
        self._words = [(word, number) for number, line in enumerate(text.split("\n"), 1) for word in line.split()]
        self._at = 0

    def left(self) -> int:
        return len(self._words) - self._at

    def fault(self, what: str) -> UserError:
        if self._at >= len(self._words):
            return UserError(f"{self._path}: cut short: {what} where the file ends. Get the file again.")
        word, line = self._words[self._at]
        return UserError(f"{self._path}:{line}: {what}, found {word[:LONGEST_TOKEN]!r}.")

    def wrong(self, what: str) -> UserError:
        line = self._words[max(0, self._at - 1)][1] if self._words else 1
        return UserError(f"{self._path}:{line}: {what}.")

    def token(self) -> str:
        if self._at >= len(self._words):
            raise self.fault("expected a token")
        self._at += 1
        return self._words[self._at - 1][0]

    def _number(self, kind: Callable[[str], float], name: str) -> float:
        if self._at >= len(self._words):
            raise self.fault(f"expected {name}")
        try:
            value = kind(self._words[self._at][0])
        except ValueError:
            raise self.fault(f"expected {name}") from None
        self._at += 1
        return value

    def integer(self) -> int:
        value = int(self._number(int, "a whole number"))
        if abs(value) >= 2**31:
            self._at -= 1
            raise self.fault("expected a whole number of 32 bits")
        return value

    def real(self) -> float:
        return self._number(float, "a number")

    def _vector(self, one: Callable[[], float]) -> list[float]:
        if self.token() != "[":
            self._at -= 1
            raise self.fault("expected [")
        found = []
        while self._at < len(self._words) and self._words[self._at][0] != "]":
            found.append(one())
        if self.token() != "]":
            raise self.fault("expected ]")
        return found

    def integers(self) -> list[int]:
        return [int(value) for value in self._vector(self.integer)]

    def reals(self) -> list[float]:
        return self._vector(self.real)


class BinaryInput:
    """Tokens that end with a blank, numbers with their sizes."""

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


def open_input(path: Path) -> Input:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if not data:
        raise UserError(f"{path}: the file is empty.")
    return BinaryInput(path, data) if data[:2] == _BINARY else TextInput(path, data)


def expect(source: Input, *wanted: str) -> str:
    found = source.token()
    if found not in wanted:
        raise source.wrong(f"expected {' or '.join(wanted)}, found {found[:LONGEST_TOKEN]!r}")
    return found


def read_count(source: Input, what: str) -> int:
    """Return a number of things to come, each of which takes at least a byte."""
    value = source.integer()
    if not 0 <= value <= source.left():
        raise source.wrong(f"{value} {what}, which cannot be")
    return value


class Output(Protocol):
    data: bytearray

    def token(self, word: str) -> None: ...
    def integer(self, value: int) -> None: ...
    def size(self, value: int) -> None: ...
    def real(self, value: float) -> None: ...
    def integers(self, values: Sequence[int]) -> None: ...
    def reals(self, values: Sequence[float]) -> None: ...
    def line(self) -> None: ...


class TextOutput:
    def __init__(self) -> None:
        self.data = bytearray()

    def token(self, word: str) -> None:
        self.data += f"{word} ".encode()

    def integer(self, value: int) -> None:
        self.data += b"%d " % value

    size = integer

    def real(self, value: float) -> None:
        self.data += f"{float(np.float32(value)):.9g} ".encode()

    def integers(self, values: Sequence[int]) -> None:
        self.data += f"[ {''.join(f'{v} ' for v in values)}]\n".encode()

    def reals(self, values: Sequence[float]) -> None:
        self.data += f" [ {''.join(f'{float(np.float32(v)):.9g} ' for v in values)}]\n".encode()

    def line(self) -> None:
        self.data += b"\n"


class BinaryOutput:
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

    def line(self) -> None:
        pass


def save(path: Path, out: Output) -> None:
    with atomic_write(path) as file:
        file.write(bytes(out.data))
