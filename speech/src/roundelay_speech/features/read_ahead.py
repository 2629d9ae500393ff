"""Rows of a mapped array asked for before they are read, so that nobody waits for the disk.

The kernel reads on its own while a gradient is computed; no thread is needed, and what one process has asked for all
processes of the host find in the page cache.
"""

import mmap
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from roundelay_speech.data.joined import mapping_of

AT_ONCE = 64 * 1024
"""Bytes of one request: Linux reads no more for any than the device's read-ahead, 128 KiB by default, and of requests
of just that size it was seen to leave out pages."""


def read_ahead(array: npt.NDArray[np.generic], begins: Iterable[int], ends: Iterable[int]) -> None:
    """Ask for rows `begins` to `ends` of a mapped array to be read soon; of no other array anything is asked."""
    _advise(array, begins, ends, mmap.MADV_WILLNEED, AT_ONCE)


def let_go(array: npt.NDArray[np.generic], begins: Iterable[int], ends: Iterable[int]) -> None:
    """Unmap rows that are not needed any more from this process. They stay in the page cache while there is room."""
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
