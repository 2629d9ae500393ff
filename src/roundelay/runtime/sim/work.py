"""Minibatches of a segment, the learners that they are given to, and their gradients: computed one by one as they are
asked for, or many together.

A gradient is a pure function of a snapshot and a minibatch, and its learner waits for it with the snapshot in its
hands. So it may be computed at any moment up to the virtual time its answer is due, along with all others that are
under way then: one call over stacked rows instead of one for each.

Legend: L learners, P parameters, B gradients computed together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Snapshot, Statistics
from roundelay.learner.base import Learner
from roundelay.runtime.base import SegmentPlan


@dataclass
class _GroupDraw:
    """The next draw of a group: minibatches that its members have not fetched yet; no `batches`: the segment ends."""

    batches: dict[int, Minibatch]
    waiting: set[int]


class Work:
    """The minibatches of one segment: by (round, rank), or from one queue. Those of the dead come first."""

    def __init__(self, plan: SegmentPlan, learners: int, synchronous: bool) -> None:
        self.stop_round, self._epoch = plan.end_round, plan.epoch
        self._learners, self._synchronous = learners, synchronous
        self._queue, self._round = plan.first, [plan.first_round] * learners
        self._groups: dict[tuple[int, ...], _GroupDraw] = {}
        self.returned: list[Minibatch] = []

    @property
    def end(self) -> int:
        """Number of the first minibatch not drawn; for synchronous learners, the first of the next round."""
        return max(self._round) * self._learners if self._synchronous else self._queue

    @property
    def reached(self) -> int:
        """Number of rounds that the furthest learner has begun."""
        return -(-self.end // self._learners)

    def draw(self, rank: int, group: tuple[int, ...] = ()) -> Minibatch | None:
        """Return the next minibatch of learner `rank`, alone or with its group; None at the end."""
        if len(group) > 1:
            return self._draw_together(rank, group)
        if not self._synchronous:
            return self._next()
        round_ = self._round[rank]
        if round_ >= self.stop_round:
            return None
        self._round[rank] += 1
        return self._epoch.piece(round_ * self._learners + rank)

    def give_back(self, batch: Minibatch) -> None:
        """Give back a minibatch whose learner died before training it."""
        if batch.frames:
            self.returned.append(batch)

    @property
    def left_over(self) -> bool:
        """True if there is still something to draw."""
        unfetched = any(drawn.waiting and drawn.batches for drawn in self._groups.values())
        return bool(self.returned) or unfetched or self._queue < self.stop_round * self._learners

    def restart(self) -> None:
        """Begin again, perhaps with other groups: give back minibatches drawn for learners that never came."""
        for drawn in self._groups.values():
            for rank in sorted(drawn.waiting & set(drawn.batches)):
                self.give_back(drawn.batches[rank])
        self._groups.clear()

    def _next(self) -> Minibatch | None:
        if self.returned:
            return self.returned.pop(0)
        while self._queue < self.stop_round * self._learners:
            batch = self._epoch.piece(self._queue)
            self._queue += 1
            if batch.stop > batch.start:
                return batch
        return None

    def _draw_together(self, rank: int, group: tuple[int, ...]) -> Minibatch | None:
        """Return the minibatch of learner `rank` in a draw of its group; the first member that comes draws for all."""
        drawn = self._groups.get(group)
        if drawn is None or not drawn.waiting:
            found = [batch for batch in (self._next() for _ in group) if batch is not None]
            empty = [Minibatch(self._epoch.epoch, -1, 0, 0)] * (len(group) - len(found))
            batches = dict(zip(group, [*found, *empty], strict=True)) if found else {}
            drawn = self._groups[group] = _GroupDraw(batches, set(group))
        drawn.waiting.remove(rank)
        return drawn.batches.get(rank)


class Gradients:
    """Gradients of `learner` for all ranks, into their rows of `out` (L, P).

    together: compute simultaneous gradients in one call; None: if the learner says that it pays.
    """

    def __init__(self, learner: Learner, out: Tensor, together: bool | None = None) -> None:
        self._learner, self.out = learner, out
        self.together = learner.together_pays if together is None else together
        self._asked: dict[int, tuple[Tensor, Minibatch]] = {}
        self._found: dict[int, Statistics] = {}
        self._plan: EpochPlan

    def begin_segment(self, plan: EpochPlan) -> None:
        """Begin a segment: drop requests of learners that died."""
        self._plan = plan
        self._asked.clear()
        self._found.clear()

    def ask(self, rank: int, at: Snapshot, batch: Minibatch) -> None:
        """Ask for a gradient of learner `rank`, which waits, so that its snapshot stays unchanged until `take`."""
        if self.together:
            self._asked[rank] = (at.vector, batch)
        else:
            self._found[rank] = self._gradient(rank, at.vector, batch)

    def take(self, rank: int) -> Statistics:
        """Compute learner `rank`'s gradient, unless it is done, into its row of `out`; return its statistics."""
        if rank in self._asked:
            self._compute()
        return self._found.pop(rank)

    def _gradient(self, rank: int, x: Tensor, batch: Minibatch) -> Statistics:
        """Compute the gradient of one learner at `x` (P,), which is where the learner computes."""
        resident = self._learner.device is not None
        return self._learner.gradient(x, batch, self._plan, self.out[rank], resident=resident)

    def drop(self, rank: int) -> None:
        """Drop the request of learner `rank`, which has died."""
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
