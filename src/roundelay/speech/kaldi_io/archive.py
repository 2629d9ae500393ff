"""Kaldi's archives and script files: matrices, vectors and vectors of whole numbers, read and written.

An archive (`.ark`, also gzipped) is a row of `KEY OBJECT`; a script file (`.scp`) says where the object of each key is:
`KEY FILE`, `KEY FILE:BYTE`, and after either a range `[FIRST:LAST]` of rows or `[FIRST:LAST,FIRST:LAST]` of rows and
columns, both ends included. As in Kaldi, a range may name up to 3 rows more than there are, and gets those there are
(kaldi/src/util/kaldi-table, kaldi-io; matrix/kaldi-matrix and compressed-matrix for the objects).

Nothing here runs a command or unpickles, and no number in a file is believed: before room is made for an object, the
bytes it claims must be there. Every failure is an `ArchiveError` that names the file, the byte and the key.

Legend: T rows (frames), F columns (features).
"""

import gzip
import io
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, write_text
from roundelay.speech.data.manifest import is_one_word
from roundelay.speech.data.problems import counted, listing

__all__ = [
    "ArchiveError",
    "Location",
    "parse_location",
    "read_archive",
    "read_int_vectors",
    "read_matrix",
    "read_scp",
    "write_archive",
]

Kind = Literal["matrix", "vector", "ints"]
Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Object = Real | Ints

_NOUNS = {"matrix": "a matrix", "vector": "a vector", "ints": "a vector of whole numbers"}
_LONGEST_KEY = 4096  # bytes
_LONGEST_LINE = 1 << 24  # bytes; the alignment of an hour is 2 MB
_PIECE = 1 << 20  # bytes read at once where the length of the file is not known
_ROWS_BEYOND = 3  # as Kaldi: times of segments are rounded to 10 ms, and frames are 25 ms long
_NUMBER = np.dtype([("width", "u1"), ("value", "<i4")])  # a whole number in a binary vector
_BLANKS = b" \t\n\r"


class ArchiveError(UserError):
    """An archive or script file cannot be used; the message names the file, and the byte or the line."""


# script files and locations -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Location:
    """Location of an object: a file, the byte it begins at (None: the object is the file), and the part that is
    meant."""

    path: Path
    offset: int | None = None
    rows: tuple[int, int] | None = None  # first and last, both included
    columns: tuple[int, int] | None = None


def parse_location(where: str, folder: Path = Path()) -> Location:
    """Take `FILE[:BYTE][RANGE]` apart; a relative FILE is in `folder`.

    Raises:
        ArchiveError: it is a pipe, the standard input, or a range that is none.
    """
    if where.startswith("|") or where.endswith("|"):
        raise ArchiveError(
            f"`{where}` is a pipe, and commands in script files are not run: run it yourself and name the file it makes"
        )
    rest, rows, columns = where.strip(), None, None
    if rest.endswith("]"):
        rest, _, inside = rest[:-1].rpartition("[")
        parts = inside.split(",")
        if not rest or len(parts) > 2 or not all(parts):
            raise ArchiveError(f"`{where}`: not FILE[FIRST:LAST] or FILE[FIRST:LAST,FIRST:LAST]")
        rows = _range(parts[0], where)
        columns = _range(parts[1], where) if len(parts) == 2 else None
    path, colon, offset = rest.rpartition(":")
    if colon and path and offset.isascii() and offset.isdecimal() and len(offset) < 20:
        return Location(_file(path, folder), int(offset), rows, columns)
    if rest in ("", "-"):
        raise ArchiveError(f"`{where}`: name a file, not the standard input")
    return Location(_file(rest, folder), None, rows, columns)


def _range(text: str, where: str) -> tuple[int, int] | None:
    if text == ":":
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isascii() and part.isdecimal() and len(part) < 11 for part in (first, last)):
        raise ArchiveError(f"`{where}`: the range `{text}` is not FIRST:LAST, two whole numbers from 0")
    if int(last) < int(first):
        raise ArchiveError(f"`{where}`: the range `{text}` ends before it begins")
    return int(first), int(last)


