"""Those who wait in a gathering of simulated learners."""

from typing import Generic, TypeVar

from roundelay.core.effects import Gather
from roundelay.runtime.gathering import Gatherings, GatheringTable

W = TypeVar("W")


class VirtualGatherings(Generic[W]):
    """The rules of gatherings, and who waits: an opaque `W` for each. Times are virtual seconds."""

    def __init__(self, learners: int) -> None:
        self.rules = Gatherings(GatheringTable.zeros(learners))
        self.waiting: dict[int, tuple[Gather, W]] = {}

    def begin(self, now: float) -> None:
        """All begin together."""
        self.waiting.clear()
        self.rules.begin_part(now)

    @property
    def first(self) -> int:
        """The learner that closes the gathering when its time has come: of those who wait, one that goes on, if there
        is any; else the first."""
        return min(self.waiting, key=lambda rank: (self.waiting[rank][0].last, rank))

    def released(self, now: float) -> list[W]:
        """Those who need not wait any more, by rank; they do not wait then."""
        ranks = [rank for rank in sorted(self.waiting) if self.rules.take_release(rank, now)]
        return [self.waiting.pop(rank)[1] for rank in ranks]
