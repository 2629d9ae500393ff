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
