"""The record of a session: one learner's notes of it, for `roundelay replay`.

A record is a folder with a trace (runtime/trace.py) for each session of a script, in the order in which it attached.
Beside the events that every runtime notes there are hashes of each gradient and of the point at which it was taken, and
the minibatches that were drawn from passes that learners share. The rest is the user's loop, which is run again
(repeating.py).

Legend: P parameters.
"""

import hashlib
import os
import platform
import sys
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient
from roundelay.runtime.attached.membership import CLOSED, MANNERS
from roundelay.runtime.backend import NO_REMOTE, RemoteRows
from roundelay.runtime.launch.world import launched_group
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.procs.backend import ArenaBackend, LearnerWork
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.coordination.outbox import NotedRemote
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.vectors import ArenaAccess, Vectors
from roundelay.runtime.rows import Deferred, Row
from roundelay.runtime.trace import (
    NO_TRACE,
    TRACE_VERSION,
    Kind,
    Trace,
    TraceWriter,
    entries_of_host,
    note_gradient,
    write_entry,
)


class SessionRecord(ABC):  # noqa: B024  most sessions note nothing
    """The record of a session by one learner: one that is taken, one that is repeated, or none."""

    trace: Trace = NO_TRACE
    """Trace that takes the events of the learner's engine."""
    row_trace: Trace = NO_TRACE
    """Trace that takes the events of the learner's row."""
    on = False
    """True if notes are taken or repeated."""
    repeats = False
    """True if a record is repeated."""
    resumed: tuple[int, int] | None = None
    """In a repeated session the number of the save that it went on from (0: none), and the highest there was."""

    def state(
        self,
        place: LearnerPlace,
        vectors: LearnerVectors,
        optimizer: LocalOptimizer,
        tables: LearnerTables,
        update: Callable[[Gradient], bool],
        deferred: Deferred,
    ) -> LearnerState:
        """Return the learner's state, made with these arguments."""
        return LearnerState(place, vectors, optimizer, tables, update, deferred)

    def backend(self, access: ArenaAccess, vectors: Vectors, means: Means, work: LearnerWork) -> ArenaBackend:
        """Return the backend of the learner's engine, made with these arguments."""
        return ArenaBackend(access, vectors, means, work)

    def remote(self, remote: RemoteRows, row: Row) -> RemoteRows:
        """Return the access to other hosts' rows: `remote`, or one around it that repeats; `row` is the learner's."""
        return remote

    def note_gradient(self, point: Tensor, gradient: Tensor, weight: float) -> None:
        """Note that the loop has handed in `gradient` (P,), taken at `point` (P,)."""
        note_gradient(self.trace, point, gradient, weight)

    def draw(self, sampler: int, draw: Callable[[], int | None]) -> int | None:
        """Return the next minibatch of a pass that learners share, as `draw` would; None at its end."""
        return draw()

    def note_resumed(self, save: int, last: int) -> None:  # noqa: B027
        """Note that the session goes on from save number `save` (0: it begins anew), and that `last` is the highest
        number there is."""

    def leave(self, manner: int, me: LearnerState, centre: Tensor | None) -> None:  # noqa: B027
        """Note that the learner leaves in this manner of membership.py; `centre` (P,), if it answers for that."""


@final
class Unrecorded(SessionRecord):
    """The record of a session that is not recorded: it has no notes."""


@final
class Recording(SessionRecord):
    """The record of a session as it is taken.

    Args:
        folder: the folder of the trace.
        arena: the arena of the session's learners on this host.
        agreed: facts that all learners of the session agreed on.
        here: the learners of this host; None: there is only one host.
        processes: number of processes of each learner.

    Raises:
        UserError: the folder has a record already, or cannot be written.
    """

    on = True

    def __init__(
        self,
        folder: Path,
        rank: int,
        arena: Arena,
        agreed: Mapping[str, Any],
        here: Sequence[int] | None = None,
        processes: int = 1,
    ) -> None:
        self._folder, self._rank, self._asked = folder, rank, arena.requests.asked
        self._entries = entries_of_host(here)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = TraceWriter(folder, rank, new=True)
        except FileExistsError:
            raise UserError(
                f"rank {rank}: {folder} holds the record of a session already. Name another folder (record=...), or "
                "remove that one."
            ) from None
        except OSError as error:
            raise UserError(f"rank {rank}: {folder} cannot be written ({error.strerror}). Name another.") from error
        self.trace = self.row_trace = self._writer
        facts = {"learners": arena.layout.learners, "agreed": agreed, **surroundings(), **own_command()}
        self._write("learner", version=TRACE_VERSION, here=here, processes=processes, **facts)

    def _write(self, what: str, **facts: Any) -> None:
        write_entry(self._folder, what, self._entries, rank=self._rank, **facts)

    def remote(self, remote: RemoteRows, row: Row) -> RemoteRows:
        return remote if remote is NO_REMOTE else NotedRemote(remote, self._writer, row, self._asked)

    def draw(self, sampler: int, draw: Callable[[], int | None]) -> int | None:
        found = draw()
        self._writer.note(Kind.PIECE, sampler, -1 if found is None else found)
        return found

    def note_resumed(self, save: int, last: int) -> None:
        self._write("resumed", save=save, last=last)

    def leave(self, manner: int, me: LearnerState, centre: Tensor | None) -> None:
        found = row_digests(me, centre) if manner == CLOSED else {}
        self._write("left", manner=MANNERS[manner], steps=me.steps, digests=found)
        self._writer.close()


def surroundings() -> dict[str, Any]:
    """Return facts of this process by which the rounding of gradients, or a fault, may be explained."""
    return {
        "host": platform.node(),
        "process": os.getpid(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def own_command() -> dict[str, Any]:
    """Return the command of this process, the folder it runs in, whether it has the variables of `torchrun`, and the
    processes that `roundelay launch --group` has given each learner."""
    names = {"torchrun_names": "RANK" in os.environ, "group": launched_group()}
    return {"command": sys.orig_argv, "directory": os.getcwd(), **names}


def row_digests(me: LearnerState, centre: Tensor | None) -> dict[str, str]:
    """Return hashes of a learner's vectors, and of the centre, by name."""
    vectors = {"row": me.x, **me.memory, **({} if centre is None else {"centre": centre})}
    return {
        name: hashlib.blake2b(vector.cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        for name, vector in vectors.items()
    }
