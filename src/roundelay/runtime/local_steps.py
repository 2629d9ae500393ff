"""Local steps: an update of the row, the deferred exchange before it and the snapshot after it, as one mutation.

Legend: P parameters, C elements of a chunk.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from roundelay.algorithms.local_update import CopyingUpdate, RowUpdate
from roundelay.core.flat import shaped, slices
from roundelay.core.state import Gradient
from roundelay.runtime.rows import Row, RowOperation


class SnapshotBuffer:
    """Memory for a learner's snapshots of its row, (P,).

    Where `vector` is None the row is its own snapshot: for strategies under which nobody else writes a learner's row,
    and it does not itself before the gradient is there.
    """

    def __init__(self, row: Row, vector: Tensor | None) -> None:
        self._row, self.vector = row, row.vector if vector is None else vector
        self._parts = [] if vector is None else slices(vector)
        self._apart = self.vector.device != row.vector.device

    def copy(self) -> None:
        """Copy the row, under its lock."""
        if self._apart:
            self.vector.copy_(self._row.vector)
            return
        for copy, x in zip(self._parts, self._row.parts, strict=False):
            copy.copy_(x)

    def copy_chunk(self, number: int) -> None:
        """Copy one chunk, under the row's lock."""
        if self._parts:
            self._parts[number].copy_(self._row.parts[number])


class LocalStep(ABC):
    """The way a learner's own row is updated by a gradient."""

    def begin(self) -> None:  # noqa: B027 most keep nothing between segments
        """Begin a segment: rows and memory may have been replaced from outside."""

    @abstractmethod
    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        """Do the exchange `mixing`, under the row's lock, if there is one, update the row, and leave it in the snapshot
        buffer; return the seconds that the exchange took."""

    def end(self) -> None:  # noqa: B027
        """End: the row has had its update."""


class ChunkedStep(LocalStep):
    """Exchange, update and snapshot chunk by chunk: each is in cache for all three."""

    def __init__(self, snapshot: SnapshotBuffer, update: RowUpdate) -> None:
        self._snapshot, self._update = snapshot, update

    def begin(self) -> None:
        self._update.begin()

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        exchanging = 0.0
        for number, part in enumerate(slices(gradient.vector)):
            if mixing is not None:
                started = time.perf_counter()
                mixing.chunk(number)
                exchanging += time.perf_counter() - started
            self._update.update_(number, part, rate)
            self._snapshot.copy_chunk(number)
        return exchanging

    def end(self) -> None:
        self._update.end()


class OnePassStep(LocalStep):
    """Exchange, then update and snapshot in one pass over the whole row, on a device that has a kernel for it."""

    def __init__(self, update: CopyingUpdate) -> None:
        self._update = update

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        started, exchanging = time.perf_counter(), 0.0
        if mixing is not None:
            mixing.all_chunks()
            exchanging = time.perf_counter() - started
        self._update.update_(gradient.vector, rate)
        return exchanging


class StepByParameters(LocalStep):
    """Exchange, then the update of each parameter in its shape, then the snapshot."""

    def __init__(self, snapshot: SnapshotBuffer, update: RowUpdate, shapes: Sequence[Sequence[int]]) -> None:
        self._snapshot, self._update, self._shapes = snapshot, update, shapes

    def begin(self) -> None:
        self._update.begin()

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        started = time.perf_counter()
        if mixing is not None:
            mixing.all_chunks()
        exchanging = 0.0 if mixing is None else time.perf_counter() - started
        for number, part in enumerate(shaped(gradient.vector, self._shapes)):
            self._update.update_(number, part, rate)
        self._snapshot.copy()
        return exchanging

    def end(self) -> None:
        self._update.end()


class WholeStep(LocalStep):
    """An update of the whole row by somebody else's optimizer.

    Args:
        update: `update(gradient)` changes the row; True: and the snapshot buffer holds it already.
    """

    def __init__(self, snapshot: SnapshotBuffer, update: Callable[[Gradient], bool]) -> None:
        self._snapshot, self._update = snapshot, update

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        started = time.perf_counter()
        exchanging = 0.0
        if mixing is not None:
            mixing.all_chunks()
            exchanging = time.perf_counter() - started
        if not self._update(gradient):
            self._snapshot.copy()
        return exchanging
