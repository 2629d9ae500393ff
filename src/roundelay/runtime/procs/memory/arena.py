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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.device_rows import (
    CONTRIBUTIONS,
    GRADIENT,
    MEAN,
    DeviceLock,
    DeviceVectors,
    RowCopies,
    unpin,
)
from roundelay.runtime.procs.memory.locks import ByteLock, Patience, QueueLock
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.views import (
    Activity,
    Counters,
    GatheringNumbers,
    Liveness,
    MeanSequences,
    OptimizerState,
    OutboxRequests,
    RowVersions,
    Sizes,
    Table,
    View,
    WorkQueue,
)
from roundelay.runtime.rows import Lock, Row, others_known

ARENA_NAME = "roundelay-arena"
"""Name of the memory file in /proc."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size is fixed: a file that became shorter would kill the processes that have mapped it."""
VIEWS: tuple[type[View], ...] = (
    RowVersions,
    OptimizerState,
    Liveness,
    WorkQueue,
    MeanSequences,
    OutboxRequests,
    Activity,
    Counters,
    GatheringNumbers,
)
"""Views of every arena."""
V = TypeVar("V", bound=View)


@dataclass(frozen=True)
class Layout:
    """Sizes from which every process computes the same addresses.

    Sizes that follow from the fields are computed once: dozens of tables are summed, and a mean asks for L + 1
    addresses.
    """

    learners: int
    parameters: int
    memory: tuple[str, ...] = ()
    centre: bool = False
    scalars: int = 0  # of each learner: of its optimizer, and of its rate
    views: tuple[type[View], ...] = ()  # besides those of every arena
    shown_bytes: int = 0  # bytes that each learner may show the others besides vectors
    tensors: int = 0  # see Sizes
    centre_memory: tuple[str, ...] = ()  # vectors (P,) beside the centre, behind which they lie
    weighed: bool = False  # rows have masses, behind the scalars of optimizers

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """Names of the regions of vectors, (L, P) each; behind them lies the centre row, if there is one.

        `gradient` and the two of `contribution` hold the terms of a mean, `mean` its result.
        """
        return ("row", *self.memory, GRADIENT, *CONTRIBUTIONS, MEAN)

    @property
    def rows(self) -> int:
        """Number of rows with a version and a lock: the learners' and the centre's."""
        return self.learners + self.centre

    @cached_property
    def sizes(self) -> Sizes:
        """Numbers that shapes of tables depend on."""
        others = others_known(self.learners) * self.weighed
        return Sizes(self.learners, self.centre, self.scalars + self.weighed, self.tensors, others)

    def tables(self) -> Iterator[tuple[type[View], str, Table]]:
        """Yield the small tables in front of the vectors, in their order: owner, name within it, shape and type."""
        for view in (*VIEWS, *self.views):
            for name, table in view.tables(self.sizes).items():
                yield view, name, table

    @cached_property
    def header_bytes(self) -> int:
        """Bytes of all tables, each on cache lines of its own, rounded up to a page."""
        return _align(sum(_table_bytes(table) for _, _, table in self.tables()), mmap.PAGESIZE)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one vector, rounded up to a page."""
        return _align(4 * self.parameters, mmap.PAGESIZE)

    @property
    def shown_at(self) -> int:
        """The offset at which bytes that learners show begin."""
        return self.header_bytes + self.row_bytes * (
            self.learners * len(self.vectors) + self.centre + len(self.centre_memory)
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.shown_at + self.learners * _align(self.shown_bytes, 64)


def _align(size: int, to: int) -> int:
    return -(-size // to) * to


def _table_bytes(table: Table) -> int:
    return _align(8 * table.items, 64)


def create_file(layout: Layout) -> int:
    """Return a descriptor of a new, empty arena file.

    Raises:
        UserError: there is not enough memory for the rows.
    """
    if not hasattr(os, "memfd_create"):
        raise UserError("the procs runtime needs Linux (memory files and their locks). Use --runtime sim here.")
    descriptor = os.memfd_create(ARENA_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
    """Check that `descriptor` is of an arena file of this layout; call this before anything is written to the file.

    Raises:
        UserError: the file has a name, is another user's, has another size, or its size may change; says which.
    """
    name, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory file
        seals = 0
    if name != f"/memfd:{ARENA_NAME} (deleted)" or seals & SEALS != SEALS:
        why = "it is no sealed memory file of Roundelay"
    elif status.st_uid != os.geteuid():
        why = f"it belongs to user {status.st_uid}"
    elif status.st_size != layout.total_bytes:
        why = f"it has {status.st_size:,} bytes, and the learners' memory has {layout.total_bytes:,}"
    else:
        return
    raise UserError(f"{name} was given as the memory that learners share, but {why}: nothing was written to it.")


class ArenaMemory:
    """The memory of an arena as one process has mapped it, once: tables as typed views, and vectors as tensors.

    Raises:
        UserError: the descriptor is of no arena file of this layout.
    """

    def __init__(self, descriptor: int, layout: Layout) -> None:
        check_file(descriptor, layout)
        self.layout = layout
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:  # a map keeps a copy of its descriptor: of that of locks it would keep locks that a forked child gives up
            self._map = mmap.mmap(own, layout.total_bytes)
        finally:
            os.close(own)
        self._opened: dict[int, Tensor] = {}  # vectors by index: each mean asks for those of all its learners
        arrays: dict[type[View], dict[str, Any]] = {}
        offset = 0
        for view, name, table in layout.tables():
            flat: Any = np.frombuffer(self._map, table.kind, table.items, offset)
            arrays.setdefault(view, {})[name] = flat.reshape(table.shape)
            offset += _table_bytes(table)
        self.views = {view: view.on(found) for view, found in arrays.items()}

    def vector(self, index: int) -> Tensor:
        """Return the (P,) float32 vector number `index`, always the same tensor."""
        found = self._opened.get(index)
        if found is None:
            offset = self.layout.header_bytes + index * self.layout.row_bytes
            vector = torch.frombuffer(self._map, dtype=torch.float32, count=self.layout.parameters, offset=offset)
            found = self._opened.setdefault(index, vector)  # another thread may have opened it meanwhile
        return found

    def bytes(self, offset: int, size: int) -> Tensor:
        """Return `size` bytes from `offset` on, (size,) uint8."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)

    def close(self) -> None:
        """Unregister the memory with devices; it is freed when no tensor uses it any more."""
        unpin(self.bytes(0, 1).data_ptr(), len(self._map))
        self._opened.clear()


