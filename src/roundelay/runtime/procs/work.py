"""The work of a learner process: minibatches of a plan from the arena's queue, gradients by its module."""

import time

from torch import Tensor

from roundelay.core.effects import Grad, GradMean
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Gradient, Minibatch
from roundelay.learner.base import Learner, OnReady
from roundelay.runtime.base import Cluster
from roundelay.runtime.procs.backend import LearnerWork
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.memory.access import ArenaAccess


class PlannedWork(LearnerWork):
    """One learner's part in a segment of a plan.

    Args:
        buffer: for gradients, (P,); `resident`: it and snapshots are on the learner's device.
        meanwhile: called with the progress of gradients that are not part of a mean.
    """

    def __init__(
        self,
        access: ArenaAccess,
        cluster: Cluster,
        learner: Learner,
        buffer: Tensor,
        resident: bool,
        meanwhile: OnReady | None = None,
    ) -> None:
        self._arena, self._rank, self._patience = access.arena, access.rank, access.patience
        self._synchronous, self._learners = cluster.strategy.traits.synchronous, cluster.learners
        self._learner, self._buffer, self._device_copy, self._meanwhile = learner, buffer, resident, meanwhile
        self._straggler = cluster.straggler(access.rank)
        self._plan: EpochPlan

    def begin_segment(self, plan: EpochPlan) -> None:
        """Draw from `plan` from now on."""
        self._plan = plan

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient:
        started, batch, at = time.monotonic(), effect.batch, effect.at
        statistics = self._learner.gradient(
            at.vector, batch, self._plan, self._buffer, resident=self._device_copy, on_ready=on_ready or self._meanwhile
        )
        straggler = self._straggler
        if straggler.factor > 1 or straggler.seconds:
            time.sleep((straggler.factor - 1) * (time.monotonic() - started) + straggler.seconds)
        return Gradient(self._buffer, at.version, statistics, float(batch.frames))

    def draw(self, group: tuple[int, ...]) -> Minibatch | None:
        drawn: Minibatch | None = None

        def came() -> bool:
            """False: minibatches come from another host, and there is none at the moment."""
            nonlocal drawn
            drawn = self._next(group)
            return drawn is not queue.NONE_YET

        self._patience.until(came, "a minibatch from the host that hands them out")
        return drawn

    def _next(self, group: tuple[int, ...]) -> Minibatch | None:
        """queue.NONE_YET: ask again."""
        if len(group) > 1:
            return queue.draw_together(self._arena, self._rank, group, self._plan)
        if not self._synchronous:
            return queue.draw(self._arena, self._rank, self._plan)
        return self._next_round()

    def _next_round(self) -> Minibatch | None:
        arena, rounds = self._arena, self._arena.queue.rounds
        with arena.queue_lock:
            round_ = int(rounds[self._rank])
            if arena.queue.hold[0]:
                return queue.NONE_YET
            if round_ >= arena.queue.stop_round[0]:
                return None
            rounds[self._rank] += 1
            return self._plan.piece(round_ * self._learners + self._rank)
