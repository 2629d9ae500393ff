"""The arena: one piece of shared memory that holds the rows of all learners of a host.

It is an anonymous memory file: no name that could be left behind, not limited by the size of /dev/shm, freed by the
kernel with its last user. Learners open it through the parent's descriptor in /proc, which also gives each of them an
open file description, and so locks, of its own. Pages never touched cost nothing, so every learner has a mailbox
whether its strategy needs one or not.

Legend: P parameters, L learners.
"""

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.runtime.base import STALENESS_BINS, Counts
from roundelay.runtime.procs.memory.device_rows import DeviceLock, DeviceRows
from roundelay.runtime.procs.memory.locks import ByteLock
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.rows import Lock

NAME = "roundelay-arena"
"""Of the memory file, in /proc."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size stays what it is: a file that somebody shortened would kill whoever has mapped it."""
NONE = -1
"""No minibatch."""
EMPTY = -2
"""A minibatch without examples, for a member of a group that draws together when there are not enough."""
END = -3
"""Nothing more to draw, for all of a group."""
TRAINED = -4
"""A claim on a minibatch that is trained and about to be counted."""
PREFETCH = 1024
"""Minibatches a host may have drawn from the run's queue, on other hosts, for its learners to draw."""
REQUEST_BYTES = 1024
"""Of a learner's request that concerns another host."""


