"""Blockwise model-update filtering (Chen and Huo 2016), as Li et al. 2017 write it, equations 3 to 6.

A block is `period` local steps of every learner. With W the anchor (the model the method holds), D its momentum, Wbar
the mean of all learners at the end of the block, zeta the block momentum and eta the block learning rate:

    classical   G = Wbar - W            W and the broadcast model are one
                D = zeta D + eta G
                W = W + D               broadcast W

    Nesterov    G = Wbar - B            B = the model broadcast at the block's start, not the anchor
                D = zeta D + eta G
                W = W + D
                B = W + zeta D          broadcast B; the model to keep at the end is W

The classical form is equations 3 to 6. The Nesterov form is derived here from its name: the block's
gradient is taken at the look-ahead point B = W + zeta D, and the look-ahead is taken back before the step; so
W_t = B_{t-1} + eta G_t. We could not read the original's own text of it.

Anchor and broadcast model are kept apart. fairseq goes on from B as if it were W, so that the look-ahead is never taken
back: `block_update_single_` below. zeta = 0 and eta = 1 is model averaging in all of them.

Setting. Under a constant gradient block momentum moves eta / (1 - zeta) times as far as the mean of all models does. If
the mean moves a share c as far as one learner does in as many examples, it is made up for by

    c eta / (1 - zeta) = 1

With a minibatch for each of N learners c = 1/N: then zeta = 1 - 1/N and eta = 1 (Li et al. 2017).
With one minibatch cut over all learners c = 1, and block momentum has only to make up for the loss of local momentum,
which starts anew in every block.

Legend: C elements of a chunk.
"""

from torch import Tensor


def settle_block(
    momentum: float | None, rate: float | None, shortfall: float, single: bool = False
) -> tuple[float, float]:
    """Return block momentum and block rate (zeta, eta), chosen such that `shortfall` x eta / (1 - zeta) = 1 where they
    are not given.

    Neither given: eta is 1. Momentum alone: eta is at most 1, since the mean of models that have come to rest is
    overshot by a larger one. Rate alone: zeta is at least 0. `single`: for `block_update_single_`, which moves 1 + zeta
    times as far.
    """
    if momentum is None:
        rate = 1.0 if rate is None else rate
        reach = rate * shortfall  # 1 - zeta = reach, or (1 - zeta) / (1 + zeta) = reach
        return max(0.0, (1 - reach) / (1 + reach) if single else 1 - reach), rate
    if rate is None:
        rate = min(1.0, (1 - momentum) / ((1 + momentum if single else 1) * shortfall))
    return momentum, rate


def block_update_(
    anchor: Tensor, delta: Tensor, broadcast: Tensor, mean: Tensor, momentum: float, rate: float, nesterov: bool
) -> None:
    """End a block: `anchor`, `delta` and `broadcast` (C,) are updated in place from `mean` (C,), which is only read."""
    delta.mul_(momentum).add_(mean - broadcast, alpha=rate)
    anchor.add_(delta)
    broadcast.copy_(anchor)
    if nesterov:
        broadcast.add_(delta, alpha=momentum)


def block_update_single_(model: Tensor, delta: Tensor, mean: Tensor, momentum: float, rate: float) -> None:
    """End a block of the recursion that fairseq runs under the name of Nesterov block momentum:

        D = zeta D + eta (Wbar - W),   W = W + D + zeta D

    Anchor and broadcast model are one: the look-ahead zeta D is never taken back. Put D' = (1 + zeta) D, and classical
    block momentum is left, with the block rate (1 + zeta) eta. Under a constant gradient it moves 1 + zeta times as
    fast as the strict form. `model` and `delta` (C,) in place; `mean` (C,) is only read.
    """
    delta.mul_(momentum).add_(mean - model, alpha=rate)
    model.add_(delta, alpha=1 + momentum)
