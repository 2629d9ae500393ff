"""The gain of several learners over one in a step, from the noise of their gradients.

Johnson, Agrawal, Gu and Guestrin 2020, "AdaScale SGD" (arXiv 2007.05105): where n minibatches are averaged, a step may
be r times as long, and goes as far as r steps of one minibatch,

    r = (s2 + m2) / (s2 / n + m2) ,   1 <= r <= n

s2 the variance of a minibatch's gradient (summed over parameters), m2 the squared norm of its mean. Where noise is all,
r is n; where there is none, all n say the same, and r is 1.

Neither is sent. A learner has minibatches one after the other, whose noise is independent: of two consecutive gradients
g and h, g h is m2 in the mean, and (g g + h h) / 2 is s2 + m2. Their ratio is taken of each pair by itself, and it is
ratios that are averaged: gradients become shorter by orders of magnitude while a network trains, and means of the two
numbers would speak of the longest for long. (The mean of a ratio is not the ratio of means, but where there are many
parameters both numbers are near theirs in each pair.) Every pair of the first `EARLY` steps is looked at, then one in
`PERIOD` steps.

Curvature limits a rate, too, and no mean over learners changes that. It shows in the same ratio: where a rate a meets
curvature c, a step undoes what the noise of the step before has done. At rest, where x' = x - a g with g = c x + e, the
mean of g h is -a c / 2 of the squares. So it falls below 0 as the rate nears the largest that is stable, 2 / c; from
`FREE` to `FULL` the gain is taken back, down to none (`free`), at once; it comes back by `RETURN` a pair at most: where
steps too long have thrown a network far, gradients say nothing, and show no curvature either. What is measured is the
enlarged rate, so that it comes to rest between the two. (With momentum, consecutive gradients are alike, and nothing is
taken back.)

Legend: P parameters.
"""

from collections.abc import Sequence
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PERIOD: Final = 8
"""A pair of gradients is taken of so many steps."""
EARLY: Final = 32
"""Every pair of the first so many steps is taken."""
UNKNOWN: Final = 2
"""Before any pair is seen, gradients are taken to be all signal; that counts as so many pairs."""
FREE: Final = -0.05
"""Share `g h` of the squares at a rate that is not limited by curvature."""
FULL: Final = -0.1
"""Share `g h` of the squares at a rate that is not to be enlarged any more."""
PAIRS_KEPT: Final = 5
"""The last so many pairs count, about."""
RETURN: Final = 0.1
"""Share of a gain that a pair gives back at most: at first all of it is withheld."""
NOISE_SCALARS: Final = ("noise share", "noise pairs", "noise kept", "noise free")
"""Numbers that an estimate consists of: the mean of 1 - g h / ((g g + h h) / 2), the pairs seen, the step after the one
whose gradient is kept, and the share of a gain that curvature leaves."""
EARLIER: Final = "earlier gradient"
"""Name of the vector (P,) in which the first gradient of a pair waits for the second."""
MOST: Final = 1 << 22
"""Elements of a gradient that are looked at, at most: a sample of so many says as much as all of a large model's."""
_SPREAD: Final = 256
"""Places in a larger one, evenly apart, that they are taken from."""
_PIECE: Final = 16_384
"""Elements summed at a time: few enough that torch sums them on one thread, in one order."""


def gain(signal: float, learners: float, averaged: float = 1.0) -> float:
    """Return r, from 1 to `learners`.

    Args:
        signal: m2 / (s2 + m2) of the gradients looked at, 0 to 1.
        learners: n, the minibatches that a step of the common model has.
        averaged: so many minibatches each of those gradients is the mean of.
    """
    noise = averaged * (1 - signal)
    return max(1.0, min(learners, (noise + signal) / (noise / learners + signal))) if learners > 1 else 1.0


