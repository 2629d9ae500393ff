"""Kaldi's archives and the objects in them: matrices, vectors and vectors of whole numbers, binary or as text.

The forms are those of kaldi/src/matrix/kaldi-matrix, kaldi-vector and util/kaldi-holder. An archive (`.ark`, also
gzipped) is a row of `KEY OBJECT`; a script file (`.scp`) says where the object of each key is (locations.py). As in
Kaldi, a range may name up to 3 rows more than there are, and gets those there are (kaldi/src/util/kaldi-table,
kaldi-io).

Nothing here runs a command or unpickles, and no number in a file is believed: before room is made for an object, the
bytes it claims must be there. Every failure is an `ArchiveError` that names the file, the byte and the key.

Legend: T rows (frames), F columns (features).
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, write_text
from roundelay_speech.data.manifest import is_one_word
from roundelay_speech.kaldi_io.byte_source import ByteSource, next_key, opened, room_for
from roundelay_speech.kaldi_io.locations import Location, parse_location

Kind = Literal["matrix", "vector", "rows", "ints"]  # rows: a matrix, or a vector as its only row
Real = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Object = Real | Ints
_NOUNS = {
    "matrix": "a matrix",
    "vector": "a vector",
    "rows": "a matrix or a vector",
    "ints": "a vector of whole numbers",
}
NUMBER = np.dtype([("width", "u1"), ("value", "<i4")])  # a whole number in a binary vector


def read_object(source: ByteSource, kind: Kind, key: str | None, line_ended: bool = False) -> Object:
    """Read the next object, which must be of `kind`; `line_ended`: its key ended with a line, so it is text."""
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
    if found != kind and not (kind == "rows" and found != "ints"):
        raise source.failure(f"{_NOUNS[found]}, where {_NOUNS[kind]} is expected", start, key)
    if found == "ints":
        # Every number has its width before it (kaldi-holder's BasicVectorHolder).
        (length,) = struct.unpack("<i", source.exactly(4, "a length", key))
        content = source.exactly(room_for(source, key, NUMBER.itemsize, length), "the vector", key)
        numbers = np.frombuffer(content, NUMBER)
        if (numbers["width"] != 4).any():
            raise source.failure(f"number {int((numbers['width'] != 4).argmax())} is not of 4 bytes", start, key)
        return np.ascontiguousarray(numbers["value"].astype(np.int32))
    if head.startswith(b"CM"):
        return read_compressed(source, head.decode().strip(), key)
    number = "<f4" if head.startswith(b"F") else "<f8"
    shape = tuple(_int32(source, key) for _ in range(2 if found == "matrix" else 1))
    content = source.exactly(room_for(source, key, int(number[-1]), *shape), f"the {found}", key)
    values = np.frombuffer(content, number).astype(number[1:]).reshape(shape)
    return values[None] if kind == "rows" and found == "vector" else values


def _form(source: ByteSource, key: str | None, start: int) -> tuple[Kind, bytes]:
    """Read the kind of the object that begins after the binary mark, and the token that names it."""
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


def _int32(source: ByteSource, key: str | None) -> int:
    start = source.position
    width, value = struct.unpack("<bi", source.exactly(5, "a length", key))
    if width != 4:
        raise source.failure(f"a length of {width} bytes, not of 4", start, key)
    return int(value)


def _text(source: ByteSource, line: bytes, kind: Kind, key: str | None, start: int) -> Object:
    """Read an object written as text, whose first line is given."""
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
    if kind != "vector":
        return np.stack(rows) if rows else np.zeros((0, 0))
    if len(rows) > 1:
        raise source.failure("a matrix, where a vector is expected", start, key)
    return rows[0] if rows else np.zeros(0)


def _numbers(source: ByteSource, fields: list[bytes], key: str | None, at: int) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(field.replace(b"_", b"?")) for field in fields])
    except ValueError as error:
        raise source.failure(f"not a number ({error})", at, key) from None


def _text_ints(source: ByteSource, line: bytes, key: str | None, at: int) -> Ints:
    fields = line.replace(b"_", b"?").split()  # Python reads 1_000 as a number, Kaldi does not
    try:
        values = np.array([int(field) for field in fields], np.int64)
    except (ValueError, OverflowError):
        odd = next(field for field in fields if not field.removeprefix(b"-").isdigit() or len(field) > 18)
        raise source.failure(f"not a whole number: {odd[:40]!r}", at, key) from None
    if len(values) and not np.iinfo(np.int32).min <= values.min() <= values.max() <= np.iinfo(np.int32).max:
        raise source.failure("a number beyond 32 bits", at, key)
    return values.astype(np.int32)


def read_compressed(source: ByteSource, form: str, key: str | None) -> npt.NDArray[np.float32]:
    """Read a compressed matrix (kaldi/src/matrix/compressed-matrix.h).

    CM: one byte a number, column after column, each piecewise linear between four percentiles of its column; CM2 and
    CM3: two bytes and one byte a number, linear between the smallest and the largest of the matrix.
    """
    lowest, spread, rows, columns = struct.unpack("<ffii", source.exactly(16, "the header", key))
    room = room_for(source, key, 1, rows, columns)
    if room and not (np.isfinite(lowest) and np.isfinite(spread)):
        raise source.failure(f"impossible range of values: {lowest} and {spread} more", None, key)
    with np.errstate(all="ignore"):  # values out of all bounds become infinite, which their users must check
        return _expanded(source, form, key, np.float32(lowest), np.float32(spread), rows, columns)


def _expanded(
    source: ByteSource, form: str, key: str | None, lowest: np.float32, spread: np.float32, rows: int, columns: int
) -> npt.NDArray[np.float32]:
    """Return the values of a compressed matrix of the given form (CM, CM2 or CM3), (rows, columns)."""
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


_ROWS_BEYOND = 3  # as Kaldi: times of segments are rounded to 10 ms, and frames are 25 ms long


def read_matrix(where: str, folder: Path = Path(), kind: Literal["matrix", "rows"] = "matrix") -> Real:
    """Read the matrix at a place that a script file names, (T, F): float32, or float64 if stored so or as text.

    Args:
        where: the place.
        folder: the folder where its relative path begins.
        kind: `rows` also takes a vector (F,), as (1, F).

    Raises:
        ArchiveError: the matrix is missing or broken, or lacks the rows or columns asked for.
    """
    place = parse_location(where, folder)
    with opened(place.path) as source:
        if place.offset is not None:
            source.seek(place.offset)
        matrix = read_object(source, kind, None)
        return np.ascontiguousarray(_part(matrix, place, source))


def read_archive(path: Path, kind: Kind = "matrix") -> Iterator[tuple[str, Object]]:
    """Yield key and object of an archive, one after the other; a name that ends in `.gz` is unpacked on the way.

    Args:
        path: the archive.
        kind: kind of its content: matrices (T, F), vectors (F,), or `rows`, either of them with a vector as (1, F) (all
            float32, or float64 where stored so or text); or vectors of whole numbers (T,) int32.

    Raises:
        ArchiveError: an object is broken, cut short, of another kind, or has the key of another.
    """
    seen: set[str] = set()
    with opened(path) as source:
        while True:
            start = source.position
            read = next_key(source)
            if read is None:
                return
            key, end = read
            if key in seen:
                raise source.failure(f"the key {key} is there for the second time", start)
            seen.add(key)
            yield key, read_object(source, kind, key, line_ended=end == b"\n")


def read_int_vectors(path: Path) -> Iterator[tuple[str, Ints]]:
    """Yield key and vector (T,) int32 of an archive, one after the other, as in `ali.1.gz`. Raises as
    `read_archive`."""
    for key, vector in read_archive(path, "ints"):
        yield key, vector.astype(np.int32, copy=False)


def _part(matrix: Object, place: Location, source: ByteSource) -> Any:
    """Return the rows and columns that a location asks for."""
    rows, columns = matrix.shape
    first, last = place.rows or (0, rows - 1)
    left, right = place.columns or (0, columns - 1)
    if place.rows and (first >= rows or last >= rows + _ROWS_BEYOND):
        raise source.failure(f"rows {first} to {last} are asked for, there are {rows}", place.offset or 0)
    if right >= columns:
        raise source.failure(f"columns {left} to {right} are asked for, there are {columns}", place.offset or 0)
    return matrix[first : last + 1, left : right + 1]


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
                raise UserError(f"{path}: {key!r} cannot be a key: a key is one word, and no two keys are equal.")
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
        numbers = np.empty(len(_checked_ints(values)), NUMBER)
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
    """Return the shape of values in Kaldi, which has only one empty matrix, 0 x 0."""
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
