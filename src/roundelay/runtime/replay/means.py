"""Means of learners in one process, in the order in which they take part; taken in the host's memory, as recorded.

Legend: P parameters.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.runtime.replay.baton import Baton

Group = tuple[int, ...]
KEPT = 64
"""Vectors for neighbours that a learner keeps: those of so many means."""


@dataclass
class GroupMean:
    """Vectors and weights by rank, and their mean (P,), once all have come."""

    vectors: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    mean: Tensor | None = None


class RecordedMeans:
    """Means of all learners."""

    def __init__(self, baton: Baton, learners: int) -> None:
        self._baton = baton
        self._open: dict[tuple[Group, int], GroupMean] = {}
        self._counts = [Counter[Group]() for _ in range(learners)]
        self._numbers = [0] * learners
        self._published: dict[tuple[int, int], Tensor] = {}

    def give(self, rank: int, group: Group, vector: Tensor, weight: float) -> GroupMean:
        """Take part in the next mean of `group` with `vector` (P,) as it is now."""
        self._numbers[rank] += 1
        self._counts[rank][group] += 1
        key = group, self._counts[rank][group]
        found = self._open.setdefault(key, GroupMean())
        found.vectors[rank] = (vector.to("cpu", copy=True), weight)
        if len(found.vectors) == len(group):
            del self._open[key]
            given = [found.vectors[member] for member in group]
            found.mean = weighted_mean([v for v, _ in given], [w for _, w in given])
            self._baton.changed()
        return found

    def publish(self, rank: int, vector: Tensor) -> int:
        """Let neighbours read `vector` (P,) as it is now; its number."""
        self._numbers[rank] += 1
        number = self._numbers[rank]
        self._published[rank, number] = vector.to("cpu", copy=True)
        self._published.pop((rank, number - KEPT), None)
        self._baton.changed()
        return number

    def mix(self, rank: int, weights: Sequence[tuple[int, float]], number: int) -> Tensor:
        """Return the mean (P,) of what the neighbours in `weights` have published under that number; wait for them."""
        published, ranks = self._published, [other for other, _ in weights]
        self._baton.until(
            rank, lambda: all((other, number) in published for other in ranks), f"its neighbours in mix {number}"
        )
        return weighted_mean([published[other, number] for other in ranks], [weight for _, weight in weights])
