"""Reading of Kaldi's archives: matrices, vectors and vectors of whole numbers.

An archive (`.ark`, also gzipped) is a row of `KEY OBJECT`; a script file (`.scp`) says where the object of each key is
(see locations). As in Kaldi, a range may name up to 3 rows more than there are, and gets those there are
(kaldi/src/util/kaldi-table, kaldi-io).

Nothing here runs a command or unpickles, and no number in a file is believed: before room is made for an object, the
bytes it claims must be there. Every failure is an `ArchiveError` that names the file, the byte and the key.

Legend: T rows (frames), F columns (features).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from roundelay_speech.kaldi_io.byte_source import ByteSource, next_key, opened
from roundelay_speech.kaldi_io.locations import Location, parse_location
from roundelay_speech.kaldi_io.objects import Ints, Kind, Object, Real, read_object

_ROWS_BEYOND = 3  # as Kaldi: times of segments are rounded to 10 ms, and frames are 25 ms long


def read_matrix(where: str, folder: Path = Path(), kind: Literal["matrix", "rows"] = "matrix") -> Real:
    """Return the matrix at a place that a script file names, (T, F): float32, or float64 where it is stored so or is
    text.

    Args:
        where: the place.
        folder: the one that its path is relative to.
        kind: `rows` also takes a vector (F,), as (1, F).

    Raises:
        ArchiveError: there is none, it is broken, or it does not have the rows and columns asked for.
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
        kind: what it must hold: matrices (T, F), vectors (F,), or `rows`, either of them with a vector as (1, F) (all
            float32, or float64 where stored so or text); or vectors of whole numbers (T,) int32.

    Raises:
        ArchiveError: at the first object that is broken, cut short, of another kind, or has the key of another.
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
