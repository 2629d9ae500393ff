"""Alarms of a loop's steps: gradients that are not finite, or are not there; sessions left open.

Every step looks at all gradients, by their norm: a NaN may be in one element of one parameter alone (the norm of a
vector that is zero has such a gradient), and would be in all models from then on. In meetings the whole model is looked
at.
"""

import atexit
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor
from torch.nn.utils import get_total_norm

from roundelay.attached.parameters import Parameters
from roundelay.attached.watch import some

log = logging.getLogger("roundelay")

WITHOUT = 20
"""Number of steps in a row without a gradient after which the learner is warned."""
LOOKED_SELDOM = 16
"""Steps between two looks of a learner that is alone, whose gradients reach no other learner."""


@final
class GradientAlarms:
    """Alarms of the gradients of one learner.

    Args:
        names: names of the parameters, by number.
        learners: number of learners that train together.
        kind: the kind of module, in words.
    """

    def __init__(self, names: Sequence[str], rank: int, learners: int, kind: str) -> None:
        self._names, self._rank, self._alone, self._kind = names, rank, learners == 1, kind
        self._steps = self._last = 0  # steps so far, and the last of them that had a gradient
        self._had, self._said = False, False
        self.skipped = 0
        """Steps that were left out, for their gradients were not finite."""

    def not_finite(self, found: Mapping[int, Tensor], scaled: bool, unscaled: bool = False) -> Sequence[str]:
        """Return the names of parameters whose gradient is not finite, among those `found` in the step under way, by
        number. The step is to be skipped if there are any. None are named for a learner that trains alone, nor under a
        GradScaler (`scaled`), which looks for itself, unless the loop had it unscale the gradients before
        (`unscaled`)."""
        if scaled:
            self._had = True
        seen = scaled and not unscaled
        if seen or not found or (self._alone and self._last and self._steps % LOOKED_SELDOM):
            return ()
        total = float(get_total_norm(list(found.values())))
        self._had = self._had or total != 0 or any(bool(gradient.any()) for gradient in found.values())
        if self._alone or math.isfinite(total):
            return ()
        return [self._names[n] for n, gradient in found.items() if not gradient.isfinite().all()]  # squares overflow

    def skip(self, where: Sequence[str]) -> None:
        """Count the step under way as skipped, for gradients of the parameters `where` are not finite; warn at the
        first."""
        self.skipped += 1
        if self.skipped == 1:
            log.warning(
                "rank %d: the gradient of its step %d is NaN or infinite, in %s: the step is skipped, as one that "
                "overflows under a GradScaler is, and does not reach the other learners. Further ones are counted, "
                "and said in the end.",
                self._rank,
                self._steps + 1,
                "all parameters (its loss was, it may be)" if len(where) == len(self._names) else some(where),
            )

    def stepped(self, given: int) -> None:
        """Count a complete step, in which `given` parameters had a gradient; warn if many in a row had none."""
        self._steps += 1
        looked = not (self._alone and self._last and (self._steps - 1) % LOOKED_SELDOM)
        if given and (self._had or not looked):
            self._last = self._steps
        self._had = False
        if self._steps - self._last >= WITHOUT and not self._said:
            self._said = True
            log.warning(
                f"rank {self._rank} has had no gradient of {self._kind} in its last {self._steps - self._last} steps "
                "(every .grad is None, or zero), so they trained nothing: is loss.backward() called before "
                "optimizer.step(), and zero_grad() not between them?"
            )

    def say_skipped(self) -> None:
        """Warn, at the end of a session, how many steps were skipped, if more than one."""
        if self.skipped > 1:
            log.warning(
                f"rank {self._rank} skipped {self.skipped} of its {self._steps} steps, whose gradients were NaN or "
                "infinite."
            )


def say_not_finite(parameters: Parameters, vector: Tensor, rank: int) -> bool:
    """Warn if the common model `vector` (P,) is not finite, and name the first such parameter; return True if so."""
    if bool(vector.sum().isfinite()):
        return False
    views = zip(parameters.names, parameters.views(vector), strict=True)
    name = next((name for name, view in views if not bool(view.isfinite().all())), "")
    if name:  # a sum of large numbers may overflow
        log.warning("rank %d: parameter %s of the model that all have in common is NaN or infinite.", rank, name)
    return bool(name)


def say_idle(steps: Mapping[int, int], rows_count: bool) -> None:
    """Warn if learners have taken very different numbers of steps; `steps` are by rank.

    Args:
        rows_count: the rows of all learners have equal weights in the model that is evaluated.
    """
    few, many = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
    if steps[many] > 2 * steps[few] and steps[many] >= WITHOUT:
        log.warning(
            "learners took very different numbers of steps: rank %d %d, rank %d %d.%s",
            few,
            steps[few],
            many,
            steps[many],
            " In the model that close() leaves the row of each counts alike, and in exchanges before: a learner "
            "that has no data, or is much slower, holds the others back."
            if rows_count
            else "",
        )


# Sessions left open ---------------------------------------------------------------------------------------------------

_open: dict[object, tuple[int, int]] = {}


def note_open(session: object, rank: int) -> None:
    """Note that a session of several learners is open, until `note_closed` is called."""
    _open[session] = os.getpid(), rank


def note_closed(session: object) -> None:
    """Note that a session has been closed, or has failed and says so itself."""
    _open.pop(session, None)


@atexit.register
def say_unclosed() -> None:
    """Warn of each session that is still open when the process ends, unless an error has ended the process."""
    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    said = list(_open.values())
    _open.clear()
    for process, rank in () if failed else said:
        if process == os.getpid():
            log.warning(
                f"rank {rank} ends without session.close(): its model is its own row, not the one that the learners "
                "have in common, and to the others it counts as dead. Call session.close() on all learners, or train "
                "in `with session:`."
            )
