"""One learner of a recorded run: its engine, on a backend that steps along the recorded events.

Legend: P parameters.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from roundelay.core.effects import Gather, Grad, GradMean, Mean, Mix, Reach
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import Backend
from roundelay.runtime.coding import arrived
from roundelay.runtime.deferred import Deferred
from roundelay.runtime.engine import Engine
from roundelay.runtime.learner_state import LearnerPlace, LearnerTables, LearnerVectors
from roundelay.runtime.replay.means import GroupMean
from roundelay.runtime.replay.recorded import BEFORE, Recorded, RecordedState
from roundelay.runtime.replay.stage import Stage, met_rows
from roundelay.runtime.rows import Row, adopt, reach
from roundelay.runtime.trace import Kind, TraceEvent, Use


class _Dead(Exception):
    """The recorded learner did nothing more."""


@final
class StagedEvents(Recorded):
    """The events of a learner on a stage."""

    def __init__(self, stage: Stage, rank: int) -> None:
        super().__init__(rank, stage.events[rank])
        self._stage = stage

    def wait(self, event: TraceEvent) -> None:
        rows, readers = self._stage.rows, self._stage.readers
        read, written = (met_rows(event, self.rank, use) for use in (Use.READ, Use.WRITTEN))

        def ready() -> bool:
            there = all(rows[rank].version == version for rank, version in read + written)
            return there and not any(readers[place] for place in written)

        self._stage.baton.until(self.rank, ready, f"its event {self.seen}, to {event}")

    def is_taken(self, event: TraceEvent) -> None:
        self._stage.done.events += 1
        self._stage.readers.subtract(met_rows(event, self.rank, Use.READ))

    def changed(self) -> None:
        self._stage.baton.changed()

    def over(self, wanted: str) -> _Dead:
        return _Dead()


class RecordedLearner(Backend):
    """Repeats what learner `rank` did: the backend of its engine."""

    def __init__(self, stage: Stage, rank: int) -> None:
        self._stage, self.rank, self._row = stage, rank, stage.rows[rank]
        self.recorded = recorded = StagedEvents(stage, rank)
        cluster, size = stage.cluster, stage.learner.parameters
        memory = {name: stage.vectors[name][rank] for name in cluster.memory}
        self._buffer, snapshot = (torch.empty(size, device=stage.rows_on.device) for _ in range(2))
        self._me = RecordedState(
            recorded,
            self._finish_deferred,
            LearnerPlace(rank, cluster.learners, cluster.seed, cluster.minibatches_a_round),
            LearnerVectors(self._row, self._buffer, snapshot, memory, stage.learner.shapes),
            cluster.optimizer,
            LearnerTables(stage.steps, stage.counts, stage.scalars[rank]),
            rate=cluster.rate_factor(memory, stage.scalars[rank]),
        )
        # The step does not take deferred exchanges from there: it waits for its turn before each.
        self.engine = Engine(self._me, self, Deferred(), trace=self.recorded)

    def _finish_deferred(self) -> None:
        self.engine.finish_deferred()

    def run(self) -> None:
        """Run to the end of the recorded events. A learner that died ends where they end."""
        stage, recorded = self._stage, self.recorded
        while recorded.next is not None:
            recorded.take(Kind.BEGIN)
            self._join()
            if not self._begins():
                continue
            self._me.begin_segment(stage.segment, stage.living, stage.cluster.strategy.traits.ages)
            try:
                self.engine.begin(stage.cluster.strategy.learn(self._me))
            except _Dead:
                self.engine.close()

    def _begins(self) -> bool:
        """Return False if it died before it did anything."""
        return self.recorded.next is not None and not self.recorded.next_is(Kind.BEGIN)

    def _join(self) -> None:
        """Take a dead learner's place, if that is what was recorded: from a neighbour's row, then from the centre."""
        stage = self._stage
        while self.recorded.next_is(Kind.JOIN):
            event = self.recorded.take(Kind.JOIN)
            memory: list[Sequence[Tensor] | Tensor] = [stage.vectors[name] for name in stage.cluster.memory]
            memory.append(torch.from_numpy(stage.scalars))
            from_centre = event.peer == self._me.centre
            pairs = [] if from_centre else [(vector[self.rank], vector[event.peer]) for vector in memory]
            adopt(self._row, stage.rows[event.peer], pairs)
            stage.baton.changed()

    # The engine's backend ---------------------------------------------------------------------------------------------

    def draw(self, group: tuple[int, ...]) -> Minibatch | None:
        index = self.recorded.look(Kind.DRAW).mine
        if index >= 0:
            return self._stage.segment.epoch.piece(index)
        return None if index == -1 else Minibatch(self._stage.segment.epoch.epoch, index, 0, 0)

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient:
        stage, batch = self._stage, effect.batch
        at, out = effect.at.vector, self._buffer
        statistics = stage.learner.gradient(at, batch, stage.segment.epoch, out, resident=stage.rows_on.resident)
        stage.done.minibatches += 1
        stage.done.progress.advance(1)
        return Gradient(self._buffer, effect.at.version, statistics, float(batch.frames))

    def settle(self, statistics: Statistics) -> None: ...

    def publish(self, effect: Mean | Mix) -> GroupMean | int:
        if isinstance(effect, Mean):
            vector = arrived(effect.codec, effect.vector, effect.weight, self._row.memory, effect.fragment)
            return self._stage.means.give(self.rank, effect.group, vector, effect.weight)
        return self._stage.means.publish(self.rank, arrived(effect.codec, effect.vector, 1.0, self._row.memory))

    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> GroupMean:
        vector = arrived(effect.codec, gradient.vector, gradient.weight, self._row.memory)
        return self._stage.means.give(self.rank, effect.group, vector, gradient.weight)

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor:
        if isinstance(effect, Mix):
            return self._here(self._stage.means.mix(self.rank, effect.weights, published))
        found: GroupMean = published
        what = f"the others of {effect.group} in a mean"
        self._stage.baton.until(self.rank, lambda: found.mean is not None or self._bereaved(), what)
        if found.mean is None:
            raise _Dead
        return self._here(found.mean)

    def _here(self, mean: Tensor) -> Tensor:
        """Return the mean on the device of the learner's row."""
        return mean.to(self._row.vector.device)

    def _bereaved(self) -> bool:
        """Return True if this learner did nothing more, after a death in its group. No command of a synchronous
        strategy outlives a death, and its last mean may come after its last event."""
        if self._stage.cluster.strategy.traits.synchronous:
            return False
        return self.recorded.next is None or self.recorded.next_is(*BEFORE)

    def admits(self, effect: Gather) -> bool:
        return bool(self.recorded.look(Kind.COME).value)

    def closes(self, effect: Gather) -> bool:
        return bool(self.recorded.look(Kind.MET).value)

    def closed(self, effect: Gather) -> None: ...

    def lives(self, peer: int) -> bool:
        """Return what was found."""
        return not self.recorded.next_is(Kind.GONE)

    def reach(self, effect: Reach) -> int | None:
        self.recorded.take_reach(effect)
        version = reach(self._row, self._stage.rows[effect.peer], effect)
        self._stage.baton.changed()
        return version

    def deferrable(self, peer: int) -> Row | None:
        return self._stage.rows[peer]
