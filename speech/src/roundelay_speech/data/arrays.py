"""Files of arrays in numpy's formats that may be damaged: read with one kind of error."""

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

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


def map_array(path: Path) -> Any:
    """Return the array in a .npy file, mapped to memory and not read yet.

    Raises:
        ValueError: the file is missing, or holds no array; names it.
    """
    try:
        with np.errstate(over="raise"):  # a size that is too large for any memory is none
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except BROKEN as error:
        raise ValueError(f"{path.name}: {error or type(error).__name__}") from error
