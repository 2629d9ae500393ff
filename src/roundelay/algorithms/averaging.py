"""Averages: of a pair of rows, and of a group of vectors.

Rows that are weighed have masses, which become as their learners' speeds s, and weigh as the square roots of these.
Shares in proportion to s let the slow say the least, and equal shares average the most noise away: the model that moves
as far in a second as the fastest row has the noise of n times as many minibatches as that, n = 1.19, 1.28 and 1.33 for
speeds 1 and 1/3 by s, by the root and by equal shares. Under equal shares a slow row holds the others back between two
exchanges: where there is no noise, and exchanges take ten steps, that of a learner 10 times slower makes two later than
one alone (docs/log.md, 2026-11-24); by the root it costs 3 %.

Near the largest stable rate a slow row only harms: its learner's gradients are of snapshots that are several steps old.
So a learner that finds curvature to limit its rate (algorithms/gain.py) marks its row, by a mass below 0. Where the
heaviest of some rows has a mark, those that are lighter by more than `LIGHTER` weigh nothing: they take over its model,
and give it nothing.

Legend: P parameters, C elements of a chunk.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

import torch
from torch import Tensor

from roundelay.core.flat import CHUNK, chunks

MEAN_PIECE = 4 * CHUNK
"""Elements of one message of a mean along a chain: 1 MiB, small beside a model, for the last in the chain begins to
answer when it has one ..."""
LEAST_MEAN_PIECE = CHUNK // 4
"""... and the fewest, below which messages cost more than waiting."""
LIGHTER: Final = 1.5
"""Factor by which the rows that follow a row with a mark are lighter."""
UNSURE: Final = 2
"""Steps added to both masses before they are compared: early on, equally fast learners may differ by a step or two."""
_LEAST_SHARE = 1e-9
"""Share of a row that weighs nothing, where the share is a divisor."""


def chain_piece(places: int, elements: int) -> int:
    """Return the elements of one message in a mean of vectors of `elements` elements along a chain of `places` hosts.

    The first message passes every link twice before the mean can be complete. So that this takes no longer in a long
    chain, messages are half as large from 8 places on, a quarter from 16 on, and so on; and a short vector is cut into
    at least eight, as long as a message is not below a chunk. A message has whole blocks of every codec, so that its
    size changes no bit of the mean.
    """
    piece = max(LEAST_MEAN_PIECE, MEAN_PIECE >> max(0, places.bit_length() - 3))
    while piece > CHUNK and 8 * piece > elements:
        piece //= 2
    return piece


def pair_average_(mine: Tensor, theirs: Tensor) -> None:
    """Set both to (mine + theirs) / 2, in place. The exchange of AD-PSGD (Lian et al. 2018), with w_ij = 1/2.

    Applied to the rows as they are under both locks, it keeps their sum (to rounding); computed from an older copy it
    would not, and the mean of all learners would drift.
    """
    mine.lerp_(theirs, 0.5)
    theirs.copy_(mine)


def share_average_(mine: Tensor, theirs: Tensor, share: float) -> None:
    """Set both to share * mine + (1 - share) * theirs, in place.

    With share w_i / (w_i + w_j) it keeps w_i x_i + w_j x_j of rows with weights w_i and w_j (to rounding), as
    `pair_average_`, which it is with share 1/2, keeps their sum.
    """
    mine.lerp_(theirs, 1 - share)
    theirs.copy_(mine)


def weights_of(masses: Sequence[float]) -> Sequence[float]:
    """Return a weight for each row: the square root of its mass without sign; 0 for rows much lighter than the
    heaviest, if that has a mark (a mass below 0); equal weights if all masses are 0."""
    heaviest = max(masses, key=abs, default=0.0)
    least = (abs(heaviest) + UNSURE) / LIGHTER - UNSURE if heaviest < 0 else 0.0
    return some_weight([sqrt(abs(mass)) if abs(mass) >= least else 0.0 for mass in masses])


def shares_of(masses: Sequence[float]) -> list[float]:
    """Return the share of each row in the model: `weights_of(masses)` over their sum."""
    weights = weights_of(masses)
    total = sum(weights)
    return [weight / total for weight in weights]


def fastest_over_mean(others: Sequence[float]) -> float:
    """Return max_l s_l / sum_l p_l s_l, for shares p_l in proportion to sqrt(s_l): how many times as fast as the mean
    of rows by their shares the fastest row is; max(s) sum(s^1/2) / sum(s^3/2). Of two rows it is at most 4/3.

    Args:
        others: of each of the others its share p_j / (p_i + p_j) in the pair with row i, 0 to 1; 0: it does not count.
    """
    found = speeds(others)
    return max(found) * sum(map(sqrt, found)) / sum(s * sqrt(s) for s in found)


def speeds(others: Sequence[float]) -> list[float]:
    """Return the speeds of row i and the `others`, in units of row i's; `others` as for `fastest_over_mean`."""
    return [1.0] + [(other / max(1 - other, _LEAST_SHARE)) ** 2 for other in others]


def minibatches_averaged(speeds: Sequence[float]) -> float:
    """Return n where the mean of rows by shares p_l in proportion to sqrt(s_l), which moves as far in a second as the
    fastest row, does so by gradients of minibatches n times as large. It moves by sum p_l s_l a second, with the
    variance of sum p_l^2 s_l gradients; n is the square of the first over the second and over max(s):
    sum(s^3/2)^2 / (sum(s^2) max(s)). L of equal speeds; 1 where none moves."""
    squares = sum(s * s for s in speeds)
    return sum(s * sqrt(s) for s in speeds) ** 2 / (squares * max(speeds)) if squares else 1.0


def weighted_mean_(out: Tensor, vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Write the weighted mean into `out`: out <- sum_i w_i v_i / sum_i w_i, all (C,).

    Summed in the order given (by rank), product and sum rounded apart: every runtime gets the same bits, whichever
    learner does the summing. A vector of weight zero is not read.
    """
    total = float(sum(weights))
    if total <= 0:
        raise ValueError("a weighted mean needs a positive total weight")
    first = next(number for number, weight in enumerate(weights) if weight)
    shares = [weight / total for weight in weights]
    torch.mul(vectors[first], shares[first], out=out).add_(0.0)  # to zero: -0 becomes 0
    add_shares_(out, vectors[first + 1 :], shares[first + 1 :])


def some_weight(weights: Sequence[float]) -> Sequence[float]:
    """Return `weights`, those of the learners that are left of a mean; equal ones if all are 0."""
    return weights if any(weights) else [1.0] * len(weights)


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean of vectors (P,) as a new vector, computed chunk by chunk by `weighted_mean_`."""
    mean = torch.empty_like(vectors[0])
    if mean.numel() <= CHUNK:  # views would be a fifth of the work on short ones
        weighted_mean_(mean, vectors, weights)
        return mean
    for part in chunks(mean.numel()):
        weighted_mean_(mean[part], [vector[part] for vector in vectors], weights)
    return mean


def add_shares_(out: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Add vectors by their shares: out <- out + sum_i s_i v_i, all (C,). It is `weighted_mean_` in parts, for a sum
    that is taken in several places: begun at zero and continued in the same order, it gives the same bits."""
    scratch: Tensor | None = None
    for vector, share in zip(vectors, shares, strict=True):
        if share:
            scratch = torch.empty_like(out) if scratch is None else scratch
            out.add_(torch.mul(vector, share, out=scratch))
