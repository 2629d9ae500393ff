"""The simulator: any number of learners in one process, on a virtual clock, exactly repeatable.

Gradients are real (whatever the task's learner computes); only time is made up. Each learner's coroutine is run by the
engine of all runtimes (../engine.py), on primitives that take virtual time (backend.py) in a world that all learners
share (world.py). What takes how long is in cost.py; who is given which minibatch in
work.py, with when a gradient is computed. A task without parameters is simulated without any vectors
(backend.py).

Legend: P parameters, L learners.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.core.errors import UserError
from roundelay.core.extras import uncollected
from roundelay.runtime.base import (
    Cluster,
    ClusterState,
    Counts,
    Glance,
    Lost,
    Outcome,
    Runtime,
    SegmentPlan,
    Watch,
    keep_going,
    wall_clock,
)
from roundelay.runtime.gathering import LEARNT
from roundelay.runtime.lanes import LANE_SEGMENTS, since_the_first
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.rows import NoLock, Row, others_known
from roundelay.runtime.sim.backend import NO_VECTOR, SimBackend, TimedLearner
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.runtime.sim.work import Gradients, Work
from roundelay.runtime.sim.world import Lives, VirtualWorld

GLANCE_SECONDS, LOOK_TICKS = 0.2, 64
"""Seconds between two looks of a watcher, and ticks between two looks at the clock."""


class SimRuntime(Runtime):
    """The runtime that simulates a cluster on a virtual clock.

    Args:
        cost: four numbers, or a virtual cluster with as many learners.
        model_bytes: bytes of a row on the wire, if neither the cluster nor the parameters say it.
        goes_on: True if synchronous learners go on without one that dies; else its death ends the run.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: CostModel | None = None,
        model_bytes: float | None = None,
        goes_on: bool = False,
    ) -> None:
        cluster.strategy.check(cluster.learners)
        cluster.strategy.check_optimizer(cluster.optimizer)
        self.cluster, self.cost = cluster, cost or CostModel()
        synchronous = cluster.strategy.traits.synchronous
        self._needs_all, self._goes_on = synchronous and not goes_on, synchronous and goes_on
        self._learner = cluster.task.build()
        self.parameters = size = self._learner.parameters
        learners = cluster.learners
        sequence = self._learner.examples / self._learner.sequences if self._learner.sequences else None
        self._virtual = self.cost.virtual(learners, cluster.strategy.node_learners, sequence)
        self._prices = Prices(self._virtual, learners, model_bytes or 4 * size, cluster.seed, cluster.stragglers)
        self._check_lives()
        place = self._learner.device  # rows, and all work on them, are where gradients are computed
        self._vectors = {name: torch.zeros(learners, size, device=place) for name in ("row", *cluster.memory)}
        self._vectors["row"][:] = self._learner.initial()
        self._scalars = np.zeros((learners, cluster.scalars))
        if cluster.centre:
            self._vectors["centre"] = self._learner.initial()[None].to(place, copy=True)
            self._vectors |= {name: torch.zeros(1, size, device=place) for name in cluster.centre_vectors.values()}
        self._versions, self._steps = np.zeros(learners + cluster.centre, np.int64), np.zeros(learners, np.int64)
        self._counts = Counts.zeros(learners, cluster.centre)
        self._gradients = Gradients(self._learner, torch.zeros(learners, size, device=place), self.cost.together)
        self._timed: list[TimedLearner] = []
        self._rows: list[Row] = []
        if size:
            vectors = [*self._vectors["row"], *self._vectors.get("centre", ())]
            self._rows = [Row(rank, vector, self._versions, NoLock()) for rank, vector in enumerate(vectors)]
            self._me: list[LearnerState] | list[TimedLearner] = [self._make_state(rank) for rank in range(learners)]
            for me in self._me:
                me.row.memory = me.memory
                if cluster.strategy.weighed:
                    me.row.mass, me.row.others = self._scalars[me.rank, -1:], np.zeros(others_known(learners))
            if cluster.centre:
                self._rows[-1].memory = {own: self._vectors[name][0] for own, name in cluster.centre_vectors.items()}
        else:
            versions, everyone = [0] * len(self._versions), tuple(range(learners))
            self._me = self._timed = [
                TimedLearner(rank, everyone, cluster.seed, versions, cluster.memory) for rank in range(learners)
            ]
        self._segments = 0
        self._world = VirtualWorld(self._virtual, self._prices, self._gradients, self._rows, learners, self._goes_on)

    def _make_state(self, rank: int) -> LearnerState:
        memory = {name: self._vectors[name][rank] for name in self.cluster.memory}
        row, gradient = self._rows[rank], self._gradients.out[rank]
        return LearnerState(
            LearnerPlace(rank, self.cluster.learners, self.cluster.seed, self.cluster.minibatches_a_round),
            LearnerVectors(row, gradient, torch.zeros_like(row.vector), memory, self._learner.shapes),
            self.cluster.optimizer,
            LearnerTables(self._steps, self._counts, self._scalars[rank]),
            rate=self.cluster.rate_factor(memory, self._scalars[rank]),
        )

    def _check_lives(self) -> None:
        absent = [rank for rank in range(self.cluster.learners) if not self._virtual.alive_at(rank, 0)]
        if absent and self.cluster.strategy.traits.synchronous:
            raise UserError(
                f"learner {absent[0]} joins later, but {self.cluster.strategy.label} is synchronous: its learners "
                "begin together. Leave the join out, or choose an asynchronous strategy."
            )

    @property
    def events(self) -> int:
        """Number of effects asked for, and of ticks of the clock at which one was answered or applied."""
        return self._world.events

    @property
    def _lives(self) -> Lives:
        return self._world.lives

    @property
    def now(self) -> float:
        """Present time, in virtual seconds."""
        return self._world.clock.now_ns / 1e9

    @property
    def drained(self) -> float:
        """Virtual seconds at which the last learner found nothing more to draw; later events only end the segment."""
        return self._world.drained_ns / 1e9

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started, virtual = wall_clock(), self._world.clock.now_ns
        strategy, learners = self.cluster.strategy, self.cluster.learners
        if self._goes_on:
            self._let_in()
            plan = replace(plan, epoch=plan.epoch.for_living(self._lives.living))
        self._counts.clear()
        for timed in self._timed:
            timed.clear()
        self._plan = plan
        self._lost: list[Lost] = []
        self._work = Work(plan, learners, strategy.traits.synchronous)
        self._world.work = self._work
        self._world.gatherings.begin_segment()
        self._gradients.begin_segment(plan.epoch)
        self._world.lanes = None if self._timed or self._segments >= LANE_SEGMENTS else {}
        self._segments += 1
        self._schedule_lives()
        self._begin_roles()
        # An event makes many small objects and no cycle that lasts: to look through all costs a fifth of a simulation.
        with uncollected() if self._timed else nullcontext():
            self._run(watch)
        if self._world.running:
            raise RuntimeError(f"simulation stands still; {self._world.missing()}")
        self._write_counts()
        return Outcome(
            counts=self._counts.copy(),
            next=self._work.end,
            finished=self._work.end >= plan.end_round * learners,
            wall_seconds=wall_clock() - started,
            virtual_seconds=(self._world.clock.now_ns - virtual) / 1e9,
            lost=tuple(self._lost),
            lanes=since_the_first({rank: lane.spans for rank, lane in (self._world.lanes or {}).items()}),
            gathered=self._world.gatherings.told(),
            missing=plan.missing(
                self._counts.frames.tolist(), self._work.end, self.cluster.strategy.traits.synchronous
            ),
        )

    def _run(self, watch: Watch) -> None:
        """Run until every learner has finished, or nothing is left to do."""
        next_look, busy = wall_clock(), True
        while busy:
            busy = self._world.clock.run(LOOK_TICKS)
            if wall_clock() >= next_look:
                next_look = wall_clock() + GLANCE_SECONDS
                if watch(self._glance()):
                    self._stop()
            if not (busy or self._world.running or self.cluster.strategy.traits.synchronous) and self._work.left_over:
                self._schedule_lives()  # a learner died, and others had finished, or could not go on without it
                self._begin_roles()
                busy = True

    def _begin_roles(self) -> None:
        """Start every living learner's coroutine."""
        self._living = self._lives.living
        self._work.restart()
        self._world.begin()
        for rank in self._living:
            self._begin_learner(rank)

    def _begin_learner(self, rank: int) -> None:
        me = self._me[rank]
        me.begin_segment(self._plan, self._living, self.cluster.strategy.traits.ages)
        self._world.join(SimBackend(self._world, me, self.cluster.strategy.learn(me)))

    def _glance(self) -> Glance:
        now, alive = self._world.clock.now_ns / 1e9, self._lives.number
        if self._timed:
            frames, steps, stale = (sum(getattr(me, n) for me in self._timed) for n in TimedLearner.SUMS)
            return Glance(frames, 0.0, stale / max(1, steps), alive, now, steps=steps)
        return Glance.of(self._counts, alive, virtual_seconds=now)

    def _stop(self) -> None:
        """Let the segment end after the round, or block, that the furthest learner has begun: synchronous learners must
        all stop at the same one."""
        self._work.stop_round = min(self._work.stop_round, self.cluster.stop_round(self._work.reached))

    # Life and death ---------------------------------------------------------------------------------------------------

    def _schedule_lives(self) -> None:
        """Schedule the cluster's deaths and joins from now on; earlier ones have already happened."""
        now, lives = self._world.clock.now_ns, self._lives
        if not lives.number or (self._needs_all and not lives.all_there):
            raise lives.died(lives.alive.index(False), now)
        self._let_in()
        for at, rank, joins in lives.after(now):
            self._world.clock.at(at, self._join if joins else self._die, rank)

    def _let_in(self) -> None:
        """Let learners begin that have joined meanwhile."""
        for rank in self._lives.late(self._world.clock.now_ns):
            self._copy_row(rank, self._lives.neighbour(rank))

    def _die(self, rank: int) -> None:
        """Stop a learner that dies: its pending effects are dropped, and its minibatch is drawn by another. Learners
        that wait for it in a group stop too, as real ones do, and begin again without it when the others have finished.
        """
        lives, now = self._lives, self._world.clock.now_ns
        if not lives.alive[rank]:
            return  # it died before it had copied its row
        lives.set(rank, False)
        self._lost.append(Lost(rank, lives.reason(now)))
        learner = self._world.running.get(rank)
        if not lives.number or (learner is not None and self._needs_all):
            raise lives.died(rank, now)
        if learner is not None:
            self._world.end(learner)
        self._world.abandon(rank)

    def _join(self, rank: int) -> None:
        """Let a learner join: it copies the row of its nearest neighbour, over the link. Under synchronous strategies
        it joins when the next segment begins."""
        if not self._lives.alive[rank] and not self._goes_on:
            source = self._lives.neighbour(rank)
            end = self._world.hold(self._prices.held(rank, source)[1:], self._prices.reach_ns(rank, source, None))
            self._world.clock.at(end, self._joined, (rank, source))

    def _joined(self, who: tuple[int, int]) -> None:
        rank, source = who
        if not self._virtual.alive_at(rank, self._world.clock.now_ns):
            return
        self._copy_row(rank, source if self._lives.alive[source] else self._lives.neighbour(rank))
        everyone = self._me[rank].everyone
        if self.cluster.strategy.holders(everyone) != everyone:
            self._world.outside.add(rank)
            return  # it takes its place in its group when all begin together again
        self._living = self._lives.living
        self._begin_learner(rank)

    def _copy_row(self, rank: int, source: int) -> None:
        for name in ("row", *self.cluster.memory):
            self._vectors[name][rank] = self._vectors[name][source]
        self._scalars[rank] = self._scalars[source]
        if self.cluster.strategy.weighed:
            self._scalars[rank, -1] = 0  # no learner has worked on this copy
        if self._goes_on:  # who mixes with whom follows from them
            self._steps[rank] = self._steps[source]
        if self._timed:
            self._timed[rank].replace(NO_VECTOR)
            self._timed[rank].steps = int(self._steps[rank]) if self._goes_on else self._timed[rank].steps
        else:
            self._versions[rank] += 2
        self._lives.set(rank, True)

    # State ------------------------------------------------------------------------------------------------------------

    def _write_counts(self) -> None:
        """Write the counts of learners without vectors, which count by themselves."""
        for timed in self._timed:
            timed.report(self._counts)
            self._steps[timed.rank] = timed.steps
        if self._timed:
            self._versions[:] = 2 * np.array(self._timed[0].versions)

    def state(self) -> ClusterState:
        """Return a copy of all learners' state; a dead learner gets that of a living one, to return with."""
        source = [rank if there else self._lives.neighbour(rank) for rank, there in enumerate(self._lives.alive)]
        vectors = {
            name: (value[source] if len(value) > 1 else value.clone()).cpu() for name, value in self._vectors.items()
        }
        if self._scalars.size:
            vectors["scalars"] = torch.from_numpy(self._scalars[source])
            if self.cluster.strategy.weighed:
                vectors["scalars"][[not there for there in self._lives.alive], -1] = 0
        if (learnt := self._world.gatherings.learnt()) is not None:
            vectors[LEARNT] = torch.from_numpy(learnt)
        steps = self._steps[source] if self.cluster.strategy.traits.synchronous else self._steps
        integers = {"steps": steps.tolist(), "versions": self._versions.tolist()}
        return ClusterState(vectors, integers, self._world.clock.now_ns)

    def load(self, state: ClusterState) -> None:
        for name, value in self._vectors.items():
            value.copy_(state.vectors[name])
        if self._scalars.size:
            self._scalars[:] = state.vectors["scalars"].numpy()
        self._steps[:], self._versions[:] = state.integers["steps"], state.integers["versions"]
        learnt = state.vectors.get(LEARNT)
        self._world.gatherings.recall(None if learnt is None else learnt.numpy())
        for timed in self._timed:
            timed.steps = int(self._steps[timed.rank])
            timed.versions[:] = (self._versions // 2).tolist()
        self._world.restart(state.virtual_ns)

    def rows(self) -> Tensor:
        holders, rows = self.cluster.strategy.holders(self._lives.living), self._vectors["row"].cpu()
        return rows if len(holders) == len(rows) else rows[list(holders)]

    def shares(self) -> list[float] | None:
        if not self.cluster.strategy.weighed:
            return None
        holders = self.cluster.strategy.holders(self._lives.living)
        return shares_of([self._scalars[rank, -1] for rank in holders])

    def centre(self) -> Tensor:
        return self._vectors["centre"][0].cpu()

    def close(self) -> None:
        """Do nothing, since a simulation holds nothing that Python does not free."""
