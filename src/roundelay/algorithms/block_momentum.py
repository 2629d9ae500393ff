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

The classical form is equations 3 to 6. The Nesterov form is derived here from what the name promises: the block's
gradient is taken at the look-ahead point B = W + zeta D, and the look-ahead is taken back before the step; so
W_t = B_{t-1} + eta G_t. We could not read the original's own text of it.

Anchor and broadcast model are kept apart. fairseq goes on from B as if it were W, so that the look-ahead is never taken
back: `block_update_single_` below. zeta = 0 and eta = 1 is model averaging in all of them.

Usual setting: eta / (N (1 - zeta)) = 1, so zeta = 1 - 1/N for N learners and eta = 1.

Legend: C elements of a chunk.
"""

from torch import Tensor


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

    Anchor and broadcast model are one: the look-ahead zeta D is never taken back. Put D' = (1 + zeta) D, and what is
    left is classical block momentum with the block rate (1 + zeta) eta. Under a constant gradient it moves 1 + zeta
    times as fast as the strict form. `model` and `delta` (C,) in place; `mean` (C,) is only read.
    """
    delta.mul_(momentum).add_(mean - model, alpha=rate)
    model.add_(delta, alpha=1 + momentum)