@final
class GradientNoise:
    """The share of signal in one learner's gradients, as estimated so far.

    Before the first pair it is 1, and what is seen replaces that as it comes; so a rate that follows the gain warms up.

    Args:
        scalars: (len(NOISE_SCALARS),), zero at first; changed in place.
        earlier: (P,), overwritten as far as it is needed; None: made when it is.
    """

    def __init__(self, scalars: NDArray[np.float64], earlier: Tensor | None = None) -> None:
        self._scalars, self._earlier = scalars, earlier

    @property
    def signal(self) -> float:
        """m2 / (s2 + m2), 0 to 1."""
        return max(0.0, min(1.0, 1 - float(self._scalars[0])))

    @property
    def free(self) -> float:
        """Share of a gain that curvature leaves, 0 to 1, by the pairs seen alone."""
        return float(self._scalars[3])

    @staticmethod
    def wants(step: int) -> bool:
        """Return whether the gradient of this step is looked at."""
        return step < EARLY or step % PERIOD < 2

    def look(self, step: int, gradient: Tensor) -> None:
        """Take the gradient (P,) of a step that is wanted. Steps are counted from 0, and may be left out."""
        if step % 2 == 0:
            part = _part(gradient)
            if self._earlier is None:
                self._earlier = torch.empty_like(part)
            self._earlier[: len(part)].copy_(part)
            self._scalars[2] = step + 1
        elif self._scalars[2] == step and self._earlier is not None:
            self._scalars[2] = 0
            part = _part(gradient)
            earlier = self._earlier[: len(part)]
            self._add((_inner(part, part) + _inner(earlier, earlier)) / 2, _inner(part, earlier))

    def forget(self) -> None:
        """Drop the first gradient of a pair whose second has not come."""
        self._scalars[2] = 0

    def seen(self) -> list[float]:
        """Return a copy of the numbers of an estimate."""
        return [float(number) for number in self._scalars]

    def recall(self, seen: Sequence[float]) -> None:
        """Go on from what `seen` has returned, between two pairs. Earlier versions kept other numbers: then begin
        anew."""
        if len(seen) == len(self._scalars):
            self._scalars[:] = seen
        self.forget()

    def _add(self, squares: float, products: float) -> None:
        if not 0 < squares < float("inf"):  # nothing was learnt, or the run diverges
            return
        self._scalars[0] += _weight(self._scalars[1]) * (1 - products / squares - self._scalars[0])
        self._scalars[1] += 1
        ratio = 1 - float(self._scalars[0]) / (1 - _unseen(int(self._scalars[1])))
        allowed = (ratio - FULL) / (FREE - FULL)
        self._scalars[3] = max(0.0, min(1.0, allowed, float(self._scalars[3]) + RETURN))


def _weight(pairs: float) -> float:
    """Return the weight of a pair after so many."""
    return max(1 / PAIRS_KEPT, 1 / (UNKNOWN + 1 + pairs))


def _unseen(pairs: int) -> float:
    """Return the weight that what was taken before any pair has after so many."""
    first = min(pairs, PAIRS_KEPT - UNKNOWN)  # weights 1 / (UNKNOWN + 1), ..., 1 / PAIRS_KEPT
    return UNKNOWN / (UNKNOWN + first) * (1 - 1 / PAIRS_KEPT) ** (pairs - first)


def _part(gradient: Tensor) -> Tensor:
    """Return (P,), or `MOST` of its elements."""
    if len(gradient) <= MOST:
        return gradient
    width = len(gradient) // _SPREAD
    return gradient[: _SPREAD * width].view(_SPREAD, width)[:, : MOST // _SPREAD].reshape(-1)


def _inner(x: Tensor, y: Tensor) -> float:
    """Return the inner product of (P,) and (P,): the same bits wherever they lie in the memory of the host, and on
    however many threads."""
    if x.device.type != "cpu":
        return float(torch.dot(x, y))
    pairs = zip(torch.split(x, _PIECE), torch.split(y, _PIECE), strict=True)
    return sum(float(torch.mul(one, other).sum()) for one, other in pairs)
