"""Outer optimizers: a step on the mean of all models, taken every few local steps.

With W the anchor (the model the round began with on every learner) and Wbar the mean of all models at its end, W - Wbar
acts as the gradient of an outer step.

    SlowMo (Wang et al. 2020)      u <- beta u + (W - Wbar) / lr
                                   W <- W - alpha lr u                   lr: the local learning rate of this round

    DiLoCo (Douillard et al. 2023) v <- mu v + (W - Wbar)
                                   W <- W - rate ((W - Wbar) + mu v)     Nesterov momentum as torch.optim.SGD writes it

    NoLoCo (Kolehmainen et al. 2025)   v as DiLoCo's
                                   W <- W - rate v                       a heavy ball

While lr is constant SlowMo is classical BMUF with block momentum beta and block rate alpha (u = -D / (alpha lr)); when
lr falls, SlowMo's momentum shrinks with it and BMUF's does not. DiLoCo's local optimizer is AdamW.

    asynchronous GASLoC            x_i, x_j <- (x_i + x_j) / 2, x_i <- x_i + mu (y - y')        y: x_i before
    (strategies/async_gasloc.py)   y' <- y

Legend: C elements of a chunk.
"""

from dataclasses import dataclass

from torch import Tensor

from roundelay.algorithms.averaging import pair_average_

LARGEST_RATE = 0.7
"""Largest rate of DiLoCo's outer step, unless a larger one is given. With an outer momentum of 0.9 it bears a learning
rate x curvature of 1.36 / rate at period 1 (docs/stability.md): 1.94 with this one, so nearly the 2 of plain SGD."""


def settle_outer(momentum: float, rate: float | None, shortfall: float) -> float:
    """Return DiLoCo's outer rate: as given, or the one with which the anchor moves as far as one learner does in as
    many examples, if the mean of all models moves `shortfall` as far, but at most `LARGEST_RATE`."""
    return min(LARGEST_RATE, (1 - momentum) / shortfall) if rate is None else rate


def slow_momentum_(
    anchor: Tensor, momentum: Tensor, mean: Tensor, learning_rate: float, beta: float, alpha: float
) -> None:
    """End a round of SlowMo: `anchor` and `momentum` (C,) in place; `mean` (C,) is only read.

    At learning rate 0 nothing has been learned that could be divided by it: the momentum only decays.
    """
    momentum.mul_(beta)
    if learning_rate:
        momentum.add_(anchor - mean, alpha=1 / learning_rate)
        anchor.sub_(momentum, alpha=alpha * learning_rate)


def outer_nesterov_(anchor: Tensor, momentum: Tensor, mean: Tensor, rate: float, mu: float) -> None:
    """End a round of DiLoCo: `anchor` and `momentum` (C,) in place; `mean` (C,) is only read."""
    outward = anchor - mean
    momentum.mul_(mu).add_(outward)
    anchor.sub_(outward.add_(momentum, alpha=mu), alpha=rate)


def outer_heavy_ball_(anchor: Tensor, momentum: Tensor, mean: Tensor, rate: float, mu: float) -> None:
    """End a round of NoLoCo: `anchor` and `momentum` (C,) in place; `mean` (C,) is only read."""
    momentum.mul_(mu).add_(anchor).sub_(mean)
    anchor.sub_(momentum, alpha=rate)


@dataclass(frozen=True)
class OuterMeeting:
    """NoLoCo's exchange of a learner, which has just proposed its row, with a peer; it applies the learner's
    momentum."""

    momentum: float

    def __call__(self, mine: Tensor, theirs: Tensor, my_last: Tensor, their_last: Tensor) -> None:
        """Change both rows and my last proposal `my_last`, (C,) each, in place; the peer's proposal stays. A proposal
        of zeros means that nothing was proposed yet: then there is no momentum."""
        proposed = mine.clone()
        pair_average_(mine, theirs)
        if self.momentum and bool(my_last.any()):
            mine.add_(proposed - my_last, alpha=self.momentum)
        my_last.copy_(proposed)
