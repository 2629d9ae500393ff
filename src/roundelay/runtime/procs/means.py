"""Allreduce in shared memory: each member sums one part of the vector for everybody.

A mean has a number per learner, 1, 2, 3, ... . To take part, a learner lays its vector out and raises `published` to
that number. When all of the group have published, each member sums its share of the chunks, in rank order, into the
group's `mean` vector and raises `reduced`; when all have, the result is complete.

Why one `mean` vector is enough: a member writes the next result only after all have published for it, and nobody
publishes before it has finished with the last reply (a reply is valid until the next Mean).

Legend: P parameters.
"""

import time
from collections.abc import Sequence

from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean_
from roundelay.core.flat import chunks
from roundelay.runtime.procs.arena import Arena
from roundelay.runtime.procs.patience import Patience


class MemberLost(Exception):
    """A member of the group died; the mean will never be complete."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"learner {rank} died")
        self.rank = rank


class Means:
    """One learner's part in the means it takes part in, one at a time."""

    SOURCES = ("gradient", "mail")

    def __init__(self, arena: Arena, rank: int, patience: Patience) -> None:
        self._arena, self._rank, self._patience = arena, rank, patience
        self._published, self._reduced = arena.table("published"), arena.table("reduced")
        self._alive, self._source = arena.table("alive"), arena.table("source")
        self._gradient, self._mail = arena.vector("gradient", rank), arena.vector("mail", rank)

    def publish(self, vector: Tensor, weight: float) -> None:
        """Lay out `vector` (P,). The gradient buffer is used where it lies: it is not written before the next
        gradient."""
        in_place = vector.data_ptr() == self._gradient.data_ptr()
        if not in_place:
            for part in chunks(vector.numel()):
                self._mail[part].copy_(vector[part])
        self._source[self._rank] = self.SOURCES.index("gradient" if in_place else "mail")
        self._arena.weights[self._rank] = weight
        self._published[self._rank] += (
            1  # last: the others act on it (x86 and the system calls of our locks keep order)
        )

    def collect(self, group: Sequence[int]) -> Tensor:
        """The mean over `group`, (P,), once all have published.

        Raises:
            MemberLost: somebody in the group died.
            TimeoutError: somebody did not come; says who.
        """
        arena, number = self._arena, int(self._published[self._rank])
        self._wait(group, "published", number)
        mean = arena.vector("mean", group[0])
        vectors = [arena.vector(self.SOURCES[self._source[r]], r) for r in group]
        weights = [float(arena.weights[r]) for r in group]
        for part in chunks(mean.numel(), list(group).index(self._rank), len(group)):
            weighted_mean_(mean[part], [v[part] for v in vectors], weights)
        self._reduced[self._rank] = number
        self._wait(group, "reduced", number)
        return mean

    def _wait(self, group: Sequence[int], stage: str, number: int) -> None:
        table, pause = self._arena.table(stage), 20e-6
        missing = [r for r in group if table[r] < number]
        if not missing:
            return
        with self._patience.waiting_for(f"mean {number} to be {stage} by learners {group}") as check:
            while missing := [r for r in missing if table[r] < number]:
                for rank in missing:
                    if not self._alive[rank] and table[rank] < number:
                        raise MemberLost(rank)
                try:
                    check()
                except TimeoutError as error:
                    raise TimeoutError(f"{error}; still missing: {missing}") from None
                time.sleep(pause)
                pause = min(pause * 2, 500e-6)
