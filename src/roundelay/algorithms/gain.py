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
parameters both numbers are near theirs in each pair.) One is taken of every few of the first `EARLY` steps, then one of
`PERIOD` steps.

Curvature limits a rate, too, and no mean over learners changes that: there a gain harms. It shows in products of
gradients, too. Without momentum it is in g h: where a rate a meets curvature c, a step undoes the noise of the step
before. At rest, where x' = x - a g with g = c x + e, the mean of g h is -a c / 2 of the squares, and falls below 0 as
the rate nears the largest that is stable, 2 / c. With momentum, and under Adam, weights swing about where they tend to,
and consecutive gradients are alike. But half a swing later they are not: of two gradients three or four steps apart
(`SWING`), at rest and with a momentum of 0.9, the mean product is -0.02, -0.14 and -0.44 of the squares at 3, 5 and 10
% of the largest stable rate. From `FREE` to `FULL` the gain is taken back, down to none (`free`), by the less of the
two; it comes back by `RETURN` a pair at most: where steps too long have thrown a network far, gradients say nothing,
and show no curvature either. The enlarged rate is measured, so that it comes to rest between the two. (Where weights
swing, old gradients do not harm as they do where single steps overshoot: `steep` is by pairs alone.)

Legend: P parameters.
"""

from collections.abc import Sequence
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PERIOD: Final = 8
"""Steps between the beginnings of two measurements; each takes a pair of gradients, and those half a swing after the
first."""
SWING: Final = (3, 4)
"""Steps that half a swing of the weights takes, where they swing from step to step."""
EARLY: Final = 100
"""Number of first steps in which a pair is taken every five."""
WITHHELD: Final = 10
"""Number of pairs before which no rate is above the user's: steps too long do most harm at the beginning."""
UNKNOWN: Final = 2
"""Weight, in pairs, of the assumption that gradients are all signal, which holds before any pair is seen."""
FREE: Final = -0.05
"""Ratio of product to squares of two gradients at and above which curvature limits no rate."""
FULL: Final = -0.1
"""Ratio of product to squares of two gradients at and below which a rate must not be enlarged."""
PAIRS_KEPT: Final = 5
"""Number of last pairs that count, about."""
SWINGS_KEPT: Final = 32
"""Number of last products of gradients half a swing apart that count, about; those of the first `WITHHELD` pairs do
not."""
RETURN: Final = 0.1
"""Largest share of a gain that one pair gives back, since at first all of the gain is withheld."""
NOISE_SCALARS: Final = (
    "noise share",
    "noise pairs",
    "noise kept",
    "noise free",
    "noise swing",
    "noise swings",
    "noise pair free",
)
"""Numbers that an estimate consists of: the mean of 1 - g h / ((g g + h h) / 2), the pairs seen, the step after the one
whose gradient is kept, the share of a gain that curvature leaves, the mean of the same ratio of gradients half a
swing apart, how many such have been seen, and the share of a gain that pairs alone would leave."""
_SHARE, _PAIRS, _KEPT, _FREE, _SWING, _SWINGS, _PAIR_FREE = range(len(NOISE_SCALARS))
EARLIER: Final = "earlier gradient"
"""Name of the vector (P,) in which the first gradient of a pair waits for the others."""
MOST: Final = 1 << 22
"""Most elements of a gradient that are looked at: this sample says as much as all elements of a large model."""
_SPREAD: Final = 256
"""In a larger gradient, the number of places, evenly apart, that the sample is taken from."""
_PIECE: Final = 16_384
"""Elements of one sum: few enough that torch sums them on one thread, in one order."""
_PIECES: Final = 8
"""Sums made at a time: their products stay in the processor's cache."""


def gain(signal: float, learners: float, averaged: float = 1.0) -> float:
    """Return r, the gain of `learners` learners over one, from 1 to `learners`.

    Args:
        signal: m2 / (s2 + m2) of the gradients looked at, 0 to 1.
        learners: n, the minibatches that a step of the common model has.
        averaged: minibatches that each of those gradients is the mean of.
    """
    noise = averaged * (1 - signal)
    return max(1.0, min(learners, (noise + signal) / (noise / learners + signal))) if learners > 1 else 1.0


