"""Objects of Kaldi in an archive: matrices, vectors and vectors of whole numbers, binary or as text.

The forms are those of kaldi/src/matrix/kaldi-matrix, kaldi-vector and util/kaldi-holder. No number in a file is
believed: before room is made for an object, the bytes it claims must be there.

Legend: T rows (frames), F columns (features).
"""

import struct
from typing import Literal

import numpy as np
import numpy.typing as npt

from roundelay_speech.kaldi_io.byte_source import ByteSource, room_for

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
    """Return the next object, which must be of `kind`; `line_ended`: its key ended with a line, so it is text."""
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
    """Return the kind of the object that begins after the binary mark, and the token that says so."""
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
    """Return an object written as text, whose first line has been read."""
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
    """Return a compressed matrix (kaldi/src/matrix/compressed-matrix.h).

    CM: one byte a number, column after column, each piecewise linear between four percentiles of its column; CM2 and
    CM3: two bytes and one byte a number, linear between the smallest and the largest of the matrix.
    """
    lowest, spread, rows, columns = struct.unpack("<ffii", source.exactly(16, "the header", key))
    room = room_for(source, key, 1, rows, columns)
    if room and not (np.isfinite(lowest) and np.isfinite(spread)):
        raise source.failure(f"impossible range of values: {lowest} and {spread} more", None, key)
    with np.errstate(all="ignore"):  # values out of all bounds become infinite, which whoever uses them must check
        return _expanded(source, form, key, np.float32(lowest), np.float32(spread), rows, columns)


def _expanded(
    source: ByteSource, form: str, key: str | None, lowest: np.float32, spread: np.float32, rows: int, columns: int
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
