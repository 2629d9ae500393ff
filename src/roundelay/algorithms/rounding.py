"""Rounding to sixteen bits with error feedback (Seide et al. 2014, there to one bit).

What rounding takes away is not lost, but added to what is carried next:

    s = x + e        e: what is left of earlier times, 0 at first
    q = round(s)     this is carried
    e = s - q

So after n times the sum of all q is the sum of all x up to one last rounding error, however small x is beside the
grid of q: sum_n q = sum_n x - e_n.

bfloat16 keeps eight significant bits: |e| <= 2^-8 |s|.

Legend: C elements of a chunk.
"""

from torch import Tensor


def round_with_feedback_(x: Tensor, error: Tensor, rounded: Tensor, carried: Tensor) -> None:
    """`rounded` (C,) bfloat16 and `carried` (C,) float32, the same numbers, from `x` (C,), which is only read; `error`
    (C,) in place.

    What is not finite leaves no error behind: else one infinity would be remembered for ever.
    """
    error.add_(x)
    rounded.copy_(error)
    carried.copy_(rounded)
    error.sub_(carried).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
