"""The simulator: any number of learners in one process, on a virtual clock, exactly repeatable.

Gradients are real (whatever the task's learner computes); only time is made up. Each learner's coroutine runs until it
awaits; the effect is performed, and the reply is scheduled at the time it would be there. What takes how long is in
cost.py; who meets whom in meetings.py; who is given which minibatch in work.py; when a gradient is computed in
gradients.py. A task without parameters is simulated without any vectors (timed.py).

Legend: P parameters, L learners.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.core.effects import Begin, Draw, Effect, Exchange, Fetch, Grad, GradMean, Handle, Mean, Mix, Wait
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient, Minibatch, Statistics
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
from roundelay.runtime.coding import arrived
from roundelay.runtime.learner_state import LearnerState, NoLock, Row, exchange, fetch
from roundelay.runtime.sim.clock import Clock
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.runtime.sim.gradients import Gradients
from roundelay.runtime.sim.lives import Lives
from roundelay.runtime.sim.meetings import VirtualMeans, VirtualMixes
from roundelay.runtime.sim.roles import InForeground, Meeting, Role, To
from roundelay.runtime.sim.timed import NO_VECTOR, TimedLearner
from roundelay.runtime.sim.work import Work

LATER = object()
"""What performing an effect gives when its reply comes at another time."""

GLANCE_SECONDS, LOOK_TICKS = 0.2, 64
"""How often somebody may look: after so many seconds, asked after every so many ticks."""


@contextmanager
def no_collector() -> Iterator[None]:
    """Without Python's search for cycles: an event makes many small objects and no cycle that lasts, and every look
    through all of them costs a fifth of a simulation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class SimRuntime(Runtime):
    """Runs a cluster on a virtual clock.

    Args:
        cost: four numbers, or a virtual cluster with as many learners.
        model_bytes: of a row on the wire, where neither the cluster nor the parameters say it.

    `events` counts effects answered and ticks of the clock that apply one.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: CostModel | None = None,
        model_bytes: float | None = None,
    ) -> None:
        cluster.strategy.check(cluster.learners)
        self.cluster, self.cost = cluster, cost or CostModel()
        self._learner = cluster.task.build()
        self.parameters = size = self._learner.parameters
        learners = cluster.learners
        self._virtual = self.cost.virtual(learners)
        self._prices = Prices(self._virtual, learners, model_bytes or 4 * size, cluster.seed, cluster.stragglers)
        self._check_lives()
        self._vectors = {name: torch.zeros(learners, size) for name in ("row", *cluster.memory)}
        self._vectors["row"][:] = self._learner.initial()
        self._scalars = np.zeros((learners, len(cluster.optimizer.scalars)))
        if cluster.centre:
            self._vectors["centre"] = self._learner.initial()[None].clone()
        self._versions, self._steps = np.zeros(learners + cluster.centre, np.int64), np.zeros(learners, np.int64)
        self._counts = Counts.zeros(learners, cluster.centre)
        self._gradients = Gradients(self._learner, torch.zeros(learners, size), self.cost.together)
        self._timed: list[TimedLearner] = []
        if size:
            vectors = [*self._vectors["row"], *self._vectors.get("centre", ())]
            self._rows = [Row(rank, vector, self._versions, NoLock()) for rank, vector in enumerate(vectors)]
            self._me: list[LearnerState] | list[TimedLearner] = [self._make_state(rank) for rank in range(learners)]
            for me in self._me:
                me.row.memory = me.memory
        else:
            versions, everyone = [0] * len(self._versions), tuple(range(learners))
            self._me = self._timed = [
                TimedLearner(rank, everyone, cluster.seed, versions, cluster.memory) for rank in range(learners)
            ]
        self._perform: dict[type[Effect[Any]], Callable[[Role, To, Any], Any]] = {
            Draw: self._draw,
            Grad: self._gradient,
            GradMean: self._gradient,
            Mean: self._mean,
            Mix: self._mix,
            Exchange: self._exchange,
            Fetch: self._fetch,
            Begin: self._begin,
            Wait: self._wait,
        }
        self.events = 0
        self._restart_clock(0)

    def _make_state(self, rank: int) -> LearnerState:
        memory = {name: self._vectors[name][rank] for name in self.cluster.memory}
        return LearnerState(
            rank,
            self.cluster.learners,
            self.cluster.seed,
            self._rows[rank],
            torch.zeros(self.parameters),
            self._gradients.out[rank],
            self.cluster.optimizer,
            memory,
            self._steps,
            self._counts,
            self._scalars[rank],
            self.cluster.minibatches_a_round,
        )

    def _restart_clock(self, now_ns: int) -> None:
        self._clock = Clock(now_ns)
        self._busy_until = [now_ns] * self._prices.resources
        self._lives = Lives(self._virtual, self._prices, now_ns)

    def _check_lives(self) -> None:
        absent = [rank for rank in range(self.cluster.learners) if not self._virtual.alive_at(rank, 0)]
        if absent and self.cluster.strategy.traits.synchronous:
            raise UserError(
                f"learner {absent[0]} joins later, but {self.cluster.strategy.label} is synchronous: its learners "
                "begin together. Leave the join out, or choose an asynchronous strategy."
            )

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._clock.now_ns / 1e9

    # Segments ---------------------------------------------------------------------------------------------------------

    def segment(self, plan: SegmentPlan, watch: Watch = keep_going) -> Outcome:
        started, virtual = wall_clock(), self._clock.now_ns
        strategy, learners = self.cluster.strategy, self.cluster.learners
        self._counts.clear()
        for timed in self._timed:
            timed.clear()
        self._plan = plan
        self._lost: list[Lost] = []
        self._work = Work(plan, learners, strategy.traits.synchronous)
        self._gradients.begin_segment(plan.epoch)
        self._schedule_lives()
        self._begin_roles()
        with no_collector() if self._timed else nullcontext():
            self._run(watch)
        if self._unfinished:
            raise RuntimeError(
                f"simulation stands still; allreduce groups and who is missing in them: {self._means.missing()}; "
                f"learners that wait for their neighbours in mix number: {self._mixes.missing()}"
            )
        self._write_counts()
        return Outcome(
            counts=self._counts.copy(),
            next=self._work.end,
            finished=self._work.end >= plan.end_round * learners,
            wall_seconds=wall_clock() - started,
            virtual_seconds=(self._clock.now_ns - virtual) / 1e9,
            lost=tuple(self._lost),
        )

    def _run(self, watch: Watch) -> None:
        """Until every learner has finished, or nothing is left to do."""
        next_look, busy = wall_clock(), True
        while busy:
            busy = self._clock.run(LOOK_TICKS)
            if wall_clock() >= next_look:
                next_look = wall_clock() + GLANCE_SECONDS
                if watch(self._glance()):
                    self._stop()
            if not (busy or self._unfinished or self.cluster.strategy.traits.synchronous) and self._work.left_over:
                self._schedule_lives()  # somebody died, and others had finished, or could not go on without it
                self._begin_roles()
                busy = True

    def _one_less(self) -> None:
        """A learner has finished, or died. After the last nothing matters that was to happen later."""
        self._unfinished -= 1
        if not self._unfinished:
            self._clock.forget()

    def _begin_roles(self) -> None:
        """Every learner that lives starts at its strategy's first line."""
        self._means: VirtualMeans[Meeting] = VirtualMeans()
        self._mixes: VirtualMixes[To] = VirtualMixes(self.cluster.learners)
        self._roles: dict[int, Role] = {}
        self._outside: set[int] = set()  # have come back, and take their place in a group when all begin again
        self._living = self._lives.living
        self._work.restart()
        for rank in self._living:
            self._begin_role(rank)
        self._unfinished = len(self._roles)

    def _begin_role(self, rank: int) -> None:
        me = self._me[rank]
        me.begin_segment(self._plan, self._living, self.cluster.strategy.traits.ages)
        role = self._roles[rank] = Role(me, self.cluster.strategy.learn(me).send)
        self._clock.at(self._clock.now_ns, self._advance, role)

    def _glance(self) -> Glance:
        now, alive = self._clock.now_ns / 1e9, len(self._lives.living)
        if self._timed:
            frames, steps, stale = (sum(getattr(me, n) for me in self._timed) for n in TimedLearner.SUMS)
            return Glance(frames, 0.0, stale / max(1, steps), alive, now)
        statistics = self._counts.statistics
        staleness = self._counts.stale_sum.sum() / max(1, self._counts.steps.sum())
        return Glance(statistics.frames, statistics.mean_loss, float(staleness), alive, now)

    def _stop(self) -> None:
        """End after the round the furthest learner has begun, or its block: synchronous learners must all stop at
        one."""
        self._work.stop_round = min(self._work.stop_round, self.cluster.stop_round(self._work.reached))

    # Replies ----------------------------------------------------------------------------------------------------------

    def _advance(self, role: Role, reply: Any = None, _: Any = None) -> None:
        """A learner goes on with `reply`, and on, until what it asks takes time."""
        if role.gone:
            return
        send, perform = role.send, self._perform
        try:
            while reply is not LATER:
                effect = send(reply)
                self.events += 1
                reply = perform[type(effect)](role, role, effect)
        except StopIteration:
            del self._roles[role.rank]
            self._one_less()

    def _reply(self, to: To, answer: Any, _: Any = None) -> None:
        """The answer has come."""
        self.events += 1
        if type(to) is Role:
            self._advance(to, answer)
        else:
            self._finish(to, answer)  # type: ignore[arg-type]

    def _finish(self, handle: Handle[Any], answer: Any) -> None:
        handle.finish(answer)
        if isinstance(handle, InForeground) and handle.holds is not None:
            self._advance(handle.holds, handle)
        elif handle.pending is not None:
            self._collect(handle.pending, handle)

    def _begin(self, role: Role, _: To, effect: Begin[Any]) -> Any:
        begun, in_background = effect.effect, self._virtual.background
        handle: Handle[Any] = Handle() if in_background else InForeground()
        answer = self._perform[type(begun)](role, handle, begun)
        if answer is not LATER:
            handle.finish(answer)
        elif not in_background and type(begun) in (Exchange, Fetch):
            handle.holds = role  # type: ignore[attr-defined]
            return LATER
        return handle

    def _wait(self, role: Role, _: To, effect: Wait[Any]) -> Any:
        handle = effect.handle
        if not handle.done:
            handle.pending = role
        elif isinstance(handle, InForeground) and handle.cost_ns:
            self._collect(role, handle)
        else:
            return handle.reply
        return LATER

    def _collect(self, role: Role, handle: Handle[Any]) -> None:
        """The learner has waited for what is done now; in the foreground its work begins here."""
        if isinstance(handle, InForeground) and handle.cost_ns:
            self._clock.at(self._clock.now_ns + handle.cost_ns, self._reply, role, handle.reply)
        else:
            self._advance(role, handle.reply)

    # Effects ----------------------------------------------------------------------------------------------------------

    def _draw(self, role: Role, _: To, effect: Draw) -> Minibatch | None:
        batch = self._work.draw(role.rank, effect.group)
        if batch is not None:
            role.claims.append(batch)
            role.me.drawn(batch)
        return batch

    def _gradient(self, role: Role, to: To, effect: Grad | GradMean) -> object:
        batch, clock, me = effect.batch, self._clock, role.me
        cost = self._prices.gradient_ns(role.rank, batch.stop - batch.start, me.steps, clock.now_ns)
        if not self._timed:
            self._gradients.ask(role.rank, effect.at, batch, to is role)
        clock.at(clock.now_ns + cost, self._gradient_there, role, to, effect)
        return LATER

    def _gradient_there(self, role: Role, to: To, effect: Grad | GradMean) -> None:
        if role.gone:
            return
        batch = effect.batch
        statistics = Statistics(batch.stop - batch.start) if self._timed else self._gradients.take(role.rank)
        gradient = Gradient(role.me.gradient_buffer, effect.at.version, statistics)
        if type(effect) is GradMean:
            self.events += 1
            weight = float(statistics.frames)
            self._meet(role, effect, gradient.vector, weight, (role, to, gradient, batch))
            return
        self._trained(role, gradient, batch)
        self._reply(to, gradient)

    def _trained(self, role: Role, gradient: Gradient, batch: Minibatch) -> None:
        """From here on the minibatch need never be drawn again."""
        role.me.count(gradient.statistics)
        role.claims.remove(batch)

    def _mean(self, role: Role, to: To, effect: Mean) -> object:
        self._meet(role, effect, effect.vector, effect.weight, (role, to, None, None))
        return LATER

    def _meet(self, role: Role, effect: GradMean | Mean, vector: Tensor, weight: float, who: Meeting) -> None:
        group, codec = effect.group, effect.codec
        if not (self._lives.all_there and not self._outside) and not all(self._comes(member) for member in group):
            self._end(role)
            return
        given = arrived(codec, vector, weight, role.me.memory)
        complete = self._means.arrive(role.rank, group, given, weight, who)
        if complete is None:
            return
        mean, waiting = complete
        cost = self._prices.mean_ns(group, codec)
        for someone in waiting:
            self._clock.at(self._later(someone[1], cost), self._mean_there, someone, mean)

    def _comes(self, member: int) -> bool:
        """Can it be waited for in a group?"""
        return self._lives.there(member) and member not in self._outside

    def _mean_there(self, who: Meeting, mean: Tensor, _: Any) -> None:
        role, to, own, batch = who
        if role.gone:
            return
        if own is None or batch is None:
            self._reply(to, mean)
        else:
            self._trained(role, own, batch)
            self._reply(to, Gradient(mean, own.version, own.statistics))

    def _mix(self, role: Role, to: To, effect: Mix) -> object:
        given = arrived(effect.codec, effect.vector, 1.0, role.me.memory)
        for rank, mix, mixed, who in self._mixes.arrive(role.rank, effect, given, to):
            cost = self._prices.mix_ns(rank, [other for other, _ in mix.weights if other != rank], mix.codec)
            self._clock.at(self._later(who, cost), self._reply, who, mixed)
        return LATER

    def _later(self, to: To, cost_ns: int) -> int:
        """When a mean that costs so much from now on is there; in the foreground it costs it in the wait for it."""
        if isinstance(to, InForeground):
            to.cost_ns = cost_ns
            return self._clock.now_ns
        return self._clock.now_ns + cost_ns

    def _exchange(self, role: Role, to: To, effect: Exchange) -> Any:
        """Both rows are busy from the moment both are free; the rule meets the rows as they are when it ends."""
        rank, peer = role.rank, effect.peer
        if not self._lives.there(peer):
            return None
        end = self._hold(self._prices.held(rank, peer), self._prices.exchange_ns(rank, peer, effect.codec))
        self._clock.at(end, self._exchange_there, role, to, effect)
        return LATER

    def _exchange_there(self, role: Role, to: To, effect: Exchange) -> None:
        if role.gone:
            return
        version = None
        if self._lives.there(effect.peer):
            me = role.me
            if type(me) is TimedLearner:
                version = me.exchange(effect)
            else:
                version = exchange(self._rows[role.rank], self._rows[effect.peer], effect)
            assert version is not None  # rows of a simulator are never away
            me.count_exchange(effect, version)
        self._reply(to, version)

    def _fetch(self, role: Role, to: To, effect: Fetch) -> Any:
        peer = effect.peer
        if not self._lives.there(peer):
            return None
        end = self._hold(self._prices.held(role.rank, peer)[1:], self._prices.fetch_ns(role.rank, peer))
        self._clock.at(end, self._fetch_there, role, to, effect)
        return LATER

    def _fetch_there(self, role: Role, to: To, effect: Fetch) -> None:
        if role.gone:
            return
        version = None
        if self._lives.there(effect.peer):
            me = role.me
            if type(me) is TimedLearner:
                version = me.versions[effect.peer]
            else:
                version = fetch(self._rows[role.rank], self._rows[effect.peer], effect.into)
        self._reply(to, version)

    def _hold(self, resources: tuple[int, ...], cost_ns: int) -> int:
        """Keep all of them busy for so long, as soon as all are free; the time they are free again."""
        busy, end = self._busy_until, self._clock.now_ns
        for resource in resources:
            end = max(end, busy[resource])
        end += cost_ns
        for resource in resources:
            busy[resource] = end
        return end

    # Life and death ---------------------------------------------------------------------------------------------------

    def _schedule_lives(self) -> None:
        """What the cluster says will happen to learners from now on; what it says of earlier has happened."""
        now, lives = self._clock.now_ns, self._lives
        if not lives.living or (self.cluster.strategy.traits.synchronous and not lives.all_there):
            raise lives.died(lives.alive.index(False), now)
        for rank in lives.late(now):
            self._copy_row(rank, lives.neighbour(rank))
        for at, rank, joins in lives.after(now):
            self._clock.at(at, self._join if joins else self._die, rank)

    def _die(self, rank: int, _: Any, __: Any) -> None:
        """It stops; what it had begun is not done, and its minibatch is drawn by another. Those that wait for it in a
        group stop as well, as on real learners, and all begin again without it when the others have finished."""
        lives, now = self._lives, self._clock.now_ns
        if not lives.alive[rank]:
            return  # it died before it had copied its row
        lives.set(rank, False)
        self._lost.append(Lost(rank, lives.reason(now)))
        role = self._roles.get(rank)
        if not lives.living or (role is not None and self.cluster.strategy.traits.synchronous):
            raise lives.died(rank, now)
        if role is not None:
            self._end(role)
        for other, *_ in self._means.abandon(rank):
            self._end(other)

    def _end(self, role: Role) -> None:
        """It does not go on."""
        if role.gone:
            return
        role.gone = True
        del self._roles[role.rank]
        self._one_less()
        self._gradients.drop(role.rank)
        for batch in role.claims:
            self._work.give_back(batch)

    def _join(self, rank: int, _: Any, __: Any) -> None:
        """It copies the row of its nearest neighbour, which takes as long as the link says."""
        if not self._lives.alive[rank]:
            source = self._lives.neighbour(rank)
            end = self._hold(self._prices.held(rank, source)[1:], self._prices.fetch_ns(rank, source))
            self._clock.at(end, self._joined, rank, source)

    def _joined(self, rank: int, source: int, _: Any) -> None:
        if not self._virtual.alive_at(rank, self._clock.now_ns):
            return
        self._copy_row(rank, source if self._lives.alive[source] else self._lives.neighbour(rank))
        everyone = self._me[rank].everyone
        if self.cluster.strategy.holders(everyone) != everyone:
            self._outside.add(rank)
            return  # it takes its place in its group when all begin together again
        self._living = self._lives.living
        self._begin_role(rank)
        self._unfinished += 1

    def _copy_row(self, rank: int, source: int) -> None:
        for name in ("row", *self.cluster.memory):
            self._vectors[name][rank] = self._vectors[name][source]
        self._scalars[rank] = self._scalars[source]
        if self._timed:
            self._timed[rank].replace(NO_VECTOR)
        else:
            self._versions[rank] += 2
        self._lives.set(rank, True)

    # State ------------------------------------------------------------------------------------------------------------

    def _write_counts(self) -> None:
        """Of learners without vectors, which count by themselves."""
        for timed in self._timed:
            timed.report(self._counts)
            self._steps[timed.rank] = timed.steps
        if self._timed:
            self._versions[:] = 2 * np.array(self._timed[0].versions)

    def state(self) -> ClusterState:
        """A copy; a dead learner is given the state of a living one, as it would start with on return."""
        source = [rank if there else self._lives.neighbour(rank) for rank, there in enumerate(self._lives.alive)]
        vectors = {name: value[source] if len(value) > 1 else value.clone() for name, value in self._vectors.items()}
        if self._scalars.size:
            vectors["scalars"] = torch.from_numpy(self._scalars[source])
        integers = {"steps": self._steps.tolist(), "versions": self._versions.tolist()}
        return ClusterState(vectors, integers, self._clock.now_ns)

    def load(self, state: ClusterState) -> None:
        for name, value in self._vectors.items():
            value.copy_(state.vectors[name])
        if self._scalars.size:
            self._scalars[:] = state.vectors["scalars"].numpy()
        self._steps[:], self._versions[:] = state.integers["steps"], state.integers["versions"]
        for timed in self._timed:
            timed.steps = int(self._steps[timed.rank])
            timed.versions[:] = (self._versions // 2).tolist()
        self._restart_clock(state.virtual_ns)

    def rows(self) -> Tensor:
        holders, rows = self.cluster.strategy.holders(self._lives.living), self._vectors["row"]
        return rows if len(holders) == len(rows) else rows[list(holders)]

    def centre(self) -> Tensor:
        return self._vectors["centre"][0]

    def close(self) -> None:
        """Nothing is held that Python does not free."""
