"""The simulator: any number of learners in one process, on a virtual clock, exactly repeatable.

Gradients are real (whatever the task's learner computes); only time is made up. Each learner's coroutine runs until it
awaits; the effect is performed, and the reply is scheduled at the time it would be there.

Legend: P parameters, L learners.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean_
from roundelay.core.effects import Begin, Draw, Effect, Exchange, Fetch, Grad, GradMean, Handle, Mean, Mix, Wait
from roundelay.core.flat import chunks
from roundelay.core.state import Gradient, Minibatch
from roundelay.runtime.base import (
    Cluster,
    ClusterState,
    Counts,
    Glance,
    Outcome,
    Runtime,
    SegmentPlan,
    Watch,
    keep_going,
    wall_clock,
)
from roundelay.runtime.learner_state import LearnerState, NoLock, Row, exchange, fetch
from roundelay.runtime.sim.clock import Clock
from roundelay.runtime.sim.cost import CostModel

Reply = Callable[[Any], None]


@dataclass
class _Gathering:
    """An allreduce some of whose participants have arrived."""

    vectors: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)


@dataclass
class _Letter:
    """A vector laid out for a Mix, and who has still to read it."""

    vector: Tensor
    readers: set[int]


@dataclass
class _GroupDraw:
    """The minibatches of a group's next draw that its members have not fetched yet; no `batches`: the end."""

    batches: dict[int, Minibatch]
    waiting: set[int]


