"""Files mapped one behind the other as one array, some of which may be missing.

The address range of the whole array is reserved first, which takes no memory; then each file that is there is mapped at
its place in it. So a reader of the array knows of no files, and reads as fast as from one. Rows of files that are
missing are zeros.

The places of files are multiples of `UNIT`, since only whole pages can be mapped. Where two files meet inside a unit
both hold all of it.

Rows of a mapped array asked for before they are read, so that no reader waits for the disk.

The kernel reads on its own while a gradient is computed; no thread is needed, and rows that one process has asked for
are in the page cache of all processes of the host.
"""

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

AT_ONCE = 64 * 1024
"""Bytes of one request to read ahead: Linux reads at most the device's read-ahead, 128 KiB by default, for each, and
skips pages of requests of exactly that size."""


def read_ahead(array: npt.NDArray[np.generic], begins: Iterable[int], ends: Iterable[int]) -> None:
    """Ask the kernel to read rows `begins` to `ends` of a mapped array soon; do nothing for other arrays."""
    _advise(array, begins, ends, mmap.MADV_WILLNEED, AT_ONCE)


def let_go(array: npt.NDArray[np.generic], begins: Iterable[int], ends: Iterable[int]) -> None:
    """Release rows of a mapped array that this process no longer needs; they stay in the page cache if they can."""
    _advise(array, begins, ends, mmap.MADV_DONTNEED, 0)


def _advise(
    array: npt.NDArray[np.generic], begins: Iterable[int], ends: Iterable[int], advice: int, at_once: int
) -> None:
    if (found := mapping_of(array)) is None:
        return
    mapped, head = found
    row = array.strides[0]
    for begin, end in zip(begins, ends, strict=True):
        start, stop = head + int(begin) * row, min(head + int(end) * row, len(mapped))
        start -= start % mmap.PAGESIZE
        for at in range(start, stop, at_once or max(1, stop - start)):
            mapped.madvise(advice, at, min(at_once or stop - at, stop - at))


UNIT = 1 << 16
"""Size in bytes of the largest page that Linux uses on usual machines."""
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
"""Flags of mmap on Linux; Python has no MAP_FIXED, and MAP_NORESERVE only from 3.13 on."""
_NOTHING = ctypes.c_void_p(-1).value


@final
@dataclass(frozen=True)
class FilePiece:
    """A file of the whole, and the bytes that it holds: `begin` to `end`, both multiples of UNIT."""

    path: Path
    begin: int
    end: int


@final
class JoinedFiles:
    """Files mapped read-only behind each other, and unmapped when no array uses them any more.

    Args:
        size: bytes of the whole, rounded up to a multiple of UNIT.

    Raises:
        OSError: a file cannot be mapped.
        ValueError: a file has not the size of its piece; names it.
    """

    def __init__(self, pieces: Iterable[FilePiece], size: int) -> None:
        self._size = max(-(-size // UNIT) * UNIT, UNIT)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._at = _mapped(None, self._size, private, -1)
        # Not at the end of the process: code that ends later may read arrays.
        weakref.finalize(self, _library().munmap, self._at, self._size).atexit = False
        for piece in pieces:
            self._place(piece)

    def _place(self, piece: FilePiece) -> None:
        if piece.path.stat().st_size != piece.end - piece.begin or not 0 <= piece.begin < piece.end <= self._size:
            raise ValueError(f"{piece.path}: {piece.path.stat().st_size} bytes, not {piece.end - piece.begin}")
        descriptor = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _mapped(self._at + piece.begin, piece.end - piece.begin, mmap.MAP_SHARED | MAP_FIXED, descriptor)
        finally:
            os.close(descriptor)

    def array(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Return the first bytes as a read-only array (rows, columns)."""
        return np.asarray(_Described(self, (rows, columns)))

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self._at

    def __len__(self) -> int:
        return self._size

    def madvise(self, advice: int, start: int, length: int) -> None:
        """Advise as `mmap.mmap` does; but missing files cannot be read ahead, which is no error."""
        _library().madvise(self._at + start, length, advice)


@final
class _Described:
    """The mapped bytes as numpy's array interface; an array made of it keeps the files mapped."""

    def __init__(self, files: JoinedFiles, shape: tuple[int, int]) -> None:
        self.files = files
        self.__array_interface__: dict[str, Any] = {
            "data": (files.address, True),
            "shape": shape,
            "typestr": "<f4",
            "version": 3,
        }


def mapping_of(array: npt.NDArray[np.generic]) -> tuple[mmap.mmap | JoinedFiles, int] | None:
    """Return the files from which `array` is mapped, and the place of its first byte in them; None if there are
    none."""
    under: object = array
    while isinstance(under, np.ndarray):
        under = under.base
    if isinstance(under, _Described):
        return under.files, array.ctypes.data - under.files.address
    if isinstance(under, mmap.mmap):
        return under, array.ctypes.data - np.frombuffer(under, np.uint8).ctypes.data
    return None


@functools.cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


def _mapped(at: int | None, size: int, flags: int, descriptor: int) -> int:
    """Return the address at which `size` bytes of a file were mapped.

    Raises:
        OSError: the file cannot be mapped.
    """
    address: int | None = _library().mmap(at, size, mmap.PROT_READ, flags, descriptor, 0)
    if address is None or address == _NOTHING:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address
