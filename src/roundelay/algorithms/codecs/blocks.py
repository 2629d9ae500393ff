"""Whole numbers with a scale for every block of elements: the arithmetic of int8 and int4, and the blocks of 1bit.

Of a block s_1 ... s_b, for numbers from -N to N:

    a   = max_i |s_i|
    d   = a / N, its significand cut to 16 bits
    k_i = round(s_i / d), to nearest even     -N <= k_i <= N
    q_i = k_i d                               |s_i - q_i| <= d / 2 <= a / 2N

Cut to 16 bits, d times any k_i is exact in float32. Hence the largest q of a block is exactly N d, from which the same
d and the same k_i follow again: to code a decoded vector changes nothing.

A block of zeros has d = 0. One with an infinity or with something that is no number arrives as not-a-numbers
throughout: a training that diverges is seen to diverge.

Source: block-wise scales are those of Dettmers et al. 2022, arXiv 2110.02861 (there 2,048 elements, and levels that are
no even steps); a scale for a part of the vector by its largest element is that of QSGD (Alistarh et al. 2017, arXiv
1610.02132), which rounds at random where we round to nearest and remember the rest.

Legend: C elements of a chunk.
"""

import torch
from torch import Tensor

BLOCK = 1024
"""Elements with a scale in common; a chunk is a whole number of blocks."""
_SIXTEEN_BITS = -256  # a mask of all of a float32 but the last 8 bits of its significand


def scales_of(elements: int) -> int:
    """Return the number of blocks in `elements` elements, the last one perhaps shorter."""
    return -(-elements // BLOCK)


def quantise(x: Tensor, largest: int, scales: Tensor, numbers: Tensor) -> None:
    """Quantise `x` (C,), block by block, into `scales` (scales_of(C),) float32 and `numbers` (C,) int8, from -`largest`
    to `largest`."""
    first = 0
    for s, k in zip(blocks_of(x), blocks_of(numbers), strict=True):
        a = s.abs().amax(1)
        d = a / torch.full_like(a, largest)  # by a plain number a GPU would multiply with its reciprocal instead
        d.view(torch.int32).bitwise_and_(_SIXTEEN_BITS)
        k.copy_((s / d[:, None]).round_().nan_to_num_(nan=0.0).clamp_(-largest, largest))
        scales[first : first + len(d)] = d
        first += len(d)


def restore(scales: Tensor, numbers: Tensor, x: Tensor) -> None:
    """Restore `x` (C,) from its `scales` and `numbers`: the inverse of `quantise`."""
    first = 0
    for q, k in zip(blocks_of(x), blocks_of(numbers), strict=True):
        torch.mul(k, scales[first : first + len(q), None], out=q)
        first += len(q)


def blocks_of(x: Tensor) -> list[Tensor]:
    """Return views of `x` (C,): all whole blocks, (n, BLOCK), and the rest, (1, C - n BLOCK)."""
    whole = len(x) // BLOCK * BLOCK
    return [view for view in (x[:whole].view(-1, BLOCK), x[whole:].view(1, -1)) if view.numel()]
