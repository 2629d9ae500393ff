"""State shared by the learners of a repeated command: rows, versions, counters, and reads that are still to come.

Legend: P parameters, L learners.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from roundelay.core.progress import Progress
from roundelay.learner.base import Learner
from roundelay.runtime.base import Cluster, ClusterState, Counts, SegmentPlan
from roundelay.runtime.replay.baton import Baton
from roundelay.runtime.replay.means import RecordedMeans
from roundelay.runtime.rows import NoLock, Row, others_known
from roundelay.runtime.trace import TraceEvent, Use


def met_rows(event: TraceEvent, rank: int, *uses: Use) -> list[tuple[int, int]]:
    """Return (row, version) that an event of learner `rank` has met, of those that it makes such a use of."""
    mine, theirs = event.access
    found = ((mine, (rank, event.mine)), (theirs, (event.peer, event.theirs)))
    return [place for use, place in found if use in uses]


@dataclass
class Done:
    """Repeated so far."""

    progress: Progress
    events: int = 0
    minibatches: int = 0


@dataclass(frozen=True)
class RowDevice:
    """Device on which rows are updated; `resident` if learners compute there, and so need no copies."""

    device: torch.device
    resident: bool


class Stage:
    """State of the command `entry`, which began with `state`, changes it, and has these events by rank. Rows are
    updated at `rows_on`, where they were: every device rounds in its own way."""

    def __init__(
        self,
        cluster: Cluster,
        learner: Learner,
        entry: Mapping[str, Any],
        state: ClusterState,
        rows_on: RowDevice,
        events: Sequence[Sequence[TraceEvent]],
        done: Done,
    ) -> None:
        self.cluster, self.learner, self.state, self.done = cluster, learner, state, done
        self.rows_on = rows_on
        self.vectors = {
            name: [one.to(rows_on.device) for one in value]
            for name, value in state.vectors.items()
            if name != "scalars"
        }
        """(P,) each, by name and row; in the host's memory they are the state's own."""
        self.segment = SegmentPlan.from_json(entry)
        self.living = tuple(entry["living"])
        self.versions = np.array(state.integers["versions"], np.int64)
        self.steps = np.array(state.integers["steps"], np.int64)
        none = torch.zeros(cluster.learners, cluster.scalars, dtype=torch.float64)
        self.scalars = state.vectors.get("scalars", none).numpy()
        self.counts = Counts.zeros(cluster.learners, cluster.centre)
        vectors = [*self.vectors["row"], *self.vectors.get("centre", ())]
        self.rows = [Row(rank, vector, self.versions, NoLock()) for rank, vector in enumerate(vectors)]
        for row in self.rows[: cluster.learners]:
            row.memory = {name: self.vectors[name][row.rank] for name in cluster.memory}
            if cluster.strategy.weighed:
                row.mass, row.others = self.scalars[row.rank, -1:], np.zeros(others_known(cluster.learners))
        if cluster.centre:
            self.rows[-1].memory = {own: self.vectors[name][0] for own, name in cluster.centre_vectors.items()}
        self.events = [deque(some) for some in events]
        self.baton = Baton()
        self.means = RecordedMeans(self.baton, cluster.learners)
        self.readers: Counter[tuple[int, int]] = Counter()
        """Learners that have still to read a version, by (row, version), before it may be overwritten."""
        for rank, some in enumerate(events):
            for event in some:
                self.readers.update(met_rows(event, rank, Use.READ))

    def end(self) -> None:
        """Write vectors that were moved, and the counters, back into the state."""
        for name, moved in self.vectors.items():
            for home, here in zip(self.state.vectors[name], moved, strict=True):
                if here.device != home.device:
                    home.copy_(here)
        self.state.integers["versions"][:] = self.versions.tolist()
        self.state.integers["steps"][:] = self.steps.tolist()
