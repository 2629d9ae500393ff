"""The message of SparseLoCo: the largest elements of each block, in two bits each, with the rest remembered (Sarfi,
Thérien, Lidin and Belilovsky 2025, arXiv 2508.15706).

With d what a learner has changed in a period and e what it has not sent yet, 0 at first:

    e <- beta e + d
    s  = Q(top-k(e))         the k largest by size in every block of 4,096, which is the paper's 64 x 64; all others 0
    e <- e - s

Q leaves four values a block: the mean of those kept that are positive and larger than the mean size, positive and
smaller, negative and larger, negative and smaller. The paper's code cuts by standard deviations from the mean of a
tensor's kept elements, and has means of the four bins, too.

Legend: P parameters, B blocks, W elements of one, K kept of them.
"""

import torch
from torch import Tensor

SPARSE_BLOCK = 4096


def take_largest_(left: Tensor, sent: Tensor, density: float, two_bits: bool) -> None:
    """`sent` (P,) becomes s, and `left` (P,), which is e with d added, loses it."""
    whole = len(left) // SPARSE_BLOCK * SPARSE_BLOCK
    for part in (slice(0, whole), slice(whole, len(left))):
        if part.start == part.stop:
            continue
        width = min(SPARSE_BLOCK, part.stop - part.start)
        rest, out = left[part].view(-1, width), sent[part].view(-1, width)
        places = rest.abs().topk(max(1, round(density * width)), dim=1, sorted=False).indices
        kept = rest.gather(1, places)
        out.zero_().scatter_(1, places, four_values(kept) if two_bits else kept)
        rest.sub_(out)


def four_values(kept: Tensor) -> Tensor:
    """Q of `kept` (B, K): each element the mean of its bin, of which a row has four."""
    large = kept.abs() > kept.abs().mean(1, keepdim=True)
    found = torch.zeros_like(kept)
    for negative in (True, False):
        for side in (large, ~large):
            members = side & ((kept < 0) == negative)
            total = torch.where(members, kept, 0.0).sum(1, keepdim=True)
            found = torch.where(members, total / members.sum(1, keepdim=True).clamp(min=1), found)
    return found
