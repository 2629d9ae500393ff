"""Rows, or vectors of means, in the memory of the devices that learners compute on, mapped by all processes of a host.

Under an asynchronous strategy others read and write a learner's row while it trains. Where learners compute on GPUs,
rows, the optimizers' memory of them, and the centre lie there too, so that gradient, update and exchange never cross to
the host. All of it is allocated by the process that leads the learners: theirs may die without a row being lost.
Learners map it (between GPUs: where each can reach each other's memory). Tables and locks stay in the arena.

A lock guards memory, and a device gets its work long before it does it: so a row's lock is taken when the device has
done the work it got before, the gradient above all, for which no other learner should wait; and given back when it has
done the work it got under the lock.

Under a synchronous strategy only its learner writes a row, which belongs to that process alone. On one host what all
map is then what learners give to means, and the mean, so that neither crosses to the host; learners may share a GPU.

Where there are several hosts, each has the rows of its own learners on its devices, and those of others in its
arena. Exchanges with other hosts work on rows in the arena: while an exchange holds the lock of a row that is on a
device, the arena has a copy of it (`RowCopies`). Links are slower than that copy by far.

Legend: P parameters, L learners.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roundelay.runtime.rows import Lock

_TRIED: dict[int, bool] = {}
"""Memory given to the driver to register, by address: True if the driver took it."""


def pinned(vector: Tensor) -> Tensor:
    """Return the same `vector`, its pages registered with CUDA until `unpin`, where this process uses CUDA.

    Where the driver refuses, copies are slower, and nothing else happens.
    """
    at = vector.data_ptr()
    if vector.device.type == "cpu" and _in_use() and at not in _TRIED:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        _TRIED[at] = not int(runtime.cudaHostRegister(at, vector.numel() * vector.element_size(), 0))
        if not _TRIED[at]:
            _forget_error()
    return vector


def unpin(first: int, size: int) -> None:
    """Unregister memory of `size` bytes at address `first`, which is about to be unmapped. The driver goes on copying
    to the pages it knows, even if others are mapped at that address afterwards."""
    for at in [at for at in _TRIED if first <= at < first + size]:
        if _TRIED.pop(at) and _in_use() and int(torch.cuda.cudart().cudaHostUnregister(at)):  # type: ignore[no-untyped-call]
            _forget_error()


def _in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """Clear the last error of CUDA, which the next call would take for its own."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return


GRADIENT, CONTRIBUTIONS, MEAN = "gradient", ("contribution 0", "contribution 1"), "mean"
"""Names of what means are taken of, and of their result."""


class MemoryHold:
    """A descriptor of a pipe; as long as any process has one open, the memory of another process stays."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    __del__ = close


@dataclass(frozen=True)
class DeviceVectors:
    """Vectors (P,) of all learners by name and rank, the centre, and by name the vectors beside it. Sent to another
    process it arrives as a view of the same memory (torch.multiprocessing).

    Attributes:
        vectors: vectors by name and rank; None for a learner of another host.
        shared: True if other processes map the vectors, and have to wait until the device has done its work.
        hold: keeps the memory, where it belongs to a process that leads no learners.
    """

    vectors: dict[str, list[Tensor | None]]
    centre: Tensor | None
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    shared: bool = True
    hold: MemoryHold | None = None

    @classmethod
    def allocate(
        cls,
        names: Sequence[str],
        parameters: int,
        centre: bool,
        devices: Sequence[torch.device | None],
        beside: Sequence[str] = (),
    ) -> "DeviceVectors":
        """Allocate vectors of zeros: those of `names` on each learner's device, given in `devices`, (L,), None for
        learners of other hosts; and, if `centre`, one on the first device, with vectors `beside` it.

        Raises:
            torch.OutOfMemoryError: a device has no room.
        """

        def vector(device: torch.device | None) -> Tensor:
            zeros = torch.zeros(parameters, device=device)
            zeros.share_memory_()  # type: ignore[no-untyped-call]
            return zeros

        vectors = {name: [None if device is None else vector(device) for device in devices] for name in names}
        return cls(vectors, vector(devices[0]) if centre else None, {name: vector(devices[0]) for name in beside})

    def close(self) -> None:
        """Release the vectors, which this process uses no more. Safe to call twice."""
        if self.hold is not None:
            self.hold.close()

    @property
    def devices(self) -> set[torch.device]:
        """Devices on which the vectors lie."""
        return {vector.device for named in self.vectors.values() for vector in named if vector is not None}

    @property
    def has_rows(self) -> bool:
        """True if rows are among the vectors."""
        return "row" in self.vectors

    @property
    def has_means(self) -> bool:
        """True if vectors of means are among these."""
        return MEAN in self.vectors


def finish(device: torch.device) -> None:
    """Wait until the device has done the work that this process has given it; that of other processes goes on."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class DeviceLock(Lock):
    """A row's lock for a process whose `devices` work on rows: taken and released when they have done their work."""

    def __init__(self, lock: Lock, devices: Iterable[torch.device]) -> None:
        self._lock, self._devices = lock, list(devices)

    def _catch_up(self) -> None:
        for device in self._devices:
            finish(device)

    def acquire(self) -> None:
        self._catch_up()
        self._lock.acquire()

    def try_acquire(self) -> bool:
        self._catch_up()
        return self._lock.try_acquire()

    def release(self) -> None:
        self._catch_up()
        self._lock.release()


class RowCopies:
    """Copies in the arena of rows on devices, for a process that works on rows there."""

    def __init__(self, rows: DeviceVectors) -> None:
        self._rows = rows.vectors["row"]

    def lock(self, lock: Lock, rank: int, copy: Tensor, version: Callable[[], int]) -> Lock:
        """Return a lock of row `rank` that, when taken, copies the row to `copy` (P,), and, when released, a changed
        copy back to the row.

        Args:
            version: returns the version of the row, which every change raises.
        """
        row = self._rows[rank]
        return lock if row is None else _CopyLock(lock, row, copy, version)


class _CopyLock(Lock):
    def __init__(self, lock: Lock, row: Tensor, copy: Tensor, version: Callable[[], int]) -> None:
        self._lock, self._row, self._copy, self._version, self._copied = lock, row, copy, version, 0

    def _take_copy(self) -> None:
        try:
            pinned(self._copy).copy_(self._row)
        except BaseException:
            self._lock.release()
            raise
        self._copied = self._version()

    def acquire(self) -> None:
        self._lock.acquire()
        self._take_copy()

    def try_acquire(self) -> bool:
        taken = self._lock.try_acquire()
        if taken:
            self._take_copy()
        return taken

    def release(self) -> None:
        try:
            if self._version() != self._copied:
                self._row.copy_(self._copy)
        finally:
            self._lock.release()
