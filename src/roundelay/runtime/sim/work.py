"""Minibatches of a segment, and the learners that they are given to."""

from dataclasses import dataclass

from roundelay.core.state import Minibatch
from roundelay.runtime.base import SegmentPlan


@dataclass
class _GroupDraw:
    """The minibatches of a group's next draw that its members have not fetched yet; no `batches`: the end."""

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
        """The first minibatch nobody has drawn; for synchronous learners that of the next round."""
        return max(self._round) * self._learners if self._synchronous else self._queue

    @property
    def reached(self) -> int:
        """Rounds the furthest learner has begun."""
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
        """Give a minibatch back whose learner died before it was trained."""
        if batch.frames:
            self.returned.append(batch)

    @property
    def left_over(self) -> bool:
        """Is there something to draw still?"""
        unfetched = any(drawn.waiting and drawn.batches for drawn in self._groups.values())
        return bool(self.returned) or unfetched or self._queue < self.stop_round * self._learners

    def restart(self) -> None:
        """Begin again, perhaps in other groups: what was drawn for a learner who never came goes back."""
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
        """Return the first of the group that comes draws for all of it."""
        drawn = self._groups.get(group)
        if drawn is None or not drawn.waiting:
            found = [batch for batch in (self._next() for _ in group) if batch is not None]
            empty = [Minibatch(self._epoch.epoch, -1, 0, 0)] * (len(group) - len(found))
            batches = dict(zip(group, [*found, *empty], strict=True)) if found else {}
            drawn = self._groups[group] = _GroupDraw(batches, set(group))
        drawn.waiting.remove(rank)
        return drawn.batches.get(rank)
