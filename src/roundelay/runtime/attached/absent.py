"""Learners that are dead when a segment begins, where those that wait for each other go on without them."""

from collections.abc import Sequence

import numpy as np

from roundelay.runtime.attached.membership import DIED, Attendance
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish


def forget_absent(arena: Arena) -> None:
    """Forget all that an absent learner has done in the last segment, before a segment begins and while no learner
    trains. Learners that are present forget theirs by themselves. What those did that are let in is forgotten when they
    are."""
    _forget(arena, np.flatnonzero(arena.view(Attendance).present == 0).tolist())


def let_in(arena: Arena, ranks: Sequence[int]) -> None:
    """Let learners that have come back begin with the next step of the others, who are in a meeting."""
    attendance, here = arena.view(Attendance), list(ranks)
    _forget(arena, here)
    attendance.left[here] = DIED
    publish(attendance.entering, here, 1)
    publish(attendance.let_in, here, attendance.back[here])
    arena.liveness.mark(here, True)  # last: from here on the others count on them


def _forget(arena: Arena, ranks: Sequence[int]) -> None:
    for table in (arena.sequences.sent_seq, arena.sequences.acked_seq, arena.queue.rounds, arena.view(VoteTables).cast):
        table[list(ranks)] = 0
