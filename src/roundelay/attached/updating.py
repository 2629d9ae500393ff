"""The local update of an attached learner: the user's optimizers step the row, or, where that comes to the same bits,
the snapshot that the module looks at.

An optimizer steps the values that its parameters look at, by their `.grad`. So in general the parameters are shown the
row and the gradient for a moment (`on_row`), and the snapshot becomes a copy of the row afterwards. Where no other
learner has written the row since the snapshot was taken, the parameters look at equal numbers already: they are stepped
where they are, by the learner's own gradient, which is in `.grad`, or by a mean that is put there for the moment, and
the row becomes a copy of the snapshot (`in_place`). That spares a small model most of the cost of an attached step.

The module may be on another device than the learner's vectors. It always looks at vectors of its own device: at the
snapshot where the next gradient is taken, and for the moment of an update at the row. Where the learner has them there,
these are the learner's own (`Here`). A module on a GPU whose learner has its row in the memory of the host looks at
copies (`Away`): the gradient, and the row before and after an update, cross once a step.

Legend: P trainable parameters, T tensors they are in.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import final

import torch
from torch import Tensor

from roundelay.attached.parameters import Parameters
from roundelay.attached.stepping import Stepper
from roundelay.attached.watch import Changes
from roundelay.core.state import Me
from roundelay.runtime.procs.memory.device_rows import pinned


class VectorPlace(ABC):
    """A learner's snapshot, row and gradient (P,), as they are on the module's device."""

    snapshot: Tensor
    """Vector that the module looks at between updates."""
    row: Tensor
    """Vector that the module looks at during an update."""
    gradient: Tensor
    """Vector for the learner's own gradient."""
    spare: Tensor
    """Vector that is free from the moment the learner has the gradient to the end of the update."""
    together: bool
    """True if `row` is the learner's row itself, and so beside the snapshot."""

    def hand_in(self) -> None:  # noqa: B027 the learner has it where `gradient` is its own
        """Copy `gradient` to where the learner has its own, if that is elsewhere."""

    def begin_update(self) -> None:  # noqa: B027
        """Begin an update under the row's lock: make `row` equal to the learner's row."""

    def end_update(self) -> bool:
        """End an update under the row's lock: copy `row` to the learner's row. Return True if the snapshot is so
        too."""
        return False

    @abstractmethod
    def restore(self) -> None:
        """Make the snapshot equal to the learner's row again, under the row's lock, after an update that failed."""


class Here(VectorPlace):
    """Place of vectors where the learner has all of them on the module's device."""

    together = True

    def __init__(self, me: Me, gradient: Tensor) -> None:
        self.snapshot, self.row, self.gradient = me.snapshot().vector, me.x, gradient
        self.spare = self.snapshot  # the row as it will be is copied there next

    def restore(self) -> None:
        self.snapshot.copy_(self.row)


class Away(VectorPlace):
    """Place of vectors where the learner has all but the snapshot in the memory of the host."""

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


class PointShown(VectorPlace):
    """Place of vectors in a process that takes no step of its own: all of them are the point that it shows."""

    together = True

    def __init__(self, point: Tensor) -> None:
        self.snapshot = self.row = self.gradient = self.spare = point

    def restore(self) -> None: ...


Views = list[Tensor]
"""(T) Views of a vector (P,) in the shapes of the parameters."""


@final
class RowUpdates:
    """Local updates of one learner's row by the user's optimizers.

    Args:
        views: views of the snapshot, row, gradient and spare of `place`.
    """

    def __init__(
        self,
        parameters: Parameters,
        place: VectorPlace,
        steppers: Sequence[Stepper],
        views: Sequence[Views],
    ) -> None:
        self._parameters, self._place, self._steppers = parameters, place, steppers
        self._home, self._row, self._gradient, self._spare = views

    def in_place(self, asked: Set[int], mean: Tensor | None, given: Sequence[bool]) -> bool:
        """Step the snapshot and copy it into the row, under the row's lock; call where both are equal and the module
        looks at the snapshot. Return False, with nothing done, where that would not come to the same bits as `on_row`.

        Args:
            asked: numbers of the optimizers that have been asked to step.
            mean: (P,) the gradient, which is copied to the place of the learner's own; None: those in `.grad`.
            given: (T) of which parameters it is one.
        """
        place = self._place
        if not (place.together and asked and len(self._steppers) == 1 and self._parameters.alike):
            return False
        try:
            if mean is None:
                self._steppers[0].step()
            else:
                place.gradient.copy_(mean)  # the optimizer's hooks may change it, and the others read the mean too
                views = [view if has else None for view, has in zip(self._gradient, given, strict=True)]
                with self._parameters.updated(None, views):
                    self._steppers[0].step()
        except BaseException:
            place.restore()
            raise
        place.row.copy_(place.snapshot)
        return True

    def on_row(self, gradient: Tensor, own: bool, given: Sequence[bool], late: Changes | None, asked: Set[int]) -> bool:
        """Step the row as it is now, under the row's lock. Return True if the snapshot equals the row afterwards.

        Args:
            gradient: (P,); if `own`, the learner's own, in its place.
            given: (T) of which parameters it is one.
            late: changes made by hand since the step began, which go into the row first.
        """
        place, parameters = self._place, self._parameters
        place.begin_update()
        if late is not None:
            late.add_to(place.row)
        there = self._gradient
        if not own:  # a copy, for the optimizer's hooks may change it, and the others read the mean too
            place.spare.copy_(pinned(gradient))
            there = self._spare
        if own and parameters.graphs:  # which the step may differentiate
            pairs = zip(there, parameters.all, strict=True)
            there = [view if p.grad is None or p.grad.dtype != view.dtype else p.grad for view, p in pairs]
        views = [view if has else None for view, has in zip(there, given, strict=True)]
        try:
            with parameters.updated(self._row, views):
                for number, stepper in enumerate(self._steppers):
                    if number in asked or any(given[n] for n in parameters.numbers(stepper.parameters)):
                        stepper.step()
            return place.end_update()
        except BaseException:
            place.restore()
            raise
        finally:
            parameters.show(self._home)
