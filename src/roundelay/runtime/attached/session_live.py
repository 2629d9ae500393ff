"""`live.json` of a session, for `roundelay status`.

Written every few seconds by the lowest learner that lives, between two steps of its own; where there are several hosts,
by the first one's process.

Legend: L learners.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.core.live import (
    ENDED_WELL,
    INTERRUPTED,
    RUN_FAILED,
    TRAINING,
    HostSeen,
    Live,
    LostSeen,
    whoami,
    write_live,
)
from roundelay.runtime.attached.between_steps import BetweenSteps
from roundelay.runtime.attached.membership import CLOSED, ENDED, FAILED, MANNERS, Attendance
from roundelay.runtime.clocks import unix_clock
from roundelay.runtime.launch.world import LIVE
from roundelay.runtime.procs.cluster_rows import glanced_distance
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy

WRITTEN_SECONDS = 5.0
"""Interval at which it is written while nothing but numbers change."""
YET_TO_COME = "nobody has taken its place yet"
LIVE_LOOK_SECONDS = 1.0
"""Interval at which it is looked whether somebody was lost, or has come."""


def made_folder(given: str) -> str:
    """The whole path of that folder, made if need be; empty for none.

    Raises:
        UserError: it cannot be made.
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
    """Of one session, in one process of those that share its arena.

    Args:
        folder: of the file.
        writes: asked now and then; is it for this process to write?
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
        self._folder, self._arena, self._strategy = Path(folder), arena, strategy
        self._writes, self._hosts = writes, hosts
        learners = arena.layout.learners
        self._label = f"{strategy.label}, {learners} learner{'s' * (learners > 1)}"
        now = time.monotonic()
        self._next_look, self._written = now, now - WRITTEN_SECONDS
        self._told: object = None  # who lives, as was written last
        self._before: tuple[float, NDArray[np.int64]] | None = None  # when it was written, and steps (L,)
        self._stepped = np.full(learners, now)  # when each has taken a step last, as far as was seen
        self._steps = np.zeros(learners, np.int64)

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LIVE_LOOK_SECONDS
        steps = self._arena.optimizer.steps.copy()
        self._stepped[steps != self._steps] = now
        self._steps = steps
        hosts = list(self._hosts())
        told = self._arena.liveness.alive.tolist(), [host.alive for host in hosts]
        if self._writes() and (told != self._told or now - self._written >= WRITTEN_SECONDS):
            self._told = told
            self._write(now, TRAINING, hosts)

    def close(self, manner: int) -> None:
        others = self._arena.liveness.alive.any()
        doing = {CLOSED: ENDED_WELL, ENDED: INTERRUPTED, FAILED: RUN_FAILED}.get(manner, RUN_FAILED)
        if doing == ENDED_WELL or not others:
            self.end(doing)

    def end(self, doing: str, why: str = "") -> None:
        """The session has ended, in one of the words of core/live.py."""
        self._steps = self._arena.optimizer.steps.copy()
        self._write(time.monotonic(), doing, list(self._hosts()), why)

    def _write(self, now: float, doing: str, hosts: list[HostSeen], why: str = "") -> None:
        speed = np.zeros(len(self._steps))
        if self._before is not None:
            then, before = self._before
            speed = (self._steps - before) / max(now - then, 1e-9)
        self._before, self._written = (now, self._steps), now
        arena, counts = self._arena, self._arena.counts
        there = [rank for rank in range(arena.layout.learners) if self._is_there(rank)]
        hosts = [replace(host, alive=host.alive or set(host.ranks) <= set(there)) for host in hosts]
        aged = int(counts.staleness.sum())
        live = Live(
            written_at=unix_clock(),
            **whoami(),
            doing=doing,
            why=why,
            learners=arena.layout.learners,
            staleness=float(counts.stale_sum.sum()) / aged if aged else None,
            frames_per_second=round(float(speed.sum()), 3),
            consensus_distance=self._distance(there, hosts),
            living=there,
            learner_speed=[round(float(one), 3) for one in speed],
            learner_idle_s=[round(float(one), 3) for one in now - self._stepped],
            lost=self._lost(there),
            hosts=hosts,
            label=self._label,
            steps=int(self._steps.sum()),
        )
        write_live(self._folder, live)

    def _distance(self, living: Sequence[int], hosts: Sequence[HostSeen]) -> float | None:
        """Consensus distance over some of the parameters, where all rows are here and each learner has its own."""
        if hosts or self._strategy.traits.synchronous or not living:
            return None
        holders = self._strategy.holders(tuple(living))
        return glanced_distance([self._arena.vector("row", rank) for rank in holders])

    def _lost(self, living: Sequence[int]) -> list[LostSeen]:
        gone = [rank for rank in range(self._arena.layout.learners) if rank not in living]
        attendance = self._arena.view(Attendance)
        why = {rank: MANNERS[int(attendance.left[rank])] if attendance.met[rank] else YET_TO_COME for rank in gone}
        return [LostSeen(rank=rank, reason=reason) for rank, reason in why.items()]

    def _is_there(self, rank: int) -> bool:
        """Does it live, or has it come to its end?"""
        return bool(self._arena.liveness.alive[rank]) or self._arena.view(Attendance).left[rank] == CLOSED
