"""Rows and memories of all learners, as the process that started those of this host holds them: for checkpoints, for
evaluation, and for learners that take the place of another.

Legend: P parameters, L learners, H holders.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from roundelay.runtime.base import Cluster, ClusterState
from roundelay.runtime.gathering import LEARNT, Gatherings
from roundelay.runtime.procs.coordination.outbox import is_here
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.rows import adopt, mend
from roundelay.runtime.trace import NO_TRACE, Kind, TraceWriter

GLANCED, PIECES = 16_384, 8


def glanced_distance(rows: Sequence[Tensor]) -> float:
    """Return an estimate of the consensus distance of rows (P,), from some of their parameters, in a fraction of a
    millisecond. Other processes may write the rows meanwhile, so the estimate is rough."""
    if len(rows) < 2:
        return 0.0
    parameters = len(rows[0])
    size = min(parameters, GLANCED // PIECES)
    starts = range(0, parameters - size + 1, max(1, (parameters - size) // (PIECES - 1)))
    some = torch.stack([torch.cat([row[i : i + size] for i in starts]).cpu() for row in rows])
    return float(some.sub_(some.mean(0)).square_().mean().sqrt())


@final
class ClusterRows:
    """Rows and memories of a cluster in an arena, under locks of the parent's own.

    Args:
        here: ranks of this host; rows of others are mirrors.
        initial: parameters (P,) that all rows begin with.
    """

    def __init__(self, cluster: Cluster, arena: Arena, here: Sequence[int], initial: Tensor) -> None:
        self._cluster, self._arena, self._here = cluster, arena, here
        self._memory, self._scalars = arena.layout.memory, arena.layout.sizes.scalars
        self._rows = arena.rows()
        leads = 0 in here  # then it evaluates and keeps the rows of all hosts, from the beginning on
        for row in self._rows:
            if leads or row.rank in here or row.rank == cluster.learners:  # pages never touched cost nothing
                row.vector.copy_(initial)

    def living(self) -> list[int]:
        """Return the ranks of the learners that take part, on all hosts."""
        return self._arena.liveness.living()

    def source(self, rank: int, living: Sequence[int]) -> int:
        """Return the rank nearest to `rank` among the holders of models in `living`: one of the same node, where nodes
        are runs of ranks."""
        return min(self._cluster.strategy.holders(tuple(living)), key=lambda other: abs(other - rank))

    def copy(self, rank: int) -> dict[str, Tensor]:
        """Return a copy of the state that a new learner on another host begins with, by name: the row of `rank`, or the
        centre if there is one, the memory of `rank` at the same moment, (P,) each, and its `scalars`, (n,)."""
        found = {}
        for source in dict.fromkeys((rank, self._cluster.learners if self._cluster.centre else rank)):
            row = self._rows[source]
            with row.lock:
                found["row"] = row.vector.clone()
                if source == rank:
                    found |= {name: self._arena.vector(name, rank).clone() for name in self._memory}
                    found["scalars"] = torch.from_numpy(self._arena.optimizer.scalars[rank].copy())
                    if self._arena.layout.weighed:
                        found["scalars"][-1] = 0  # as in `adopt`
        return found

    def hand_over(self, rank: int, source: int, trace: Path | None, number: int) -> None:
        """Give the learner that takes the place of `rank` the row and the memory of `source`, or the centre's row.

        Args:
            trace: folder of the trace; None: the run is not recorded.
            number: number, in the trace, of the orders that the new learner begins with.
        """
        row, writer = self._rows[rank], TraceWriter(trace, rank) if trace else None
        notes = writer or NO_TRACE
        notes.note(Kind.BEGIN, mine=number)
        memory = [(self._arena.vector(n, rank), self._arena.vector(n, source)) for n in self._memory]
        scalars = torch.from_numpy(self._arena.optimizer.scalars)
        memory.append((scalars[rank], scalars[source]))
        if source != rank:
            adopt(row, self._rows[source], memory, notes)
            if self._cluster.strategy.traits.synchronous:  # who mixes with whom follows from them
                self._arena.optimizer.steps[rank] = self._arena.optimizer.steps[source]
        if self._cluster.centre and is_here(
            self._arena, self._cluster.learners, self._here
        ):  # else it fetches the centre itself
            adopt(row, self._rows[-1], trace=notes)
        if writer:
            writer.close()
        self._arena.row_versions.in_flight[rank] = 0  # an exchange under way was another's

    def mend(self) -> tuple[int, ...]:
        """Mend rows of this host, and the centre, that a writer has left half written; return their ranks."""
        return mend(row for row in self._rows if row.rank in self._here or row.rank == self._cluster.learners)

    def glanced_distance(self) -> float:
        """Return the consensus distance of the living holders' rows, estimated from a few elements."""
        living = tuple(self.living())
        holders = self._cluster.strategy.holders(living) if living else ()
        return glanced_distance([self._rows[rank].vector for rank in holders])

    def state(self) -> ClusterState:
        """Return a copy of all learners' state; for a dead learner, that which its replacement would begin with."""
        living, learners = self.living(), range(self._cluster.learners)
        source = [rank if rank in living else self.source(rank, living) for rank in learners]
        names = ("row", *self._memory)
        vectors = {name: self._arena.stacked(name, source) for name in names}
        if self._cluster.centre:
            vectors["centre"] = self.centre()[None]
            beside = self._rows[-1].memory
            named = self._cluster.centre_vectors.items()
            vectors |= {name: beside[own].to("cpu", copy=True)[None] for own, name in named}
            for rank in set(learners) - set(living):
                vectors["row"][rank] = vectors["centre"][0]
        if self._scalars:
            vectors["scalars"] = torch.from_numpy(self._arena.optimizer.scalars[source])
            if self._arena.layout.weighed:
                vectors["scalars"][[rank not in living for rank in learners], -1] = 0
        if (learnt := Gatherings(self._arena.gatherings).learnt()) is not None:
            vectors[LEARNT] = torch.from_numpy(learnt)
        versions, steps = self._arena.row_versions.versions, self._arena.optimizer.steps
        if self._cluster.strategy.traits.synchronous:  # who mixes with whom follows from them
            steps = steps[source]
        return ClusterState(vectors=vectors, integers={"steps": steps.tolist(), "versions": versions.tolist()})

    def load(self, state: ClusterState) -> None:
        """Overwrite rows, memories and counters in the arena by `state`."""
        for name in ("row", *self._memory):
            for rank in range(self._cluster.learners):
                self._arena.vector(name, rank).copy_(state.vectors[name][rank])
        if self._cluster.centre:
            self._rows[-1].vector.copy_(state.vectors["centre"][0])
            for own, name in self._cluster.centre_vectors.items():
                self._rows[-1].memory[own].copy_(state.vectors[name][0])
        if self._scalars:
            self._arena.optimizer.scalars[:] = state.vectors["scalars"].numpy()
        learnt = state.vectors.get(LEARNT)
        Gatherings(self._arena.gatherings).recall(None if learnt is None else learnt.numpy())
        self._arena.optimizer.steps[:] = state.integers["steps"]
        self._arena.row_versions.versions[:] = state.integers["versions"]

    def held(self) -> Tensor:
        """Return copies of the rows of the living holders, (H, P)."""
        return self._arena.stacked("row", self._cluster.strategy.holders(tuple(self.living())))

    def centre(self) -> Tensor:
        """Return a copy of the centre, (P,)."""
        return self._rows[-1].vector.to("cpu", copy=True)
