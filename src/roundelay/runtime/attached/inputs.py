"""Do several learners train on the same minibatches? Their first inputs, as fingerprints that all can read.

L learners that draw the same minibatches do the work of one, L times: a data loader shuffled under the same seed
everywhere, without a sampler that shares the examples out. The fingerprints of the first few inputs say so.

No alarm where inputs repeat within a learner (a mask, or all examples in every step): then equal ones say nothing.
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.tables import Integers, L, View, table

FIRST = 4
"""Steps whose inputs are looked at."""


@dataclass(frozen=True)
class InputTables(View):
    """Each learner writes its own fingerprints, and publishes how many there are."""

    PUBLISHED = ("count",)

    fingerprints: Integers = table(L, FIRST)  # Of each learner's first inputs
    count: Integers = table(L)  # How many of them are known


class Inputs:
    """One learner's part in it."""

    def __init__(self, tables: InputTables, rank: int) -> None:
        self._seen, self._count, self._rank = tables.fingerprints, tables.count, rank

    @property
    def wanted(self) -> bool:
        """Is the fingerprint of the next step's input wanted?"""
        return bool(self._count[self._rank] < FIRST)

    def note(self, fingerprint: int) -> None:
        """Note that of the next step."""
        number = int(self._count[self._rank])
        self._seen[self._rank, number] = fingerprint
        publish(self._count, self._rank, number + 1)

    def same_as(self) -> int | None:
        """Return a lower rank that has the same minibatches as this learner; None: none is known so far."""
        if self.wanted or len(set(self._seen[self._rank].tolist())) < FIRST:
            return None
        same = (
            r for r in range(self._rank) if self._count[r] >= FIRST and (self._seen[r] == self._seen[self._rank]).all()
        )
        return next(same, None)

    @property
    def settled(self) -> bool:
        """Will `same_as` never know more than it does?"""
        return all(self._count[r] >= FIRST for r in range(self._rank + 1))
