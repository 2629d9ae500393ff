"""Gatherings: when they close, which learners are late, and which contributions count. One set of rules for all
runtimes.

A gathering is open at any time. A learner comes to it (`admits`, then `arrive`), waits if it is in time, and one of
those that wait closes it when `closing_time` has come. The numbers are arrays, in shared memory where learners are
processes. The caller holds a lock, and says the time.

Legend: L learners.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from roundelay.algorithms.quorum import guard_limit, next_usual, usual_span
from roundelay.core.effects import Gather, Quorum

COME, FOR_THE_LAST_TIME, FINISHED = 1, 2, 3
"""States of a learner: it has come to the open gathering; for the last time in this segment; and so have all others."""
PAST = 64
"""Number of last spans (seconds from one gathering to the next contribution) that are kept."""
LEARNT = "centre gatherings"
"""Name in a `ClusterState` of the usual values so far: spans, norms and losses."""
UNJUDGED = 10
"""Number of first contributions that the guard does not judge, and from which it learns the usual values."""


@dataclass(frozen=True)
class GatheringTable:
    """The numbers of all gatherings of a cluster; `closed`, `late`, `left_out` and `counted` are of the segment."""

    closed: NDArray[np.int64]  # (1,) gatherings that have closed
    closer: NDArray[np.int64]  # (1,) the learner that is closing one, or -1
    opened_at: NDArray[np.float64]  # (1,) seconds
    held: NDArray[np.int64]  # (L,) number of closed gatherings when a learner took the model it goes on from
    took_at: NDArray[np.float64]  # (L,) seconds
    came: NDArray[np.int64]  # (L,) COME, FOR_THE_LAST_TIME or FINISHED; 0: not yet
    came_at: NDArray[np.float64]  # (L,) seconds
    spans: NDArray[np.float64]  # (PAST,) seconds from taking a model to coming, of past contributions
    spans_seen: NDArray[np.int64]  # (1,)
    usual: NDArray[np.float64]  # (2, 2) mean and variance, of norms and of losses
    usual_seen: NDArray[np.int64]  # (1,)
    counted: NDArray[np.int64]  # (L,) contributions that counted
    late: NDArray[np.int64]  # (L,) times a learner was late
    left_out: NDArray[np.int64]  # (L,) contributions that were left out by the guard
    outside: NDArray[np.int64]  # (L,) 1: a learner that lives, and has not begun this part of a segment

    @classmethod
    def shapes(cls, learners: int) -> dict[str, tuple[tuple[int, ...], type[Any]]]:
        """Return the shape and type of each array of the table, by name."""
        one, each = (1,), (learners,)
        shapes: dict[str, tuple[int, ...]] = {"spans": (PAST,), "usual": (2, 2)}
        shapes |= dict.fromkeys(("closed", "closer", "opened_at", "spans_seen", "usual_seen"), one)
        shapes |= dict.fromkeys(("held", "took_at", "came", "came_at", "counted", "late", "left_out", "outside"), each)
        real = ("opened_at", "took_at", "came_at", "spans", "usual")
        names = list(cls.__dataclass_fields__)
        return {name: (shapes[name], np.float64 if name in real else np.int64) for name in names}

    @classmethod
    def zeros(cls, learners: int) -> Self:
        """Return the table before any learner has come."""
        return cls(**{name: np.zeros(shape, kind) for name, (shape, kind) in cls.shapes(learners).items()})


@dataclass(frozen=True)
class Gathered:
    """Gatherings of a segment: how many closed, and by rank how many contributions counted, came late, and were left
    out."""

    closed: int
    counted: tuple[int, ...]
    late: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def totals(self) -> dict[str, int]:
        """Counts of all learners together, by name."""
        by_rank = {"counted": self.counted, "late": self.late, "left_out": self.left_out}
        return {"closed": self.closed, **{name: sum(numbers) for name, numbers in by_rank.items()}}


class Gatherings:
    """The rules of gatherings, over the numbers in `table`. Times are seconds on the runtime's clock."""

    def __init__(self, table: GatheringTable) -> None:
        self.table = table

    def begin_segment(self) -> None:
        """Begin a segment: set its counts to 0. Called while no learner runs."""
        for counts in (self.table.closed, self.table.counted, self.table.late, self.table.left_out):
            counts[:] = 0

    def begin_part(self, now: float) -> None:
        """Begin a part of a segment, in which all learners begin together."""
        table = self.table
        table.held[:], table.came[:], table.took_at[:], table.outside[:] = table.closed[0], 0, now, 0
        table.opened_at[0], table.closer[0] = now, -1

    def join(self, rank: int, now: float) -> None:
        """Let learner `rank` begin at the model of the last gathering. If a dead predecessor was to close a gathering,
        another learner will."""
        table = self.table
        table.held[rank], table.came[rank], table.took_at[rank] = table.closed[0], 0, now
        table.outside[rank] = 0
        self.give_up_closing(rank)

    def leave(self, ranks: Sequence[int]) -> None:
        """Let no learner wait for `ranks` until they `join`, whether they live or not."""
        self.table.outside[list(ranks)] = 1

    def finish(self, ranks: Sequence[int]) -> None:
        """Note that the learners `ranks` have come for the last time in this segment, to gatherings that are lost."""
        self.table.came[[rank for rank in ranks if not self.table.came[rank]]] = FINISHED

    def learnt(self) -> NDArray[np.float64] | None:
        """Return the usual values so far, (1, PAST + 6), to go on with later; None: no learner has come yet."""
        table = self.table
        seen = np.array([table.spans_seen[0], table.usual_seen[0]], np.float64)
        return np.concatenate([seen, table.usual.ravel(), table.spans])[None] if seen.any() else None

    def recall(self, learnt: NDArray[np.float64] | None) -> None:
        """Restore the values that `learnt` returned; None: begin without any."""
        table, numbers = self.table, np.zeros(PAST + 6) if learnt is None else learnt.ravel()
        table.spans_seen[0], table.usual_seen[0] = numbers[:2]
        table.usual[:], table.spans[:] = numbers[2:6].reshape(2, 2), numbers[6:]

    def told(self) -> Gathered | None:
        """Return a summary of this segment's gatherings; None: there were none."""
        table = self.table
        if not table.closed[0]:
            return None
        return Gathered(
            int(table.closed[0]), *(tuple(counts.tolist()) for counts in (table.counted, table.late, table.left_out))
        )

    # A learner comes --------------------------------------------------------------------------------------------------

    def is_late(self, rank: int) -> bool:
        """Return True if a gathering has closed since learner `rank` took the model it goes on from."""
        return bool(self.table.held[rank] < self.table.closed[0])

    def admits(self, rank: int, gather: Gather) -> bool:
        """Return True if the contribution of learner `rank` counts; called once, before it is given."""
        table, terms = self.table, gather.terms
        if gather.give is None:
            return False
        if self.is_late(rank):
            table.late[rank] += 1
            if terms.drops_late:
                return False
        if terms.guard is not None and not self._is_usual((gather.norm, gather.loss), terms.guard):
            table.left_out[rank] += 1
            return False
        table.counted[rank] += 1
        return True

    def _is_usual(self, values: tuple[float, float], limit: float) -> bool:
        """Return True if norm and loss are usual, and learn from them. A value above the limit is learnt as the limit,
        so that a lasting change becomes usual."""
        usual, seen = self.table.usual, int(self.table.usual_seen[0])
        good = True
        for number, value in enumerate(values):
            mean, variance = (float(moment) for moment in usual[number])
            most = guard_limit(mean, variance, limit)
            off = not math.isfinite(value) or (seen >= UNJUDGED and value > most)
            good = good and not off
            usual[number] = next_usual(most if off else value, mean, variance, seen)
        self.table.usual_seen[0] += 1
        return good

    def arrive(self, rank: int, last: bool, now: float) -> bool:
        """Note that learner `rank` has given its contribution, its `last` in the segment if so; return True if it must
        wait. A late learner goes on, with the model of the last gathering."""
        table = self.table
        waits = last or not self.is_late(rank)
        table.came[rank], table.came_at[rank] = FOR_THE_LAST_TIME if last else COME, now
        if not last:
            self._remember(now - table.took_at[rank])
        if not waits:
            self._take(rank, now)
        return waits

    def _remember(self, span: float) -> None:
        table = self.table
        table.spans[table.spans_seen[0] % PAST] = span
        table.spans_seen[0] += 1

    def _take(self, rank: int, now: float) -> None:
        self.table.held[rank], self.table.took_at[rank] = self.table.closed[0], now

    # A gathering closes -----------------------------------------------------------------------------------------------

    def closing_time(self, terms: Quorum, living: Sequence[int]) -> float:
        """Return the time at which the open gathering closes if no other learner comes; infinity if another must come
        first."""
        table, come = self.table, [rank for rank in living if self.table.came[rank]]
        if len(come) == len(living):
            return -math.inf
        needed = min(terms.needed, len(living))
        if len(come) < needed or all(table.came[rank] >= FOR_THE_LAST_TIME for rank in come):
            return math.inf
        enough_at = sorted(float(table.came_at[rank]) for rank in come)[needed - 1]
        if terms.grace is not None:
            return enough_at + terms.grace
        spans = table.spans[: min(int(table.spans_seen[0]), PAST)].tolist()
        return max(enough_at, float(table.opened_at[0]) + usual_span(spans, terms.spread)) if spans else enough_at

    def begin_closing(self, rank: int, terms: Quorum, living: Sequence[int], now: float) -> bool:
        """Return True if learner `rank`, which waits, is to close the gathering now; while it lives no other will."""
        closer = self.table.closer
        if (closer[0] >= 0 and closer[0] in living) or self.closing_time(terms, living) > now:
            return False
        if self.table.came[rank] == FOR_THE_LAST_TIME and not self._ends(living):
            return False
        closer[0] = rank
        return True

    def give_up_closing(self, rank: int) -> None:
        """Note that learner `rank`, if it was chosen to close the gathering, has not closed it."""
        self.table.closer[self.table.closer == rank] = -1

    def close(self, living: Sequence[int], now: float) -> None:
        """Close the gathering, after the exchange for which `begin_closing` chose a learner. Waiting learners may go
        on; those of a segment's end once all have come."""
        table, ends = self.table, self._ends(living)
        table.closed[0] += 1
        table.opened_at[0], table.closer[0] = now, -1
        table.came[table.came == COME] = 0
        if ends:
            table.came[table.came == FOR_THE_LAST_TIME] = FINISHED

    def _ends(self, living: Sequence[int]) -> bool:
        return all(self.table.came[rank] >= FOR_THE_LAST_TIME for rank in living)

    def take_release(self, rank: int, now: float) -> bool:
        """Let learner `rank` go on if the gathering it waits for is closed; return False if it is not."""
        if self.table.came[rank] in (COME, FOR_THE_LAST_TIME):
            return False
        self._take(rank, now)
        return True
