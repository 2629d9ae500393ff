"""A2CiD2: a momentum of gossip that runs on between exchanges (Nabli, Belilovsky and Oyallon 2023, arXiv 2306.08289).

Every learner i has a second vector x~_i beside its row x_i. Time is counted in gradients of one learner. In between

    dx_i  = eta (x~_i - x_i) dt
    dx~_i = eta (x_i - x~_i) dt

a gradient step changes both alike, and when i and j meet

    d     = x_i - x_j
    x_i  <- x_i  - d / 2          x_j  <- x_j  + d / 2
    x~_i <- x~_i - pull d         x~_j <- x~_j + pull d

Kept is ahead_i = x~_i - x_i, in which gradients cancel: after a time t it is e^(-2 eta t) of itself, and x_i has moved
by half of the difference; at a meeting ahead_i changes by -(pull - 1/2) d. So any local optimizer will do.

The two constants follow from the Laplacian of the mean graph of meetings in a unit of time, with chi_1 the inverse of
its smallest eigenvalue above 0 and chi_2 half of the largest effective resistance of an edge:

    eta  = 1 / (2 sqrt(chi_1 chi_2))          pull = sqrt(chi_1 / chi_2) / 2

Where all learners meet each other equally often, pull is 1/2: ahead stays zero, and nothing is changed.

Source: the authors' code (AdelNabli/ACiD: `acid_utils.py`, `graph_utils.py`); the paper's own text was not read.

Legend: C elements of a chunk, L learners.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_


@dataclass(frozen=True)
class Meeting:
    """The exchange of a learner with a peer: first the learner's own mixing since its last one, then the meeting."""

    left: float  # e^(-2 eta t)
    pull: float

    def __call__(self, mine: Tensor, theirs: Tensor, my_ahead: Tensor, their_ahead: Tensor) -> None:
        """Change both rows and the vectors ahead of them, (C,) each, in place."""
        if self.left < 1:
            mine.add_(my_ahead, alpha=(1 - self.left) / 2)
            my_ahead.mul_(self.left)
        between = mine - theirs
        pair_average_(mine, theirs)
        my_ahead.sub_(between, alpha=self.pull - 0.5)
        their_ahead.add_(between, alpha=self.pull - 0.5)


def meeting(eta: float, pull: float, time: float) -> Meeting:
    """Return the exchange of a learner whose last one was `time` ago, in gradients of its own."""
    return Meeting(math.exp(-2 * eta * time), pull)


def constants(learners: int, distances: Sequence[int] | None) -> tuple[float, float]:
    """Return eta and pull, if each learner begins one exchange a unit of time: by turns with the learners `distances`
    places ahead or behind on the ring; None: with any."""
    if learners < 2 or distances is None:
        return learners / max(1, learners - 1), 0.5
    turns = 2 * math.pi / learners * np.arange(1, learners)
    eigenvalues = 2 * np.mean([1 - np.cos(turns * distance) for distance in distances], axis=0)
    resistances = [np.sum(2 * (1 - np.cos(turns * distance)) / eigenvalues) / learners for distance in distances]
    chi_1, chi_2 = 1 / float(eigenvalues.min()), float(max(resistances)) / 2
    return 0.5 / math.sqrt(chi_1 * chi_2), 0.5 * math.sqrt(chi_1 / chi_2)
