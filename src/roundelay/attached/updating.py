"""The local update of an attached learner: the user's optimizers step the row, or, where that comes to the same bits,
the snapshot that the module looks at.

An optimizer steps whatever its parameters look at, by their `.grad`. So in general the parameters are shown the row and
the gradient for a moment (`on_row`), and the snapshot becomes a copy of the row afterwards. Where nobody has written
the row since the snapshot was taken, the parameters look at equal numbers already: they are stepped where they are, by
the learner's own gradient, which is in `.grad`, or by a mean that is put there for the moment, and the row becomes a
copy of the snapshot (`in_place`). That spares a small model most of what an attached step costs.

Legend: P trainable parameters, T tensors they are in.
"""

from collections.abc import Sequence, Set
from typing import final

from torch import Tensor

from roundelay.attached.parameters import Parameters
from roundelay.attached.places import VectorPlace
from roundelay.attached.stepping import Stepper
from roundelay.attached.watch import Changes
from roundelay.runtime.procs.memory.pinned import pinned

Views = list[Tensor]
"""(T) Views of a vector (P,) in the shapes of the parameters."""


@final
class RowUpdates:
    """Of one learner.

    Args:
        views: of the vectors of `place`: snapshot, row, gradient and spare.
    """

    def __init__(
        self,
        parameters: Parameters,
        place: VectorPlace,
        steppers: Sequence[Stepper],
        views: tuple[Views, Views, Views, Views],
    ) -> None:
        self._parameters, self._place, self._steppers = parameters, place, steppers
        self._home, self._row, self._gradient, self._spare = views

    def in_place(self, asked: Set[int], mean: Tensor | None, given: Sequence[bool]) -> bool:
        """Under the row's lock, with a snapshot that is as the row, and at which the module looks: step the snapshot
        and copy it into the row. False: that would not be the same, and nothing is done.

        Args:
            asked: numbers of the optimizers that have been asked to step.
            mean: (P,) the gradient; None: those in `.grad`. With it the vector for the learner's own gradient is free.
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
        """Under the row's lock: step the row as it is now. True: and the snapshot is as the row is.

        Args:
            gradient: (P,); `own`: the learner's, where it lies.
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
