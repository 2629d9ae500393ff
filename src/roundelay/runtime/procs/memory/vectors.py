"""The place of a learner's own vectors: in the arena, or on the device it computes on.

Legend: P parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from roundelay.learner.base import OnReady
from roundelay.runtime.procs.memory.access import ArenaAccess
from roundelay.runtime.procs.memory.device_copy import DeviceCopy
from roundelay.runtime.rows import Row
from roundelay.strategies.base import Traits


class Vectors(ABC):
    """A learner's row, its memory by name (P,), and the buffer (P,) for its gradients.

    `resident`: points and gradients are on the learner's device.
    """

    resident: bool

    def __init__(self, row: Row, memory: Mapping[str, Tensor], gradient: Tensor) -> None:
        self.row, self.memory, self.gradient = row, memory, gradient

    def move_in(self) -> None:  # noqa: B027 most stay where they are
        """A segment begins."""

    def move_out(self) -> None:  # noqa: B027
        """A segment ends: the arena has everything again."""

    @abstractmethod
    def show_gradient(self) -> None:
        """Others are going to read the gradient in the arena."""

    @abstractmethod
    def streamed(self, on_ready: OnReady) -> OnReady:
        """`on_ready` is told of what is complete in the arena; the reply, of what is complete where gradients are."""

    @abstractmethod
    def reply(self, mean: Tensor) -> Tensor:
        """A mean (P,), where the learner has its row; valid until the next."""


class InArena(Vectors):
    """All vectors are in the arena."""

    resident = False

    def show_gradient(self) -> None: ...

    def streamed(self, on_ready: OnReady) -> OnReady:
        return on_ready

    def reply(self, mean: Tensor) -> Tensor:
        return mean


class OnDevice(Vectors):
    """The gradient is on the device; so is the row, shared or as a copy for as long as a segment lasts."""

    resident = True

    def __init__(self, copies: DeviceCopy, row: Row) -> None:
        super().__init__(row, copies.memory, copies.gradient)
        self._copies = copies

    def move_in(self) -> None:
        self._copies.move_in()

    def move_out(self) -> None:
        self._copies.move_out()


class MeansInArena(OnDevice):
    """Means are taken in the arena: gradients go there, and means come back."""

    def show_gradient(self) -> None:
        self._copies.show_gradient()

    def streamed(self, on_ready: OnReady) -> OnReady:
        return self._copies.streamed(on_ready)

    def reply(self, mean: Tensor) -> Tensor:
        return self._copies.reply(mean)


class MeansBetweenDevices(OnDevice):
    """Means are taken between devices: nothing goes to the arena before the segment ends."""

    def show_gradient(self) -> None: ...

    def streamed(self, on_ready: OnReady) -> OnReady:
        return on_ready

    def reply(self, mean: Tensor) -> Tensor:
        return mean


def make_vectors(access: ArenaAccess, device: torch.device | None, traits: Traits, between_devices: bool) -> Vectors:
    """The place for the vectors of a learner that computes on `device`, or where its vectors are (None).

    A row may leave the arena for a segment where nobody else reads or writes it: no exchanges, no centre.
    """
    arena, row = access.arena, access.rows[access.rank]
    gradient = arena.vector("gradient", access.rank)
    memory = {name: arena.vector(name, access.rank) for name in arena.layout.memory}
    shared = arena.on_devices is not None
    if device is None or not (shared or (traits.synchronous and traits.model == "mean")):
        return InArena(row, memory, gradient)
    copies = DeviceCopy(row.vector, memory, gradient, device, shared)
    if not shared:
        row = arena.row(row.rank, copies.row)
        row.trace = access.trace
    return (MeansBetweenDevices if between_devices else MeansInArena)(copies, row)
