"""Writing archives and script files of Kaldi: matrices, vectors and vectors of whole numbers, binary or as text.

Legend: T rows (frames), F columns (features).
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, write_text
from roundelay_speech.data.manifest import is_one_word
from roundelay_speech.kaldi_io.objects import NUMBER


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
    """Return the shape as Kaldi has it: it knows only one empty matrix, 0 x 0."""
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