@dataclass(frozen=True)
class Layout:
    """Sizes from which every process computes the same addresses."""

    learners: int
    parameters: int
    memory: tuple[str, ...] = ()
    centre: bool = False
    scalars: int = 0  # of each learner's optimizer
    extra: tuple[tuple[str, tuple[int, ...]], ...] = ()  # further integer tables, by name and shape
    shown_bytes: int = 0  # what each learner may show the others besides vectors

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the (L, P) regions; behind them lies the centre row, if there is one.

        `gradient` and the two of `incoming` hold what a mean is taken of, `mean` its result.
        """
        return ("row", *self.memory, "gradient", "mail 0", "mail 1", "mean")

    @property
    def rows(self) -> int:
        """Rows with a version and a lock: the learners' and the centre's."""
        return self.learners + self.centre

    def tables(self) -> dict[str, tuple[tuple[int, ...], type[np.int64] | type[np.float64]]]:
        """Names, shapes and types of the small tables in front of the vectors."""
        one, i, f = (self.learners,), np.int64, np.float64
        return {
            "versions": ((self.rows,), i),  # half mutations, see Row
            "away": ((self.rows,), i),  # under way to another host, see Row
            "steps": (one, i),  # local updates since the run began
            "scalars": ((self.learners, self.scalars), f),
            "alive": (one, i),
            "claim": (one, i),  # the minibatch a learner works on, or NONE
            "totals": ((3, self.learners), f),  # what its counts will be, see queue.settle
            "round": (one, i),  # next round of a synchronous learner
            "published": (one, i),
            "reduced": (one, i),  # see means.py
            "source": ((2, self.learners), i),
            "weight": ((2, self.learners), f),
            "assigned": (one, i),  # the next minibatch of a learner whose group has drawn it, see queue.py
            "queue": ((1,), i),  # next minibatch of an asynchronous segment
            "stop_round": ((1,), i),
            "returned": ((1 + 2 * self.learners,), i),  # how many, then which minibatches to draw again
            "stock": ((2 + PREFETCH,), i),  # of a host among several: drawn, put in, then a ring of minibatches
            "more": ((1,), i),  # may more be put into the stock? Who finds it empty waits then
            "hold": ((1,), i),  # synchronous learners begin no round while it is set
            "doing": ((3, self.learners), i),  # the effect a learner is in, whom or what it is about, since when (ms)
            "outbox_asked": (one, i),
            "outbox_done": (one, i),
            "outbox_version": (one, i),  # see outbox.py
            "outbox_awaited": (one, i),  # the last request that its learner has stopped to wait for
            "outbox_text": ((self.learners, REQUEST_BYTES // 8), i),
            "count_steps": (one, i),
            "count_frames": (one, i),
            "count_correct": (one, i),
            "count_loss": (one, f),
            "count_staleness": ((self.learners, STALENESS_BINS), i),
            "count_stalest": (one, i),
            "count_stale_sum": (one, i),
            "count_exchanges": ((self.learners, self.rows), i),
            "count_gradient_s": (one, f),
            "count_update_s": (one, f),
            "count_exchange_s": (one, f),
            "count_mean_s": (one, f),
            "count_means": (one, i),
            **{name: (shape, i) for name, shape in self.extra},
        }

    @property
    def header_bytes(self) -> int:
        """All tables, each on cache lines of its own, rounded up to a page."""
        return _align(sum(_table_bytes(shape) for shape, _ in self.tables().values()), mmap.PAGESIZE)

    @property
    def row_bytes(self) -> int:
        """One vector, rounded up to a page."""
        return _align(4 * self.parameters, mmap.PAGESIZE)

    @property
    def shown_at(self) -> int:
        """The offset at which bytes that learners show begin."""
        return self.header_bytes + self.row_bytes * (self.learners * len(self.vectors) + self.centre)

    @property
    def total_bytes(self) -> int:
        """The whole file."""
        return self.shown_at + self.learners * _align(self.shown_bytes, 64)


def _align(size: int, to: int) -> int:
    return -(-size // to) * to


def _table_bytes(shape: tuple[int, ...]) -> int:
    return _align(8 * int(np.prod(shape)), 64)


def create_file(layout: Layout) -> int:
    """A descriptor of a new, empty arena file.

    Raises:
        UserError: there is not enough memory for the rows.
    """
    if not hasattr(os, "memfd_create"):
        raise UserError("the procs runtime needs Linux (memory files and their locks). Use --runtime sim here.")
    descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, layout.total_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(descriptor)
        raise UserError(
            f"no shared memory for {layout.learners} rows of {layout.parameters} parameters "
            f"({layout.total_bytes / 2**20:.0f} MiB): {error.strerror}. Use fewer learners or a smaller model."
        ) from error
    return descriptor


def check_file(descriptor: int, layout: Layout) -> None:
    """Before anything is written to it: is this an arena file of this layout?

    Raises:
        UserError: it is a file by some name, another user's, of another size, or one whose size may change; says which.
    """
    name, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory file
        seals = 0
    if name != f"/memfd:{NAME} (deleted)" or seals & SEALS != SEALS:
        why = "it is no sealed memory file of Roundelay"
    elif status.st_uid != os.geteuid():
        why = f"it belongs to user {status.st_uid}"
    elif status.st_size != layout.total_bytes:
        why = f"it has {status.st_size:,} bytes, and the learners' memory has {layout.total_bytes:,}"
    else:
        return
    raise UserError(f"{name} was given as the memory that learners share, but {why}: nothing was written to it.")


class Arena:
    """One process's view of the arena: tables as numpy arrays, vectors as tensors, locks by rank. `on_devices` are the
    vectors that lie in the memory of devices instead.

    Raises:
        UserError: the descriptor is of no arena file of this layout.
    """

    def __init__(
        self, descriptor: int, layout: Layout, patience: Patience, on_devices: DeviceRows | None = None
    ) -> None:
        self.layout, self.descriptor, self.on_devices = layout, descriptor, on_devices
        check_file(descriptor, layout)
        self._map = mmap.mmap(descriptor, layout.total_bytes)
        self._tables: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {}
        offset = 0
        for name, (shape, kind) in layout.tables().items():
            flat: Any = np.frombuffer(self._map, kind, int(np.prod(shape)), offset)
            self._tables[name] = flat.reshape(shape)
            offset += _table_bytes(shape)
        names = [*(f"row {rank}" for rank in range(layout.learners)), "the centre"]
        locks = [ByteLock(descriptor, r, names[r], patience) for r in range(layout.rows)]
        self.row_locks: Sequence[Lock] = (
            locks if on_devices is None else [DeviceLock(lock, on_devices.devices) for lock in locks]
        )
        self.queue_lock = ByteLock(descriptor, layout.rows, "the work queue", patience)
        tables: dict[str, Any] = self._tables
        self.counts = Counts(**{name[6:]: table for name, table in tables.items() if name.startswith("count_")})

    def table(self, name: str) -> NDArray[np.int64]:
        """An integer table by name."""
        return self._tables[name]  # type: ignore[return-value]

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weight each learner gives its vector in means with an even and with an odd number, (2, L)."""
        return self._tables["weight"]  # type: ignore[return-value]

    @property
    def scalars(self) -> NDArray[np.float64]:
        """The numbers each learner's optimizer keeps, (L, n)."""
        return self._tables["scalars"]  # type: ignore[return-value]

    @property
    def totals(self) -> NDArray[np.float64]:
        """What each learner's frames, correct frames and loss will be when its minibatch is counted, (3, L)."""
        return self._tables["totals"]  # type: ignore[return-value]

    def vector(self, name: str, rank: int) -> Tensor:
        """The (P,) float32 vector `name` of learner `rank`, in shared memory."""
        if self.on_devices is not None and name in self.on_devices.vectors:
            return self.on_devices.vectors[name][rank]
        return self._at(self.layout.vectors.index(name) * self.layout.learners + rank)

    def rows(self) -> list[Tensor]:
        """All rows, (P,) each: the learners' by rank, then the centre, if there is one."""
        rows = [self.vector("row", rank) for rank in range(self.layout.learners)]
        if not self.layout.centre:
            return rows
        if self.on_devices is not None and self.on_devices.centre is not None:
            return [*rows, self.on_devices.centre]
        return [*rows, self._at(self.layout.learners * len(self.layout.vectors))]

    def _at(self, index: int) -> Tensor:
        offset = self.layout.header_bytes + index * self.layout.row_bytes
        return torch.frombuffer(self._map, dtype=torch.float32, count=self.layout.parameters, offset=offset)

    def shown(self, rank: int) -> Tensor:
        """Bytes that learner `rank` shows the others, (shown_bytes,) uint8, in shared memory."""
        size = self.layout.shown_bytes
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        offset = self.layout.shown_at + rank * _align(size, 64)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)

    def stacked(self, name: str, ranks: Sequence[int]) -> Tensor:
        """The vectors `name` of `ranks`, copied, (len(ranks), P)."""
        return torch.stack([self.vector(name, rank).cpu() for rank in ranks])

    def close(self) -> None:
        """Give up the descriptor; the memory goes when no tensor looks at it any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
