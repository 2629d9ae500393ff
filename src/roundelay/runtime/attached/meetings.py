"""Meetings have kinds: learners that are in different ones are told so, by name and number.

    rank 0 is in its 2nd consensus(), rank 1 in close()

Each learner writes which meeting it is in before it says that it has come. Meetings have numbers; two slots are enough,
for no learner comes to the next but one before all have come to the next.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.views import Integers, L, View, table

log = logging.getLogger("roundelay")

LAST = "close()"
"""The kind of the last meeting."""
KINDS = ("", "consensus()", "meet()", "state_dict()", "load_state_dict()", "save()", "attach(resume=...)", LAST)


class MeetingsDiffer(UserError):
    """Error: learners have come to different meetings, so that nothing can be averaged any more."""


@dataclass(frozen=True)
class MeetingTables(View):
    """Tables of the meetings that learners are in. Each writes its own column of a slot, one for meetings of even and
    one of odd numbers, before it publishes that it has come (`Attendance.met`)."""

    kind: Integers = table(2, L)  # The kind of meeting, by its place in KINDS
    nth: Integers = table(2, L)  # How often the learner has come to one of this kind


class Meetings:
    """Kinds of the meetings that one learner and the others are in."""

    def __init__(self, tables: MeetingTables, rank: int) -> None:
        self._kind, self._nth = tables.kind, tables.nth
        self._rank, self._before = rank, Counter[str]()
        self._now = ""

    def begin(self, kind: str) -> None:
        """Note that this learner begins a meeting of this kind."""
        self._before[kind] += 1
        self._now = kind

    def announce(self, number: int) -> None:
        """Write the kind of this learner's meeting, before the learner counts as come to meeting `number`."""
        self._kind[number % 2, self._rank] = KINDS.index(self._now)
        self._nth[number % 2, self._rank] = self._before[self._now]

    def check(self, number: int, came: Sequence[int]) -> None:
        """Check that the learners that `came` to meeting `number` are in a meeting of the same kind as this one.

        Raises:
            MeetingsDiffer: a learner is in another meeting; names both learners, and their meetings.
        """
        mine = self._said(number, self._rank)
        for rank in came:
            if self._kind[number % 2, rank] != self._kind[number % 2, self._rank]:
                first, second = sorted([(self._rank, mine), (rank, self._said(number, rank))])
                raise MeetingsDiffer(
                    f"rank {first[0]} is in {first[1]}, rank {second[0]} in {second[1]}: all learners must come to the "
                    "same meetings (consensus, meet, state_dict, load_state_dict, save, close), equally often. A "
                    "meeting inside `if rank == 0:` is one that the others miss: let all learners come, and print on "
                    "one."
                )

    @property
    def now(self) -> str:
        """This learner's meeting in words, such as `its 2nd consensus()`."""
        return _named(self._now, self._before[self._now])

    def say_long(self, missing: Sequence[int]) -> None:
        """Warn that the learners `missing` have not come to this learner's meeting for a long time."""
        log.warning(
            f"rank {self._rank} waits in {self.now} for learners {list(missing)}, who train on: do all learners come "
            "to this meeting? Inside `if rank == 0:` only one does."
        )

    def _said(self, number: int, rank: int) -> str:
        slot = number % 2
        return _named(KINDS[int(self._kind[slot, rank])], int(self._nth[slot, rank]))


def _named(kind: str, nth: int) -> str:
    return kind if kind in ("attach(resume=...)", "close()") else f"its {_ordinal(nth)} {kind}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True)
class SaveTables(View):
    """Tables of saves. A learner writes its own items before it comes to a meeting; the others read them there."""

    whole: Integers = table(L)  # Number of the newest save that a learner has whole; 0: none
    last: Integers = table(L)  # The highest number of a save, whole or not, that it knows