class Arena:
    """The arena as one process uses it: tables as typed views, vectors as tensors, locks by rank. Vectors `on_devices`
    lie in the memory of devices instead; of rows there the arena may have `copies`. `memory` is the arena's, where this
    process has mapped it already.

    Raises:
        UserError: the descriptor is of no arena file of this layout, or this machine cannot share memory.
    """

    def __init__(
        self,
        descriptor: int,
        layout: Layout,
        patience: Patience,
        on_devices: DeviceVectors | None = None,
        memory: ArenaMemory | None = None,
        copies: RowCopies | None = None,
    ) -> None:
        prepare_publishing()
        self.layout, self.descriptor, self.on_devices, self._copies = layout, descriptor, on_devices, copies
        self._patience, self._mapped_here = patience, memory is None
        self._memory = ArenaMemory(descriptor, layout) if memory is None else memory
        self.queue_lock = QueueLock(descriptor, layout.rows, "the work queue", patience)
        self.row_versions = self.view(RowVersions)
        self.optimizer = self.view(OptimizerState)
        self.liveness = self.view(Liveness)
        self.queue = self.view(WorkQueue)
        self.sequences = self.view(MeanSequences)
        self.requests = self.view(OutboxRequests)
        self.activity = self.view(Activity)
        self.counts = self.view(Counters).counts
        self.gatherings = self.view(GatheringNumbers).numbers

    def with_own_locks(self, patience: Patience) -> "Arena":
        """Return this arena for another thread of this process: its locks are those of a descriptor of its own, the
        memory is not mapped again. Close the new arena before this one.

        Raises:
            OSError: the process has no descriptor left.
        """
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return Arena(descriptor, self.layout, patience, self.on_devices, self._memory, self._copies)

    def with_copies(self) -> "Arena":
        """Return this arena for work on rows in the memory of the host: rows that are on devices are copied to it. Do
        not close the result."""
        if not self.has_rows_on_devices or self.on_devices is None:
            return self
        return Arena(self.descriptor, self.layout, self._patience, None, self._memory, RowCopies(self.on_devices))

    @property
    def has_rows_on_devices(self) -> bool:
        """True if the rows of this host's learners are on devices."""
        return self.on_devices is not None and self.on_devices.has_rows

    def view(self, kind: type[V]) -> V:
        """Return the arena's view of type `kind`: one that every arena has, or one that the layout names."""
        found = self._memory.views[kind]
        assert isinstance(found, kind)
        return found

    def vector(self, name: str, rank: int) -> Tensor:
        """Return the (P,) float32 vector `name` of learner `rank`, in shared memory, always the same tensor."""
        if self.on_devices is not None and name in self.on_devices.vectors:
            there = self.on_devices.vectors[name][rank]
            if there is not None:
                return there
        return self._memory.vector(self.layout.vectors.index(name) * self.layout.learners + rank)

    def rows(self) -> list[Row]:
        """Return all rows: the learners' by rank, then the centre, if there is one."""
        return [self.row(rank) for rank in range(self.layout.rows)]

    def row(self, rank: int, vector: Tensor | None = None) -> Row:
        """Return row `rank`, or the centre behind those of the learners, with the version, the lock and the lease that
        are here. Its parameters are in `vector` (P,), or where the arena has them."""
        layout, tables = self.layout, self.row_versions
        if rank == layout.learners:
            return self._centre()
        row = Row(
            rank,
            self.vector("row", rank) if vector is None else vector,
            tables.versions,
            self._lock(rank),
            tables.in_flight,
        )
        if layout.weighed:
            row.mass, row.others = self.optimizer.scalars[rank, -1:], self.optimizer.others[rank]
        return row

    def _centre(self) -> Row:
        layout, tables, memory = self.layout, self.row_versions, self._memory
        elsewhere, at = self.on_devices, layout.learners * len(layout.vectors)
        vector = memory.vector(at) if elsewhere is None or elsewhere.centre is None else elsewhere.centre
        row = Row(layout.learners, vector, tables.versions, self._lock(layout.learners), tables.in_flight)
        beside = {name: memory.vector(at + 1 + k) for k, name in enumerate(layout.centre_memory)}
        row.memory = beside if elsewhere is None else elsewhere.beside
        return row

    def _lock(self, rank: int) -> Lock:
        name = f"row {rank}" if rank < self.layout.learners else "the centre"
        lock = ByteLock(self.descriptor, rank, name, self._patience)
        if self._copies is not None and rank < self.layout.learners:
            versions = self.row_versions.versions
            return self._copies.lock(lock, rank, self.vector("row", rank), lambda: int(versions[rank]))
        there = self.on_devices
        return DeviceLock(lock, there.devices) if there is not None and there.has_rows and there.shared else lock

    def shares(self, ranks: Sequence[int]) -> list[float] | None:
        """Return the shares of the rows of `ranks` in their mean, by their present masses; None: rows are not weighed.
        Masses of learners elsewhere are as this host heard last."""
        return shares_of(self.optimizer.scalars[list(ranks), -1].tolist()) if self.layout.weighed else None

    def shown(self, rank: int) -> Tensor:
        """Return the bytes that learner `rank` shows the others, (shown_bytes,) uint8, in shared memory."""
        size = self.layout.shown_bytes
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        offset = self.layout.shown_at + rank * _align(size, 64)
        return self._memory.bytes(offset, size)

    def stacked(self, name: str, ranks: Sequence[int]) -> Tensor:
        """Return a copy of the vectors `name` of the learners `ranks`, (len(ranks), P)."""
        return torch.stack([self.vector(name, rank).cpu() for rank in ranks])

    def close(self) -> None:
        """Close the descriptor; the memory is freed when no tensor uses it any more."""
        if self.descriptor >= 0:
            if self._mapped_here:
                self._memory.close()
            os.close(self.descriptor)
            self.descriptor = -1
