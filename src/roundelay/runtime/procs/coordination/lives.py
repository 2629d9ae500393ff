"""Lives of learners: how one is found dead, and how others hear of it.

All processes of a host act on one table of its arena, `alive` (`Liveness`, views.py): a learner is dead once it says
so. The first that sees a death writes it there, and gives back the dead one's minibatches:

    it was started by      a death is seen by                              because
    `roundelay train`      its parent (procs/processes.py)                 its process has ended
    a launcher             a learner that waits for others, or the         its process held a lock, which is free
                           process that speaks to other hosts (`look`)
    another host           the host that leads (hosts/control/membership)  the link to that host is closed or silent

A learner that leaves says so itself. A host that works and gets nothing done counts as lost, too (`HostProgress`,
hosts/control/coordinator.py). Why a host is taken for lost is in the run's records (`HostGone`), or on standard error:
of the host that leads a session, and of the host whose link to it is gone.

Between hosts, each host tells the one that leads which of its learners live: in `HostState`, a few times a second, or
with the columns of attached learners. The one that leads tells all others of all learners: in `Living`, under a growing
number, and with those columns. A host that hears that a learner elsewhere is dead writes it into its own arena; so
exchanges and means, which read that table alone, do without it. A host that hears from the leader no more takes all
attached learners elsewhere for dead, unless another leads (hosts/control/succession.py), and stops those of a run.

A learner comes to life again where its host lets it: in the place of a dead one, by its parent; by itself, between two
meetings; or by those that wait for it from then on, at a meeting (runtime/attached/handover.py).
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import final

from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.locks import FLOCK, ByteLock, Patience

DEATH_CHECK_SECONDS = 0.1
"""Interval at which a process that waits looks whether learners live."""


def life_lock(arena: Arena, rank: int, patience: Patience) -> ByteLock:
    """Return the lock that learner `rank` holds for as long as it lives, however it dies.

    For a learner of another host, the process that speaks to that host holds it, and says by `alive` alone whether the
    learner lives. An open file description, and with it its locks, is inherited by forked children (those of a data
    loader, say), which may outlive the learner. So children close it at once."""
    return ByteLock(arena.descriptor, _life_byte(arena, rank), f"the life of learner {rank}", patience)


def breathes(arena: Arena, rank: int) -> bool:
    """Return True if another process than this holds the life lock of learner `rank`."""
    question = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _life_byte(arena, rank), 1, 0)
    answer = fcntl.fcntl(arena.descriptor, fcntl.F_OFD_GETLK, question)
    return int(struct.unpack(FLOCK, answer)[0]) != fcntl.F_UNLCK


def _life_byte(arena: Arena, rank: int) -> int:
    return arena.layout.rows + 1 + rank  # behind the locks of rows and queue


@final
class DeathWatch:
    """A watch over learners that have no parent: a learner whose life lock is free is dead.

    Args:
        give_back: called once for a dead rank, under the queue lock, so that others draw its minibatches.
    """

    def __init__(self, arena: Arena, give_back: Callable[[int], None]) -> None:
        self._arena, self._give_back, self._next_look = arena, give_back, 0.0

    def look(self, ranks: Sequence[int], closely: bool = False) -> None:
        """Mark those of `ranks` that have died; unless `closely`, look no more often than every DEATH_CHECK_SECONDS."""
        now, alive = time.monotonic(), self._arena.liveness.alive
        if now < self._next_look and not closely:
            return
        self._next_look = now + DEATH_CHECK_SECONDS
        for rank in ranks:
            if alive[rank] and not breathes(self._arena, rank):
                with self._arena.queue_lock:
                    if alive[rank]:
                        self._arena.liveness.mark([rank], False)
                        self._give_back(rank)
