"""The place of a learner's own vectors: in the arena, or on the device it computes on.

Where no other learner writes a learner's row, it need not be in the arena while the learner trains: row, momentum and
gradient stay on the device for as long as a segment lasts, and nothing is copied between two means. When the segment
ends the arena has everything again: checkpoints, evaluation and the other runtimes know no device. Where others do
write it, all rows are there for good (device_rows.py), and only the gradient and means move.

What a mean needs crosses to the arena and back, unless it is on devices, too. A gradient that goes on from there to
other hosts crosses while the rest of it is computed: what is complete is copied on a stream of its own, and a thread
waits for the copies, since the process itself is busy telling the device what to do next.

Legend: P parameters.
"""

import os
import queue
import threading
from abc import ABC
from collections.abc import Mapping

import torch
from torch import Tensor

from roundelay.learner.base import OnReady
from roundelay.runtime.learner_state import LearnerTables, LearnerVectors
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.device_rows import DeviceVectors, pinned
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import NO_TRACE, Trace
from roundelay.strategies.base import Traits


class ArenaAccess:
    """The arena as learner `rank` has opened it; each learner opens it anew, since locks belong to an open file.

    Args:
        path: path of the arena's file.
        on_devices: rows that are on devices, and not in the arena.
        trace: takes the notes of this learner's acts on its row.

    Raises:
        OSError: the file cannot be opened.
        UserError: the file is no arena of this layout.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        rank: int,
        patience: Patience,
        on_devices: DeviceVectors | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.rank, self.patience, self.trace = rank, patience, trace
        self.arena = arena = Arena(os.open(path, os.O_RDWR | os.O_CLOEXEC), layout, patience, on_devices)
        self.tables = LearnerTables(arena.optimizer.steps, arena.counts, arena.optimizer.scalars[rank])
        self.rows = arena.rows()
        """All rows by rank, then the centre, if there is one."""
        self.rows[rank].trace = trace
        for row in self.rows[: layout.learners]:
            row.memory = {name: arena.vector(name, row.rank) for name in layout.memory}


GRADIENT_PIECE = 2**18
"""Elements of a gradient, at least, that cross to the arena together: 1 MiB."""


class Vectors(ABC):
    """A learner's row, its memory by name (P,), and the buffer (P,) for its gradients.

    `resident`: points and gradients are on the learner's device.
    """

    resident: bool

    def __init__(self, row: Row, memory: Mapping[str, Tensor], gradient: Tensor) -> None:
        self.row, self.memory, self.gradient = row, memory, gradient

    def of_learner(
        self, device: torch.device | None, snapshot: Tensor | None, shapes: tuple[tuple[int, ...], ...] = ()
    ) -> LearnerVectors:
        """Return the vectors for the state of a learner that computes on `device`, its snapshot and shapes among them.
        Where points and gradients go to the device and come back, their memory is pinned."""
        if device is not None and not self.resident:
            pinned(self.row.vector if snapshot is None else snapshot)
            pinned(self.gradient)
        return LearnerVectors(self.row, self.gradient, snapshot, self.memory, shapes)

    def move_in(self) -> None:  # noqa: B027 most stay where they are
        """Begin a segment: copy row and memory to where the learner uses them, if that is not the arena."""

    def move_out(self) -> None:  # noqa: B027
        """End a segment: copy row and memory back to the arena, if they were elsewhere."""

    def show_gradient(self) -> None:  # noqa: B027
        """Copy the gradient to the arena, if it is elsewhere and others read it there."""

    def streamed(self, on_ready: OnReady) -> OnReady:
        """Return a function to call as parts of a gradient are complete; it calls `on_ready` when these are in the
        arena."""
        return on_ready

    def reply(self, mean: Tensor, elements: int | None = None) -> Tensor:
        """Return a mean (P,), or its first `elements`, where the learner has its row; valid until the next."""
        return mean[:elements]


class InArena(Vectors):
    """Vectors that are all in the arena."""

    resident = False


class OnDevice(Vectors):
    """Vectors on the learner's device: the gradient, and the row, shared or as a copy while a segment lasts."""

    resident = True

    def __init__(self, access: ArenaAccess, memory: Mapping[str, Tensor], gradient: Tensor, device: torch.device):
        arena, row = access.arena, access.rows[access.rank]
        self._moving: list[tuple[Tensor, Tensor]] = []
        if not arena.has_rows_on_devices:
            homes = {"row": row.vector, **memory}
            here = {name: torch.empty_like(home, device=device) for name, home in homes.items()}
            self._moving = [(homes[name], here[name]) for name in homes]
            row, memory = arena.row(row.rank, here["row"]), {name: here[name] for name in memory}
            row.trace = access.trace
        there = arena.on_devices is not None and arena.on_devices.has_means
        super().__init__(row, memory, gradient if there else torch.empty_like(gradient, device=device))

    def move_in(self) -> None:
        for home, here in self._moving:
            here.copy_(home)

    def move_out(self) -> None:
        for home, here in self._moving:
            home.copy_(here)


