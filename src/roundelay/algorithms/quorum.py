"""Means over the learners that have come, where learners do not wait for all others.

With W the model that the last gathering ended with, B_l the one that learner l has started from (W, or an older one
where it is late), x_l where it has come to, and n_l the examples on its way:

    Wbar = W + sum_l n_l (x_l - B_l) / sum_l n_l        over those who came

Where no learner is late that is the mean of the models. The sums are kept beside the centre and are elementwise, so
that a contribution counts once, in the gathering that is open when it arrives, and a gathering that is closed twice is
closed once.

A guard against contributions that are off (EDiT, Cheng et al. 2024, arXiv 2412.07210; Kaldi leaves out models whose
objective is far below the best one's): a norm or a loss counts as off if it is above

    m + z s        m, s: exponential mean and standard deviation of those that came before, s at least m / 20

Legend: C elements of a chunk.
"""

import math
from collections.abc import Sequence
from statistics import median

from torch import Tensor

DECAY = 0.1
"""Weight of the newest value in an exponential mean; the first ten values weigh the same."""
LEAST_SPREAD = 0.05
"""Smallest standard deviation that is assumed, as a share of the mean: after equal values, one that differs a little is
not left out."""


def give_(mine: Tensor, theirs: Tensor, base: Tensor, gathered: Tensor, weights: Tensor, *, weight: float) -> None:
    """Add `weight` times a learner's change, `mine` - `base`, to the sum `gathered`; all (C,). The weight goes
    first: a learner killed in between has given less, not more."""
    weights.add_(weight)
    gathered.add_(mine - base, alpha=weight)


def gathered_mean(model: Tensor, gathered: Tensor, weights: Tensor) -> Tensor | None:
    """Return the new mean Wbar (C,) from `model` W (C,) and the sum `gathered`; None if nothing was given. `gathered`
    and `weights` (C,) are set to zero."""
    if not float(weights[-1]) > 0:
        return None
    mean = gathered.div(weights).add_(model)
    weights.zero_()
    gathered.zero_()
    return mean


def usual_span(spans: Sequence[float], spread: float) -> float:
    """Return the seconds that learners usually take: the median of `spans` plus `spread` times their median absolute
    deviation."""
    middle = median(spans)
    return middle + spread * median(abs(span - middle) for span in spans)


def guard_limit(mean: float, variance: float, deviations: float) -> float:
    """Return the largest value that is still usual: `deviations` standard deviations above the mean."""
    return mean + deviations * max(math.sqrt(variance), LEAST_SPREAD * abs(mean))


def next_usual(value: float, mean: float, variance: float, seen: int) -> tuple[float, float]:
    """Return mean and variance updated by `value`, after `seen` earlier values."""
    weight = max(DECAY, 1 / (seen + 1))
    apart = value - mean
    return mean + weight * apart, (1 - weight) * (variance + weight * apart * apart)
