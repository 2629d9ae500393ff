"""Types of arrays; and files of arrays in numpy's formats that may be damaged: read with one kind of error."""

import io
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.files import atomic_write

Float32 = npt.NDArray[np.float32]
Samples = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]

BROKEN = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    EOFError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions that numpy raises for files of arrays that are damaged, depending on where: an empty one ends in an
EOFError, a header of brackets in a SyntaxError, a shape of billions in a MemoryError, a packed array in
an error of zlib."""


HEADER_BYTES = 128
"""Length in bytes of `npy_header`."""


def npy_header(rows: int, columns: int) -> bytes:
    """Return the header of a .npy file of float32, always of the same length, so that it can be written last."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)})
    header = buffer.getvalue()
    assert len(header) == HEADER_BYTES
    return header


def save_array(path: Path, array: npt.NDArray[Any]) -> Path:
    """Write an array to a .npy file, whole or not at all; return the path."""
    with atomic_write(path) as file:
        np.save(file, array, allow_pickle=False)
    return path


def map_array(path: Path) -> Any:
    """Map the array in a .npy file to memory, without reading it.

    Raises:
        ValueError: the file is missing, or holds no array; names it.
    """
    try:
        with np.errstate(over="raise"):  # a size that is too large for any memory is none
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except BROKEN as error:
        raise ValueError(f"{path.name}: {error or type(error).__name__}") from error