class SimRuntime(Runtime):
    """Runs a cluster on a virtual clock."""

    def __init__(self, cluster: Cluster, cost: CostModel | None = None) -> None:
        cluster.strategy.check(cluster.learners)
        self.cluster, self.cost = cluster, cost or CostModel()
        self._learner = cluster.task.build()
        self.parameters = size = self._learner.parameters
        learners = cluster.learners
        names = ("row", *cluster.memory)
        self._vectors = {name: torch.zeros(learners, size) for name in names}
        self._vectors["row"][:] = self._learner.initial()
        self._scalars = np.zeros((learners, len(cluster.optimizer.scalars)))
        if cluster.centre:
            self._vectors["centre"] = self._learner.initial()[None].clone()
        self._versions, self._steps = np.zeros(learners + cluster.centre, np.int64), np.zeros(learners, np.int64)
        self._counts = Counts.zeros(learners, cluster.centre)
        vectors = [*self._vectors["row"], *self._vectors.get("centre", ())]
        self._rows = [Row(rank, vector, self._versions, NoLock()) for rank, vector in enumerate(vectors)]
        self._me = [self._make_state(rank) for rank in range(learners)]
        self._clock = Clock()
        self._busy_until = [0] * len(self._rows)
        self._gatherings: dict[tuple[int, ...], _Gathering] = {}
        self._letters: dict[tuple[int, int], _Letter] = {}
        self._mixes: dict[int, tuple[int, Mix, Reply]] = {}  # by rank: number, effect, reply of those that wait
        self._mixed = [0] * learners
        self._group_draws: dict[tuple[int, ...], _GroupDraw] = {}
        self._unfinished = 0

    def _make_state(self, rank: int) -> LearnerState:
        memory = {name: self._vectors[name][rank] for name in self.cluster.memory}
        return LearnerState(
            rank, self.cluster.learners, self.cluster.seed, self._rows[rank], torch.zeros(self.parameters),
            torch.zeros(self.parameters), self.cluster.optimizer, memory, self._steps, self._counts,
            self._scalars[rank],
        )  # fmt: skip

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started, virtual = wall_clock(), self._clock.now_ns
        self._counts.clear()
        self._plan, self._stop_round = plan, plan.end_round
        self._queue = plan.first
        self._round = [plan.first_round] * self.cluster.learners
        self._unfinished = self.cluster.learners
        self._letters, self._mixes, self._mixed = {}, {}, [0] * self.cluster.learners
        self._group_draws = {}
        for me in self._me:
            me.begin_segment(plan, me.everyone, self.cluster.strategy.traits.ages)
            role = self.cluster.strategy.learn(me)
            self._clock.at(self._clock.now_ns, self._resume(me, role, None))
        next_look = started
        while self._clock.tick():
            if wall_clock() >= next_look:
                next_look = wall_clock() + 0.2
                if watch(self._glance()):
                    self._stop()
        if self._unfinished:
            waiting = {group: sorted(set(group) - set(g.vectors)) for group, g in self._gatherings.items() if g.vectors}
            mixes = {rank: number for rank, (number, _, _) in self._mixes.items()}
            raise RuntimeError(
                f"simulation stands still; allreduce groups and who is missing in them: {waiting}; "
                f"learners that wait for their neighbours in mix number: {mixes}"
            )
        synchronous = self.cluster.strategy.traits.synchronous
        end = max(self._round) * self.cluster.learners if synchronous else self._queue
        return Outcome(
            counts=self._counts.copy(),
            next=end,
            finished=end >= plan.end_round * self.cluster.learners,
            wall_seconds=wall_clock() - started,
            virtual_seconds=(self._clock.now_ns - virtual) / 1e9,
        )

    def _glance(self) -> Glance:
        statistics = self._counts.statistics
        staleness = self._counts.stale_sum.sum() / max(1, self._counts.steps.sum())
        return Glance(
            statistics.frames, statistics.mean_loss, float(staleness), self.cluster.learners, self._clock.now_ns / 1e9
        )

    def _stop(self) -> None:
        """End after the round the furthest learner has begun, or its block: synchronous learners must all stop at
        one."""
        learners = self.cluster.learners
        reached = max(self._round) if self.cluster.strategy.traits.synchronous else -(-self._queue // learners)
        self._stop_round = min(self._stop_round, self.cluster.stop_round(reached))

    def _resume(self, me: LearnerState, role: Coroutine[Effect[Any], Any, None], reply: Any) -> Callable[[], None]:
        def go() -> None:
            try:
                effect = role.send(reply)
            except StopIteration:
                self._unfinished -= 1
                return
            self._perform(me, effect, lambda answer: self._resume(me, role, answer)())

        return go

    # Effects ----------------------------------------------------------------------------------------------------------

    def _perform(self, me: LearnerState, effect: Effect[Any], reply: Reply) -> None:
        """Do what `effect` asks; call `reply` at the virtual time its answer is there."""
        match effect:
            case Draw():
                reply(self._draw(me, effect.group))
            case Grad():
                self._gradient(me, effect, reply)
            case GradMean():
                self._gradient_mean(me, effect, reply)
            case Mean():
                self._gather(me.rank, effect.group, effect.vector, effect.weight, reply)
            case Mix():
                self._mix(me, effect, reply)
            case Exchange():
                self._exchange(me, effect, reply)
            case Fetch():
                self._fetch(me, effect, reply)
            case Begin():
                self._begin(me, effect, reply)
            case Wait():
                if effect.handle.done:
                    reply(effect.handle.reply)
                else:
                    effect.handle.pending = reply
            case _:
                raise TypeError(f"{type(effect).__name__} is not an effect of this runtime")

    def _later(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_ns + delay_ns, action)

    def _draw(self, me: LearnerState, group: tuple[int, ...]) -> Minibatch | None:
        batch = self._draw_together(me, group) if len(group) > 1 else self._draw_alone(me)
        if batch is not None:
            me.drawn(batch)
        return batch

    def _draw_alone(self, me: LearnerState) -> Minibatch | None:
        if not self.cluster.strategy.traits.synchronous:
            return self._next_in_queue()
        round_ = self._round[me.rank]
        if round_ >= self._stop_round:
            return None
        self._round[me.rank] += 1
        return self._plan.epoch.piece(round_ * self.cluster.learners + me.rank)

    def _next_in_queue(self) -> Minibatch | None:
        while self._queue < self._stop_round * self.cluster.learners:
            batch = self._plan.epoch.piece(self._queue)
            self._queue += 1
            if batch.frames:
                return batch
        return None

    def _draw_together(self, me: LearnerState, group: tuple[int, ...]) -> Minibatch | None:
        """Whoever of the group comes first draws for all of it."""
        drawn = self._group_draws.get(group)
        if drawn is None or not drawn.waiting:
            found = [batch for batch in (self._next_in_queue() for _ in group) if batch is not None]
            empty = [Minibatch(self._plan.epoch.epoch, -1, 0, 0)] * (len(group) - len(found))
            batches = dict(zip(group, [*found, *empty], strict=True)) if found else {}
            drawn = self._group_draws[group] = _GroupDraw(batches, set(group))
        drawn.waiting.remove(me.rank)
        return drawn.batches.get(me.rank)

    def _gradient(self, me: LearnerState, effect: Grad | GradMean, reply: Reply) -> None:
        out = me.gradient_buffer
        statistics = self._learner.gradient(effect.at.vector, effect.batch, self._plan.epoch, out)
        me.count(statistics)
        straggler = self.cluster.straggler(me.rank)
        cost = self.cost.gradient_ns(straggler, effect.batch.frames, self.cluster.seed, me.steps)
        gradient = Gradient(out, effect.at.version, statistics)
        self._later(cost, lambda: reply(gradient))

    def _gradient_mean(self, me: LearnerState, effect: GradMean, reply: Reply) -> None:
        def average(own: Gradient) -> None:
            weight = float(own.statistics.frames)
            self._gather(
                me.rank, effect.group, own.vector, weight,
                lambda mean: reply(Gradient(mean, own.version, own.statistics)),
            )  # fmt: skip

        self._gradient(me, effect, average)

    def _gather(self, rank: int, group: tuple[int, ...], vector: Tensor, weight: float, reply: Reply) -> None:
        gathering = self._gatherings.setdefault(group, _Gathering())
        gathering.vectors[rank] = vector.clone()  # its value now, as the effect promises
        gathering.weights[rank], gathering.replies[rank] = weight, reply
        if len(gathering.vectors) < len(group):
            return
        self._gatherings[group] = _Gathering()
        mean = torch.empty(self.parameters)
        weights = [gathering.weights[r] for r in group]
        for part in chunks(self.parameters):
            weighted_mean_(mean[part], [gathering.vectors[r][part] for r in group], weights)
        for r in group:
            self._later(self.cost.allreduce_ns(len(group)), _answer(gathering.replies[r], mean))

    def _exchange(self, me: LearnerState, effect: Exchange, reply: Reply) -> None:
        """Both rows are busy from the moment both are free; the rule meets the rows as they are when it ends."""
        pair = (me.rank, effect.peer)
        end = max(self._clock.now_ns, *(self._busy_until[r] for r in pair)) + self.cost.exchange_ns()
        for r in pair:
            self._busy_until[r] = end

        def apply() -> None:
            version = exchange(self._rows[me.rank], self._rows[effect.peer], effect)
            me.count_exchange(effect, version)
            reply(version)

        self._clock.at(end, apply)

    def _fetch(self, me: LearnerState, effect: Fetch, reply: Reply) -> None:
        end = max(self._clock.now_ns, self._busy_until[effect.peer]) + self.cost.exchange_ns()
        self._busy_until[effect.peer] = end
        self._clock.at(end, lambda: reply(fetch(me.row, self._rows[effect.peer], effect.into)))

    def _mix(self, me: LearnerState, effect: Mix, reply: Reply) -> None:
        """The reply is there one exchange per neighbour after the last of them has laid its vector out."""
        number = self._mixed[me.rank] = self._mixed[me.rank] + 1
        mine = {me.rank} & {rank for rank, _ in effect.weights}
        self._letters[me.rank, number] = _Letter(effect.vector.clone(), {*effect.readers, *mine})
        self._mixes[me.rank] = (number, effect, reply)
        for rank in (me.rank, *effect.readers):
            self._try_mix(rank)

    def _try_mix(self, rank: int) -> None:
        number, effect, reply = self._mixes.get(rank, (0, None, None))
        if effect is None or reply is None or any((other, number) not in self._letters for other, _ in effect.weights):
            return
        del self._mixes[rank]
        letters = [self._letters[other, number] for other, _ in effect.weights]
        weights = [weight for _, weight in effect.weights]
        mixed = torch.empty(self.parameters)
        for part in chunks(self.parameters):
            weighted_mean_(mixed[part], [letter.vector[part] for letter in letters], weights)
        for (other, _), letter in zip(effect.weights, letters, strict=True):
            letter.readers.discard(rank)
            if not letter.readers:
                del self._letters[other, number]
        neighbours = sum(other != rank for other, _ in effect.weights)
        self._later(neighbours * self.cost.exchange_ns(), _answer(reply, mixed))

    def _begin(self, me: LearnerState, effect: Begin[Any], reply: Reply) -> None:
        handle: Handle[Any] = Handle()

        def finish(answer: Any) -> None:
            handle.finish(answer)
            if handle.pending is not None:
                handle.pending(answer)

        self._perform(me, effect.effect, finish)
        reply(handle)

    # State ------------------------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        vectors = {name: value.clone() for name, value in self._vectors.items()}
        if self._scalars.size:
            vectors["scalars"] = torch.from_numpy(self._scalars.copy())
        integers = {"steps": self._steps.tolist(), "versions": self._versions.tolist()}
        return ClusterState(vectors, integers, self._clock.now_ns)

    def load(self, state: ClusterState) -> None:
        for name, value in self._vectors.items():
            value.copy_(state.vectors[name])
        if self._scalars.size:
            self._scalars[:] = state.vectors["scalars"].numpy()
        self._steps[:], self._versions[:] = state.integers["steps"], state.integers["versions"]
        self._clock = Clock(state.virtual_ns)
        self._busy_until = [state.virtual_ns] * len(self._rows)

    def rows(self) -> Tensor:
        holders = self.cluster.strategy.holders(tuple(range(self.cluster.learners)))
        rows = self._vectors["row"]
        return rows if len(holders) == len(rows) else rows[list(holders)]

    def centre(self) -> Tensor:
        return self._vectors["centre"][0]

    def close(self) -> None:
        """Nothing is held that Python does not free."""


def _answer(reply: Reply, value: Any) -> Callable[[], None]:
    return lambda: reply(value)
