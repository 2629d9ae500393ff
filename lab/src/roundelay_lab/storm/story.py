"""A training seen from outside while it runs, and the numbers that follow. Seconds count from its first command."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

from roundelay.core.records import known

NOTICED_SECONDS = 2.0
"""Seconds within which an event is seen, since a run writes once a second which learners live."""


@final
@dataclass(frozen=True)
class Struck:
    """A fault that has happened, with its times and its victim."""

    at: float  # when it began (s)
    kind: str
    host: int
    until: float  # when what was done was undone (s); of a killed learner, `at`


@final
@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault until others, and until its victim, went on."""

    struck: Struck
    others: float | None  # until the next minibatches of any learner were counted; None: none were any more
    # until all learners lived again, where one was lost; None: none was lost, or it did not come back.
    victim: float | None


@final
@dataclass
class Story:
    """Progress, living learners and faults of a watched training, over time."""

    learners: int  # of the run
    # seconds, and frames trained and counted by then; fewer than before where a run went back to a checkpoint.
    progress: list[tuple[float, int]] = field(default_factory=list)
    # seconds, and the learners that lived from then on.
    living: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    starts: int = 1  # times that the first host's command was given
    seconds: float = 0.0  # until all hosts had ended
    left: int = 0  # processes that outlived the run
    # when faults were ended (s), for the run would not have ended with them; None: they were not.
    calmed: float | None = None
    drawn: int = 0  # faults whose time came, those that never met anything included
    work: tuple[int, ...] = ()  # of each learner that entered the model, in any unit, by rank; empty: not known

    def see_frames(self, at: float, frames: int) -> None:
        """Note that `frames` frames are trained and counted by second `at`."""
        if not self.progress or self.progress[-1][1] != frames:
            self.progress.append((at, frames))

    def see_living(self, at: float, ranks: Sequence[int]) -> None:
        """Note that the learners `ranks` are alive at second `at`."""
        if not self.living or self.living[-1][1] != tuple(ranks):
            self.living.append((at, tuple(ranks)))

    @property
    def frames_per_second(self) -> float:
        """Frames that counted in the end, a second from the first to the last minibatches seen; 0 if too few."""
        if len(self.progress) < 2:
            return 0.0
        (first, begun), (last, frames) = self.progress[0], self.progress[-1]
        return (frames - begun) / max(last - first, 1e-9)

    @property
    def mean_alive(self) -> float:
        """Mean number of learners alive, from the first to the last minibatches seen; 0 if too few were seen."""
        if len(self.progress) < 2 or not self.living:
            return 0.0
        begin, end = self.progress[0][0], self.progress[-1][0]
        moments = [(max(at, begin), len(ranks)) for at, ranks in self.living if at < end]
        if not moments:
            return 0.0
        moments[0] = (begin, moments[0][1])
        spans = pairwise([*moments, (end, 0)])
        return sum((until - at) * number for (at, number), (until, _) in spans) / max(end - begin, 1e-9)

    @property
    def participation(self) -> float | None:
        """Work that entered the model, as the number of learners that work as much as the busiest one; None if not
        known. Two learners that worked all the time: 2. One of two that was away for half of it: 1.5."""
        return sum(self.work) / max(self.work) if any(self.work) else None

    def hosts_lost(self, each: int) -> int:
        """Return the number of hosts that were lost with all their learners, of which each has `each`: those killed,
        and those off the network until they were considered dead."""
        lost = 0
        for one in self.struck:
            ranks = {*range(one.host * each, (one.host + 1) * each)}
            while_cut = [seen for at, seen in self.living if one.at < at <= one.until + NOTICED_SECONDS]
            lost += one.kind == "crash" or (one.kind == "cut" and any(ranks.isdisjoint(seen) for seen in while_cut))
        return lost

    def since_training(self) -> "Story":
        """Return the story with seconds counted from the first minibatches that were seen."""
        begun = self.progress[0][0] if self.progress else 0.0
        return dataclasses.replace(
            self,
            progress=[(at - begun, frames) for at, frames in self.progress],
            living=[(max(0.0, at - begun), ranks) for at, ranks in self.living],
            struck=[dataclasses.replace(one, at=one.at - begun, until=one.until - begun) for one in self.struck],
            seconds=self.seconds - begun,
            calmed=None if self.calmed is None else self.calmed - begun,
        )

    def recoveries(self) -> list[Recovery]:
        """Return recoveries from all faults, in order."""
        return [Recovery(one, self._others(one), self._victim(one)) for one in self.struck]

    def _others(self, one: Struck) -> float | None:
        grew = (at for (_, before), (at, after) in pairwise(self.progress) if after > before and at > one.at)
        return next((at - one.at for at in grew), None)

    def _victim(self, one: Struck) -> float | None:
        """Return the time of the last fault before the loss of a learner that can have caused the loss."""
        if one.kind == "slow":
            return None
        later = min((o.at for o in self.struck if o.at > one.at and o.kind != "slow"), default=math.inf)
        after = [(at, len(ranks)) for at, ranks in self.living if at > one.at]
        lost = next((number for number, (_, count) in enumerate(after) if count < self.learners), None)
        if lost is None or after[lost][0] > later:
            return None
        return next((at - one.at for at, count in after[lost:] if count >= self.learners), None)

    def to_json(self) -> dict[str, Any]:
        """Return the story as a plain mapping."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Story":
        """Return the story in a mapping from `to_json`."""
        fields = known(cls, value)
        fields["progress"] = [(at, frames) for at, frames in fields["progress"]]
        fields["living"] = [(at, tuple(ranks)) for at, ranks in fields["living"]]
        fields["work"] = tuple(fields.get("work", ()))
        fields["struck"] = [Struck(**known(Struck, one)) for one in fields["struck"]]
        return cls(**fields)


def middle_and_worst(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the median and the largest of the values that are not None; None if there are none."""
    there = [value for value in values if value is not None]
    return (statistics.median(there), max(there)) if there else None
