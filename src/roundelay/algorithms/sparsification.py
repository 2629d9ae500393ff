"""The message of SparseLoCo: the largest elements of each block, in two bits each (Sarfi, Thérien, Lidin and Belilovsky
2025, arXiv 2508.15706).

With d a learner's change in a period and e the part it has not sent yet, 0 at first:

    e <- beta e + d
    s  = Q(top-k(e))         the k largest by size in every block of 4,096 (64 x 64 in the authors' code); others 0
    e <- e - s

Q leaves four values a block: the mean of those kept that are positive and larger than the mean size, positive and
smaller, negative and larger, negative and smaller. The paper's code cuts by standard deviations from the mean of a
tensor's kept elements, and has means of the four bins, too. Where a block keeps at most four different values, Q leaves
them as they are: so Q of a vector that was sent is that vector, to the bit.

algorithms/codecs/sparse.py has the bytes.

Legend: B blocks, W elements of one, K kept of them.
"""

import torch
from torch import Tensor

SPARSE_BLOCK = 4096


def kept_of(width: int, density: float) -> int:
    """Return K, the number of elements kept of a block of `width`."""
    return max(1, round(density * width))


def largest(blocks: Tensor, number: int, two_bits: bool) -> tuple[Tensor, Tensor]:
    """Return the places (B, K) and values (B, K) of the K = `number` largest elements of each of `blocks` (B, W). Where
    a block has fewer elements that are not zero, its largest is repeated in place of the others.

    With `two_bits`, a block with an element that is not finite has NaN for all values.
    """
    places = blocks.abs().topk(number, dim=1, sorted=False).indices
    kept = blocks.gather(1, places)
    values = four_values(kept) if two_bits else kept
    zero, first = kept == 0, kept.abs().argmax(1, keepdim=True)
    return (
        torch.where(zero, places.gather(1, first), places),
        torch.where(zero, values.gather(1, first), values),
    )


def four_values(kept: Tensor) -> Tensor:
    """Quantise `kept` (B, K): sort the elements of each row into four bins, and replace each by the mean of its bin."""
    sizes = kept.abs()
    large = sizes > sizes.mean(1, keepdim=True)
    found = torch.zeros_like(kept)
    for negative in (True, False):
        for side in (large, ~large):
            members = side & ((kept < 0) == negative) & (kept != 0)
            total = torch.where(members, kept, 0.0).sum(1, keepdim=True)
            found = torch.where(members, total / members.sum(1, keepdim=True).clamp(min=1), found)
    found = torch.where(_few(kept), kept, found)
    return torch.where(sizes.sum(1, keepdim=True).isfinite(), found, torch.nan)


def numbered(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a table (B, 4) of the at most four different `values` (B, K) of each row, and the place of each value in
    its table, (B, K)."""
    ordered, order = values.sort(dim=1)
    ranks = torch.zeros_like(order)
    ranks[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1).clamp_(max=3)  # not-a-numbers are all different
    table = torch.zeros(len(values), 4, device=values.device).scatter_(1, ranks, ordered)
    return table, torch.empty_like(ranks).scatter_(1, order, ranks)


def _few(kept: Tensor) -> Tensor:
    """Return (B, 1), True for rows of `kept` with at most four different values besides zero."""
    ordered = kept.sort(dim=1).values
    different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1, keepdim=True)
    return different - (kept == 0).any(1, keepdim=True).long() <= 4
