"""Gradients of the simulator: computed one by one as they are asked for, or many together.

A gradient is a pure function of a snapshot and a minibatch, and its learner waits for it with the snapshot in its
hands. So it may be computed at any moment up to the virtual time its answer is due, along with all others that are
under way then: one call over stacked rows instead of one for each.

Legend: L learners, P parameters, B gradients computed together.
"""

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Snapshot, Statistics
from roundelay.learner.base import Learner


class Gradients:
    """Gradients of `learner` for all ranks, into their rows of `out` (L, P).

    together: compute those under way in one call; None: where the learner says that it pays.
    """

    def __init__(self, learner: Learner, out: Tensor, together: bool | None = None) -> None:
        self._learner, self.out = learner, out
        self.together = learner.together_pays if together is None else together
        self._asked: dict[int, tuple[Tensor, Minibatch]] = {}
        self._found: dict[int, Statistics] = {}
        self._plan: EpochPlan

    def begin_segment(self, plan: EpochPlan) -> None:
        """Forget what was asked for by learners that died."""
        self._plan = plan
        self._asked.clear()
        self._found.clear()

    def ask(self, rank: int, at: Snapshot, batch: Minibatch) -> None:
        """Ask for a gradient of learner `rank`, which waits for it, so its snapshot stays as it is until `take`."""
        if self.together:
            self._asked[rank] = (at.vector, batch)
        else:
            self._found[rank] = self._gradient(rank, at.vector, batch)

    def take(self, rank: int) -> Statistics:
        """Take the gradient of `rank`, which is due: from now on it is in its row of `out`."""
        if rank in self._asked:
            self._compute()
        return self._found.pop(rank)

    def _gradient(self, rank: int, x: Tensor, batch: Minibatch) -> Statistics:
        """Compute the gradient of one learner at `x` (P,), which is where the learner computes."""
        resident = self._learner.device is not None
        return self._learner.gradient(x, batch, self._plan, self.out[rank], resident=resident)

    def drop(self, rank: int) -> None:
        """Drop learner `rank`, which has died."""
        self._asked.pop(rank, None)
        self._found.pop(rank, None)

    def _compute(self) -> None:
        ranks = sorted(self._asked)
        asked = [self._asked[rank] for rank in ranks]
        self._asked.clear()
        if len(ranks) == 1:
            (x, batch), rank = asked[0], ranks[0]
            self._found[rank] = self._gradient(rank, x, batch)
            return
        points = torch.stack([x for x, _ in asked])
        everyone = len(ranks) == len(self.out)
        out = self.out if everyone else torch.empty_like(points)
        found = self._learner.gradients(points, [batch for _, batch in asked], self._plan, out)
        if not everyone:
            self.out[ranks] = out
        self._found.update(zip(ranks, found, strict=True))
