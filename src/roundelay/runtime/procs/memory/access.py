"""One learner's access to the arena: its tables and all rows, under locks of its own."""

import os

from roundelay.runtime.learner_state import LearnerTables
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.device_rows import DeviceRows
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.trace import NO_TRACE, Trace


class ArenaAccess:
    """The arena of learner `rank`, opened anew: locks belong to an open file description.

    Args:
        path: of the arena's file.
        on_devices: rows that are not in the arena.
        trace: takes the notes of what this learner does to its row.

    Raises:
        OSError: it cannot be opened.
        UserError: it is no arena of this layout.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        rank: int,
        patience: Patience,
        on_devices: DeviceRows | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.rank, self.patience, self.trace = rank, patience, trace
        self.arena = arena = Arena(os.open(path, os.O_RDWR | os.O_CLOEXEC), layout, patience, on_devices)
        self.tables = LearnerTables(arena.optimizer.steps, arena.counts, arena.optimizer.scalars[rank])
        self.rows = arena.rows()
        """All rows by rank, then the centre, if there is one."""
        self.rows[rank].trace = trace
        for row in self.rows[: layout.learners]:
            row.memory = {name: arena.vector(name, row.rank) for name in layout.memory}