class MeansInArena(OnDevice):
    """Vectors on a device whose means are taken in the arena: gradients go there, and means come back."""

    def __init__(self, access: ArenaAccess, memory: Mapping[str, Tensor], gradient: Tensor, device: torch.device):
        super().__init__(access, memory, gradient, device)
        self._gradient_home, self._reply = gradient, torch.empty_like(gradient, device=device)

    def show_gradient(self) -> None:
        pinned(self._gradient_home).copy_(self.gradient)

    def streamed(self, on_ready: OnReady) -> OnReady:
        return GradientStream(self.gradient, pinned(self._gradient_home), on_ready)

    def reply(self, mean: Tensor, elements: int | None = None) -> Tensor:
        return self._reply[:elements].copy_(pinned(mean)[:elements])


class MeansBetweenDevices(OnDevice):
    """Vectors on a device whose means are taken between devices: nothing goes to the arena before the segment ends."""


class MeansOnDevices(OnDevice):
    """Vectors on a device whose means are taken there: all learners of the host map what each of them gives."""

    def reply(self, mean: Tensor, elements: int | None = None) -> Tensor:
        return mean[:elements].to(self.gradient.device)


def leaves_arena(traits: Traits, on_devices: DeviceVectors | None) -> bool:
    """Return True if rows of learners that compute on devices stay on these, and are updated there, while a segment
    lasts: they are shared there, or no other learner reads or writes them (no exchanges, no centre)."""
    return on_devices is not None or (traits.synchronous and traits.model == "mean")


def make_vectors(access: ArenaAccess, device: torch.device | None, traits: Traits, between_devices: bool) -> Vectors:
    """Return the vectors of a learner that computes on `device`; None: it computes in the memory of the host."""
    arena, rank = access.arena, access.rank
    gradient = arena.vector("gradient", rank)
    memory = {name: arena.vector(name, rank) for name in arena.layout.memory}
    if device is None or not leaves_arena(traits, arena.on_devices):
        return InArena(access.rows[rank], memory, gradient)
    if arena.on_devices is not None and arena.on_devices.has_means:
        return MeansOnDevices(access, memory, gradient, device)
    return (MeansBetweenDevices if between_devices else MeansInArena)(access, memory, gradient, device)


class GradientStream:
    """A copy of a gradient (P,) from its device to `home`, part by part from the end. Call it with the element from
    which the gradient is complete on the device; it calls `lay` with that from which `home` is complete."""

    def __init__(self, gradient: Tensor, home: Tensor, lay: OnReady) -> None:
        self._gradient, self._home, self._lay, self._first = gradient, home, lay, len(gradient)
        on_gpu = gradient.device.type == "cuda"
        self._stream = torch.cuda.Stream(gradient.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._copied: queue.SimpleQueue[tuple[torch.cuda.Event, int]] = queue.SimpleQueue()
        if self._stream is not None:
            threading.Thread(target=self._tell, daemon=True, name="gradient to the arena").start()

    def __call__(self, first: int) -> None:
        if not self._first or (first and self._first - first < GRADIENT_PIECE):
            return
        part, self._first = slice(first, self._first), first
        if self._stream is None:
            self._home[part].copy_(self._gradient[part])
            self._lay(first)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._gradient.device))
        with torch.cuda.stream(self._stream):
            self._home[part].copy_(self._gradient[part], non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record()
        self._copied.put((event, first))

    def _tell(self) -> None:
        first = len(self._gradient)
        while first:
            event, first = self._copied.get()
            event.synchronize()
            self._lay(first)
