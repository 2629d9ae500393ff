"""Compressed matrices of Kaldi (kaldi/src/matrix/compressed-matrix.h).

Legend: T rows (frames), F columns (features).
"""

import struct

import numpy as np
import numpy.typing as npt

from roundelay.speech.kaldi_io.byte_source import ByteSource, room_for


def read_compressed(source: ByteSource, form: str, key: str | None) -> npt.NDArray[np.float32]:
    """A compressed matrix (kaldi/src/matrix/compressed-matrix.h).

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