def _file(name: str, folder: Path) -> Path:
    if "\0" in name:
        raise ArchiveError(f"{name!r}: not the name of a file")
    return folder / name


def read_scp(path: Path) -> dict[str, str]:
    """Key -> the rest of its line (see `parse_location`), in the order of the file.

    Raises:
        ArchiveError: no such file, not text, an empty file, a key twice or alone on its line; all faults are listed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"{path}: not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read ({error.strerror or error}).") from None
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split(maxsplit=1)
        if not fields:
            continue
        if fields[0] in found:
            problems.append(f"{path}:{number}: {fields[0]} is already on line {lines[fields[0]]}")
            continue
        if len(fields) == 1:
            problems.append(f"{path}:{number}: {fields[0]} has nothing beside it")
            continue
        found[fields[0]], lines[fields[0]] = fields[1].strip(), number
    if problems:
        raise ArchiveError(f"{path}: {counted(len(problems), 'fault')} in the script file:\n{listing(problems)}")
    if not found:
        raise ArchiveError(f"{path}: is empty.")
    return found


# reading --------------------------------------------------------------------------------------------------------------


def read_matrix(where: str, folder: Path = Path()) -> Real:
    """The matrix at a place that a script file names, (T, F): float32, or float64 where it is stored so or is text.

    Raises:
        ArchiveError: there is none, it is broken, or it does not have the rows and columns asked for.
    """
    place = parse_location(where, folder)
    with _opened(place.path) as source:
        if place.offset is not None:
            source.seek(place.offset)
        matrix = _object(source, "matrix", None)
        return np.ascontiguousarray(_part(matrix, place, source))


def read_archive(path: Path, kind: Kind = "matrix") -> Iterator[tuple[str, Object]]:
    """Key and object of an archive, one after the other; a name that ends in `.gz` is unpacked on the way.

    Args:
        path: the archive.
        kind: what it must hold: matrices (T, F), vectors (F,) (both float32, or float64 where stored so or text), or
            vectors of whole numbers (T,) int32.

    Raises:
        ArchiveError: at the first object that is broken, cut short, of another kind, or has the key of another.
    """
    seen: set[str] = set()
    with _opened(path) as source:
        while True:
            start = source.position
            read = _key(source)
            if read is None:
                return
            key, end = read
            if key in seen:
                raise source.failure(f"the key {key} is there for the second time", start)
            seen.add(key)
            yield key, _object(source, kind, key, line_ended=end == b"\n")


def read_int_vectors(path: Path) -> Iterator[tuple[str, Ints]]:
    """Key and vector (T,) int32 of an archive, one after the other, as in `ali.1.gz`. Raises as `read_archive`."""
    for key, vector in read_archive(path, "ints"):
        yield key, vector.astype(np.int32, copy=False)


class _Source:
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
        """Up to `length` bytes; fewer only at the end."""
        try:
            read = self.file.read(length)
        except (OSError, EOFError, zlib.error) as error:
            raise self.failure(f"cannot be read ({error}); get the file again") from None
        self.position += len(read)
        return read

    def exactly(self, length: int, what: str, key: str | None) -> bytes:
        """`length` bytes; no room is made for more than there are."""
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
        """The rest of the line, without its end."""
        start = self.position
        try:
            read = self.file.readline(_LONGEST_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise self.failure(f"cannot be read ({error}); get the file again") from None
        self.position += len(read)
        if len(read) == _LONGEST_LINE:
            raise self.failure(f"a line of more than {_LONGEST_LINE} bytes; this is no archive", start, key)
        # A list of numbers that ends with the file may have been longer; one that ends with its bracket is whole.
        if not read.endswith(b"\n") and not read.rstrip().endswith(b"]"):
            raise self.failure("cut short: the last line has no end", start, key)
        return read.removesuffix(b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[_Source]:
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
            yield _Source(file, path, size)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read ({error.strerror or error}).") from None


def _key(source: _Source) -> tuple[str, bytes] | None:
    """The next key and the byte that ended it; None at the end of the file."""
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


def _object(source: _Source, kind: Kind, key: str | None, line_ended: bool = False) -> Object:
    start = source.position
    if line_ended:
        return _text(source, b"", kind, key, start)
    first = source.some(1)
    if not first:
        raise source.failure("cut short: a key without an object", start, key)
    if first != b"\0":
        return _text(source, b"" if first == b"\n" else first + source.line(key), kind, key, start)
    if (second := source.some(1)) != b"B":
        raise source.failure(f"not an object of Kaldi's (0x00 0x{second.hex()})", start, key)
    found, head = _form(source, key, start)
    if found != kind:
        raise source.failure(f"{_NOUNS[found]}, where {_NOUNS[kind]} is expected", start, key)
    if found == "ints":
        # Every number has its width before it (kaldi-holder's BasicVectorHolder).
        (length,) = struct.unpack("<i", source.exactly(4, "a length", key))
        content = source.exactly(_room(source, key, _NUMBER.itemsize, length), "the vector", key)
        numbers = np.frombuffer(content, _NUMBER)
        if (numbers["width"] != 4).any():
            raise source.failure(f"number {int((numbers['width'] != 4).argmax())} is not of 4 bytes", start, key)
        return np.ascontiguousarray(numbers["value"].astype(np.int32))
    if head.startswith(b"CM"):
        return _compressed(source, head.decode().strip(), key)
    number = "<f4" if head.startswith(b"F") else "<f8"
    shape = tuple(_int32(source, key) for _ in range(2 if found == "matrix" else 1))
    content = source.exactly(_room(source, key, int(number[-1]), *shape), f"the {found}", key)
    return np.frombuffer(content, number).astype(number[1:]).reshape(shape)


def _form(source: _Source, key: str | None, start: int) -> tuple[Kind, bytes]:
    """Kind of the object that begins after the binary mark, and the token that says so."""
    head = source.exactly(1, "an object", key)
    if head == b"\4":  # the width of a whole number
        return "ints", head
    head += source.exactly(2, "an object", key)
    if head in (b"CM2", b"CM3"):
        head += source.exactly(1, "an object", key)
    if head in (b"FM ", b"DM ", b"CM ", b"CM2 ", b"CM3 "):
        return "matrix", head
    if head in (b"FV ", b"DV "):
        return "vector", head
    raise source.failure(f"an object of a kind that is not read here ({head!r})", start, key)


def _int32(source: _Source, key: str | None) -> int:
    start = source.position
    width, value = struct.unpack("<bi", source.exactly(5, "a length", key))
    if width != 4:
        raise source.failure(f"a length of {width} bytes, not of 4", start, key)
    return int(value)


def _room(source: _Source, key: str | None, width: int, *shape: int) -> int:
    """The bytes of an object of this shape, if it can be one."""
    if min(shape) < 0 or (min(shape) == 0) != (max(shape) == 0):
        raise source.failure(f"impossible size {' x '.join(map(str, shape))}", None, key)
    room = width
    for length in shape:
        room *= length
    return room


def _compressed(source: _Source, form: str, key: str | None) -> npt.NDArray[np.float32]:
    """A compressed matrix (kaldi/src/matrix/compressed-matrix.h).

    CM: one byte a number, column after column, each piecewise linear between four percentiles of its column; CM2 and
    CM3: two bytes and one byte a number, linear between the smallest and the largest of the matrix.
    """
    lowest, spread, rows, columns = struct.unpack("<ffii", source.exactly(16, "the header", key))
    room = _room(source, key, 1, rows, columns)
    if room and not (np.isfinite(lowest) and np.isfinite(spread)):
        raise source.failure(f"impossible range of values: {lowest} and {spread} more", None, key)
    with np.errstate(all="ignore"):  # values out of all bounds become infinite, which whoever uses them must check
        return _expanded(source, form, key, np.float32(lowest), np.float32(spread), rows, columns)


def _expanded(
    source: _Source, form: str, key: str | None, lowest: np.float32, spread: np.float32, rows: int, columns: int
) -> npt.NDArray[np.float32]:
    room = rows * columns
    if form != "CM":
        width = 2 if form == "CM2" else 1
        codes = np.frombuffer(source.exactly(width * room, "the matrix", key), f"<u{width}").reshape(rows, columns)
        return lowest + codes.astype(np.float32) * (spread * np.float32(1 / (256**width - 1)))
    heads = np.frombuffer(source.exactly(8 * columns, "the columns' headers", key), "<u2").reshape(columns, 4)
    points = lowest + spread * np.float32(1 / 65535) * heads.astype(np.float32)
    bytes_ = np.frombuffer(source.exactly(room, "the matrix", key), np.uint8).reshape(columns, rows)
    values = np.empty((rows, columns), np.float32)
    code = np.arange(256, dtype=np.float32)
    for column, (low, quarter, most, high) in enumerate(points):
        # All 256 values of the column, then one look-up: a matrix has more rows than a byte has values.
        table = np.where(
            code <= 64,
            low + (quarter - low) * code * np.float32(1 / 64),
            np.where(
                code <= 192,
                quarter + (most - quarter) * (code - 64) * np.float32(1 / 128),
                most + (high - most) * (code - 192) * np.float32(1 / 63),
            ),
        )
        values[:, column] = table[bytes_[column]]
    return values


def _text(source: _Source, line: bytes, kind: Kind, key: str | None, start: int) -> Object:
    """An object written as text, whose first line has been read."""
    if kind == "ints":
        return _text_ints(source, line, key, start)
    line = line.strip()
    if not line.startswith(b"["):
        raise source.failure(f"neither Kaldi's binary mark nor `[`, where {_NOUNS[kind]} is expected", start, key)
    line = line[1:]
    rows: list[npt.NDArray[np.float64]] = []
    here = start
    while True:
        content, bracket, after = line.partition(b"]")
        for row in content.split(b";"):
            if fields := row.split():
                rows.append(_numbers(source, fields, key, here))
                if len(rows[-1]) != len(rows[0]):
                    lengths = f"{len(rows[-1])} numbers, the first {len(rows[0])}"
                    raise source.failure(f"row {len(rows) - 1} has {lengths}", here, key)
        if bracket:
            if after.strip():
                raise source.failure("something after `]`", here, key)
            break
        here = source.position
        line = source.line(key)
    if kind == "matrix":
        return np.stack(rows) if rows else np.zeros((0, 0))
    if len(rows) > 1:
        raise source.failure("a matrix, where a vector is expected", start, key)
    return rows[0] if rows else np.zeros(0)


def _numbers(source: _Source, fields: list[bytes], key: str | None, at: int) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(field.replace(b"_", b"?")) for field in fields])
    except ValueError as error:
        raise source.failure(f"not a number ({error})", at, key) from None


def _text_ints(source: _Source, line: bytes, key: str | None, at: int) -> Ints:
    fields = line.replace(b"_", b"?").split()  # Python reads 1_000 as a number, Kaldi does not
    try:
        values = np.array([int(field) for field in fields], np.int64)
    except (ValueError, OverflowError):
        odd = next(field for field in fields if not field.removeprefix(b"-").isdigit() or len(field) > 18)
        raise source.failure(f"not a whole number: {odd[:40]!r}", at, key) from None
    if len(values) and not np.iinfo(np.int32).min <= values.min() <= values.max() <= np.iinfo(np.int32).max:
        raise source.failure("a number beyond 32 bits", at, key)
    return values.astype(np.int32)


def _part(matrix: Object, place: Location, source: _Source) -> Any:
    """The rows and columns that a location asks for."""
    rows, columns = matrix.shape
    first, last = place.rows or (0, rows - 1)
    left, right = place.columns or (0, columns - 1)
    if place.rows and (first >= rows or last >= rows + _ROWS_BEYOND):
        raise source.failure(f"rows {first} to {last} are asked for, there are {rows}", place.offset or 0)
    if right >= columns:
        raise source.failure(f"columns {left} to {right} are asked for, there are {columns}", place.offset or 0)
    return matrix[first : last + 1, left : right + 1]


# writing --------------------------------------------------------------------------------------------------------------


def write_archive(
    path: Path, objects: Iterable[tuple[str, npt.NDArray[Any]]], *, scp: Path | None = None, text: bool = False
) -> dict[str, str]:
    """Write an archive, atomically, and beside it a script file if one is named.

    Args:
        path: the archive; the script file names it as it is given here (absolute paths work from everywhere).
        objects: key and matrix (T, F) or vector (F,) of float32 or float64, or vector (T,) of whole numbers.
        scp: the script file, written last.
        text: write Kaldi's text form; numbers read back the same.

    Returns:
        Key -> location, as in the script file.

    Raises:
        UserError: keys that are not one word or not unique, whole numbers beyond 32 bits, a full disk.
    """
    places: dict[str, str] = {}
    with atomic_write(path) as file:
        for key, values in objects:
            if not is_one_word(key) or key in places:
                raise UserError(f"{path}: {key!r} cannot be a key: it must be one word, and each its own.")
            file.write(key.encode() + b" ")
            places[key] = f"{path}:{file.tell()}"
            try:
                file.write(_as_text(values) if text else _as_binary(values))
            except ValueError as error:
                raise UserError(f"{path}: {key}: {error}.") from None
    if scp is not None:
        write_text(scp, "".join(f"{key} {place}\n" for key, place in places.items()))
    return places


def _as_binary(values: npt.NDArray[Any]) -> bytes:
    if values.dtype.kind in "iu":
        numbers = np.empty(len(_checked_ints(values)), _NUMBER)
        numbers["width"], numbers["value"] = 4, values
        return b"\0B\4" + struct.pack("<i", len(values)) + numbers.tobytes()
    number, letter = _real(values)
    token = letter + (b"M " if values.ndim == 2 else b"V ")
    sizes = b"".join(b"\4" + struct.pack("<i", length) for length in _stored_shape(values))
    return b"\0B" + token + sizes + values.astype(number).tobytes()


def _as_text(values: npt.NDArray[Any]) -> bytes:
    if values.dtype.kind in "iu":
        return (" ".join(map(str, _checked_ints(values).tolist())) + "\n").encode()
    _real(values)
    # str of a numpy number is the shortest text that reads back as the same number of its width.
    rows = [" ".join(str(number) for number in row) for row in np.atleast_2d(values)]
    if values.ndim == 1:
        return f" [ {rows[0]} ]\n".encode()
    return f" [{''.join(f'{chr(10)}  {row} ' for row in rows) if values.size else ' '}]\n".encode()


def _stored_shape(values: npt.NDArray[Any]) -> tuple[int, ...]:
    """Kaldi knows only one empty matrix, 0 x 0."""
    return values.shape if values.size else (0,) * values.ndim


def _real(values: npt.NDArray[Any]) -> tuple[str, bytes]:
    if values.dtype not in (np.float32, np.float64) or values.ndim not in (1, 2):
        raise ValueError(f"{values.ndim} dimensions of {values.dtype}: neither a matrix nor a vector of real numbers")
    return ("<f4", b"F") if values.dtype == np.float32 else ("<f8", b"D")


def _checked_ints(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.ndim != 1:
        raise ValueError(f"whole numbers in {values.ndim} dimensions: Kaldi stores vectors of them")
    limits = np.iinfo(np.int32)
    if len(values) and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise ValueError("whole numbers beyond 32 bits")
    return values
