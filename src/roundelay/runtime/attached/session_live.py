"""`live.json` of a session, for `roundelay status`.

Written every few seconds by the lowest learner that lives, between two steps of its own; where there are several hosts,
by the first one's process.

Legend: L learners.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.live import ENDED_WELL, INTERRUPTED, RUN_FAILED, HostSeen
from roundelay.core.slow import SLOWED_SECONDS, slow
from roundelay.runtime.attached.membership import CLOSED, ENDED, FAILED, MANNERS, Attendance, BetweenSteps
from roundelay.runtime.base import Glance, Lost, wall_clock
from roundelay.runtime.launch.world import LIVE
from roundelay.runtime.live import LiveFile
from roundelay.runtime.procs.cluster_rows import glanced_distance
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy

log = logging.getLogger("roundelay")

YET_TO_COME = "no process has taken its place yet"
LIVE_LOOK_SECONDS = 1.0
"""Interval between looks for learners that were lost, or have come."""


def made_folder(given: str) -> str:
    """Return the absolute path of the folder `given`, made if need be; empty if `given` is.

    Raises:
        UserError: the folder cannot be made.
    """
    if not given:
        return ""
    folder = Path(given).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{LIVE} is {given!r}: that folder cannot be made ({error.strerror}). Name another.") from error
    return str(folder)


@final
class SessionLive(BetweenSteps):
    """Writer of one session's `live.json`, in one of the processes that share its arena.

    Args:
        folder: the folder of the file.
        writes: returns True if this process is the one to write now.
        hosts: all hosts as they look from here; none where there is one.
    """

    def __init__(
        self,
        folder: str,
        arena: Arena,
        strategy: Strategy,
        writes: Callable[[], bool],
        hosts: Callable[[], Sequence[HostSeen]] = tuple,
    ) -> None:
        self._arena, self._strategy, self._writes, self._hosts = arena, strategy, writes, hosts
        learners = arena.layout.learners
        self._file = LiveFile(
            Path(folder), learners, label=f"{strategy.label}, {learners} learner{'s' * (learners > 1)}"
        )
        self._next_look, self._said = wall_clock(), set[int]()

    def look(self) -> None:
        now = wall_clock()
        if now >= self._next_look:
            self._next_look = now + LIVE_LOOK_SECONDS
            if self._writes():
                glance = self._glance()
                self._file.look(glance)
                for rank, sentence in slow(glance.spent, SLOWED_SECONDS).items():
                    if rank not in self._said:
                        self._said.add(rank)
                        log.warning("%s", sentence)

    def close(self, manner: int) -> None:
        others = self._arena.liveness.alive.any()
        doing = {CLOSED: ENDED_WELL, ENDED: INTERRUPTED, FAILED: RUN_FAILED}.get(manner, RUN_FAILED)
        if doing == ENDED_WELL or not others:
            self.end(doing)

    def end(self, doing: str, why: str = "") -> None:
        """Write that the session has ended: `doing`, one of the words of core/live.py, and `why`."""
        self._file.look(self._glance())
        self._file.end(doing, why)

    def _glance(self) -> Glance:
        arena, counts = self._arena, self._arena.counts
        there = tuple(rank for rank in range(arena.layout.learners) if self._is_there(rank))
        hosts = [replace(host, alive=host.alive or set(host.ranks) <= set(there)) for host in self._hosts()]
        steps, aged = arena.optimizer.steps.tolist(), int(counts.staleness.sum())
        return Glance(
            frames=0,
            loss=math.nan,
            staleness=float(counts.stale_sum.sum()) / aged if aged else math.nan,
            learners_alive=len(there),
            living=there,
            learner_frames=tuple(steps),
            lost=self._lost(there),
            consensus_distance=self._distance(there, hosts),
            hosts=tuple(hosts),
            steps=sum(steps),
            spent=counts.spent(),
        )

    def _distance(self, living: Sequence[int], hosts: Sequence[HostSeen]) -> float | None:
        """Return the consensus distance over some of the parameters; None unless all rows are here and each learner has
        its own."""
        if hosts or self._strategy.traits.synchronous or not living:
            return None
        holders = self._strategy.holders(tuple(living))
        return glanced_distance([self._arena.vector("row", rank) for rank in holders])

    def _lost(self, living: Sequence[int]) -> tuple[Lost, ...]:
        gone = [rank for rank in range(self._arena.layout.learners) if rank not in living]
        attendance = self._arena.view(Attendance)
        why = {rank: MANNERS[int(attendance.left[rank])] if attendance.met[rank] else YET_TO_COME for rank in gone}
        return tuple(Lost(rank, reason) for rank, reason in why.items())

    def _is_there(self, rank: int) -> bool:
        """Return True if learner `rank` lives, or has come to its end."""
        return bool(self._arena.liveness.alive[rank]) or self._arena.view(Attendance).left[rank] == CLOSED