@final
class GradientNoise:
    """The share of signal in one learner's gradients, as estimated so far.

    Before the first pair it is 1, and measurements replace that as they come; so a rate that follows the gain warms up.

    Args:
        scalars: (len(NOISE_SCALARS),), zero at first; changed in place.
        earlier: (P,), room for the first gradient of a pair; None: room is made at the first use.
    """

    def __init__(self, scalars: NDArray[np.float64], earlier: Tensor | None = None) -> None:
        self._scalars, self._earlier = scalars, earlier
        self._squares: float | None = None  # of the earlier gradient, if they were summed here

    @property
    def signal(self) -> float:
        """Share of signal in a gradient, m2 / (s2 + m2), 0 to 1."""
        return max(0.0, min(1.0, 1 - float(self._scalars[_SHARE])))

    @property
    def free(self) -> float:
        """Share of a gain that curvature leaves, 0 to 1."""
        return float(self._scalars[_FREE])

    @property
    def steep(self) -> bool:
        """True while pairs alone withhold more than half of the gain, as at first; while it is, old gradients harm."""
        return bool(self._scalars[_PAIR_FREE] < 0.5)

    @property
    def early(self) -> bool:
        """True as long as too little is known for a rate above the user's."""
        return bool(self._scalars[_PAIRS] < WITHHELD)

    @staticmethod
    def wants(step: int) -> bool:
        """Return True if the gradient of step `step` is to be given to `look`."""
        return _place(step) in (0, 1, *SWING)

    def look(self, step: int, gradient: Tensor) -> None:
        """Measure the gradient (P,) of a step for which `wants` is True. Steps are counted from 0; some may be
        missing."""
        place, part = _place(step), _part(gradient)
        if place == 0:
            if self._earlier is None:
                self._earlier = torch.empty_like(part)
            self._earlier[: len(part)].copy_(part)
            self._scalars[_KEPT], self._squares = step + 1, None
        elif self._scalars[_KEPT] == step - place + 1 and self._earlier is not None:
            earlier = self._earlier[: len(part)]
            if self._squares is None:
                self._squares = _inner(earlier, earlier)
            squares, product = (_inner(part, part) + self._squares) / 2, _inner(part, earlier)
            if not 0 < squares < float("inf"):  # nothing was learnt, or the run diverges
                self.forget()
            elif place == 1:
                self._take_pair(product / squares)
            elif not self.early:  # the first steps throw weights about at any rate
                self._take_swing(product / squares)

    def forget(self) -> None:
        """Drop the first gradient of a pair whose others have not come."""
        self._scalars[_KEPT] = 0

    def seen(self) -> list[float]:
        """Return a copy of the numbers that the estimate consists of."""
        return [float(number) for number in self._scalars]

    def recall(self, seen: Sequence[float]) -> None:
        """Restore an estimate from the numbers that `seen` has returned, between two pairs. Numbers of an earlier
        version, which kept others, begin a new one."""
        if len(seen) == len(self._scalars):
            self._scalars[:] = seen
        self.forget()

    def _take_pair(self, alike: float) -> None:
        """Count one pair of gradients g and h, by `alike` = g h / ((g g + h h) / 2)."""
        self._scalars[_SHARE] += _weight(self._scalars[_PAIRS]) * (1 - alike - self._scalars[_SHARE])
        self._scalars[_PAIRS] += 1
        ratio = 1 - float(self._scalars[_SHARE]) / (1 - _unseen(int(self._scalars[_PAIRS])))
        by_pairs, by_swings = _left(ratio), _left(float(self._scalars[_SWING]))
        self._scalars[_PAIR_FREE] = min(by_pairs, self._scalars[_PAIR_FREE] + RETURN)
        self._scalars[_FREE] = min(by_pairs, by_swings, self._scalars[_FREE] + (0.0 if self.early else RETURN))

    def _take_swing(self, alike: float) -> None:
        """Count two gradients that are half a swing apart, by the same ratio `alike`."""
        self._scalars[_SWINGS] += 1
        self._scalars[_SWING] += max(1 / SWINGS_KEPT, 1 / self._scalars[_SWINGS]) * (alike - self._scalars[_SWING])


def _place(step: int) -> int:
    """Return the steps from the first of the pair last begun to `step`."""
    return step % (SWING[-1] + 1) if step < EARLY else step % PERIOD


def _left(ratio: float) -> float:
    """Return the share of a gain that is allowed where the ratio of products to squares is `ratio`."""
    return max(0.0, min(1.0, (ratio - FULL) / (FREE - FULL)))


def _weight(pairs: float) -> float:
    """Return the weight of a new pair after `pairs` earlier ones."""
    return max(1 / PAIRS_KEPT, 1 / (UNKNOWN + 1 + pairs))


def _unseen(pairs: int) -> float:
    """Return the weight, after `pairs` pairs, of the gain assumed before any pair."""
    first = min(pairs, PAIRS_KEPT - UNKNOWN)  # weights 1 / (UNKNOWN + 1), ..., 1 / PAIRS_KEPT
    return UNKNOWN / (UNKNOWN + first) * (1 - 1 / PAIRS_KEPT) ** (pairs - first)


def _part(gradient: Tensor) -> Tensor:
    """Return the gradient (P,), or a sample of `MOST` of its elements if it has more."""
    if len(gradient) <= MOST:
        return gradient
    width = len(gradient) // _SPREAD
    return gradient[: _SPREAD * width].view(_SPREAD, width)[:, : MOST // _SPREAD].reshape(-1)


def _inner(x: Tensor, y: Tensor) -> float:
    """Return the inner product of (P,) and (P,): the same bits wherever they lie in the memory of the host, and on
    however many threads."""
    if x.device.type != "cpu":
        return float(torch.dot(x, y))
    found, whole = 0.0, len(x) // _PIECE
    xs, ys = (one[: whole * _PIECE].view(whole, _PIECE) for one in (x, y))
    for at in range(0, whole, _PIECES):
        for one in torch.mul(xs[at : at + _PIECES], ys[at : at + _PIECES]).sum(1).tolist():
            found += one
    return found + float(torch.mul(x[whole * _PIECE :], y[whole * _PIECE :]).sum())
