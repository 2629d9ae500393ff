"""Location of a learner's vectors, seen from a module that may be on another device.

The module always looks at vectors of its own device: at the snapshot where the next gradient is taken, and for the
moment of an update at the row. Where the learner has them there, these are the learner's own (`Here`). A module on a
GPU whose learner has its row in the memory of the host looks at copies (`Away`): the gradient, and the row before and
after an update, cross once a step.

Legend: P trainable parameters.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from roundelay.core.state import Me
from roundelay.runtime.procs.memory.pinned import pinned


class VectorPlace(ABC):
    """The vectors (P,) of a learner on the module's device."""

    snapshot: Tensor
    """Vector that the module looks at between updates."""
    row: Tensor
    """Vector that it looks at during one."""
    gradient: Tensor
    """Vector for its gradient."""
    spare: Tensor
    """Free from the moment the learner has the gradient to the end of the update."""
    together: bool
    """True if `row` is the learner's row itself, and so beside the snapshot."""

    @abstractmethod
    def hand_in(self) -> None:
        """The gradient is there: let the learner have it."""

    @abstractmethod
    def begin_update(self) -> None:
        """Under the row's lock: `row` is to be the learner's row as it is."""

    @abstractmethod
    def end_update(self) -> bool:
        """Under the row's lock: the learner's row is to be what has become of `row`. True: the snapshot is, too."""

    @abstractmethod
    def restore(self) -> None:
        """Under the row's lock, after an update that failed: the snapshot is to be as the learner's row."""


class Here(VectorPlace):
    """The learner's vectors are on the device of the module."""

    together = True

    def __init__(self, me: Me, gradient: Tensor) -> None:
        self.snapshot, self.row, self.gradient = me.snapshot().vector, me.x, gradient
        self.spare = self.snapshot  # the row as it will be is copied there next

    def hand_in(self) -> None: ...

    def begin_update(self) -> None: ...

    def end_update(self) -> bool:
        return False

    def restore(self) -> None:
        self.snapshot.copy_(self.row)


class Away(VectorPlace):
    """The learner's vectors are in the memory of the host, but for the snapshot."""

    together = False

    def __init__(self, me: Me, gradient: Tensor) -> None:
        self.snapshot = me.snapshot().vector
        self.row, self.gradient = torch.empty_like(self.snapshot), torch.empty_like(self.snapshot)
        self.spare, self._row_there, self._gradient_there = self.gradient, pinned(me.x), pinned(gradient)

    def hand_in(self) -> None:
        self._gradient_there.copy_(self.gradient)

    def begin_update(self) -> None:
        self.row.copy_(self._row_there)

    def end_update(self) -> bool:
        self._row_there.copy_(self.row)
        self.snapshot.copy_(self.row)
        return True

    def restore(self) -> None:
        self.snapshot.copy_(self._row_there)
