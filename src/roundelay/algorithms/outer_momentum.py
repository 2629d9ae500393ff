"""Outer optimizers: a step on the mean of all models, taken every few local steps.

With W the anchor (the model the round began with on every learner) and Wbar the mean of all models at its end, W - Wbar
acts as the gradient of an outer step.

    SlowMo (Wang et al. 2020)      u <- beta u + (W - Wbar) / lr
                                   W <- W - alpha lr u                   lr: the local learning rate of this round

    DiLoCo (Douillard et al. 2023) v <- mu v + (W - Wbar)
                                   W <- W - rate ((W - Wbar) + mu v)     Nesterov momentum as torch.optim.SGD writes it

While lr is constant SlowMo is classical BMUF with block momentum beta and block rate alpha (u = -D / (alpha lr)); when
lr falls, SlowMo's momentum shrinks with it and BMUF's does not. DiLoCo's local optimizer is AdamW.

Legend: C elements of a chunk.
"""

from torch import Tensor

PAPER_RATE = 0.7
"""Of DiLoCo's outer step, with outer momentum 0.9 and a minibatch for each learner."""


def settle_outer(momentum: float, rate: float | None, shortfall: float) -> float:
    """DiLoCo's outer rate: as given, or the one with which the anchor moves as far as one learner does in as many
    examples, if the mean of all models moves `shortfall` as far, but at most the paper's."""
    return min(PAPER_RATE, (1 - momentum) / shortfall) if rate is None else rate


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
