"""The primitives of a simulated learner: each effect takes virtual time, and its engine is told when that is over.

A learner without vectors has versions, steps and counts, and nothing to compute: the work of `LearnerState` on numpy
tables is done with Python integers then, several times as fast. A law holds the two to the same times and counts.

Legend: P parameters.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from roundelay.core.codec import FP32
from roundelay.core.effects import Begin, Exchange, Gather, Grad, GradMean, Handle, Mean, Mix, Reach
from roundelay.core.flat import WHOLE
from roundelay.core.state import Gradient, Me, Minibatch, Snapshot, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, Backend, Later
from roundelay.runtime.base import STALENESS_BINS, Counts, SegmentPlan
from roundelay.runtime.engine import Engine
from roundelay.runtime.lanes import ON_GRADIENT, Lane, span_kind
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.rows import REACH_RULES, reach
from roundelay.runtime.sim.world import Clock, Ticket, VirtualWorld
from roundelay.runtime.trace import Use

NO_VECTOR = torch.empty(0)
WRITTEN = Use.WRITTEN  # a plain name is faster than a member of an enumeration


class TimedLearner(Me):
    """A learner without vectors, as its strategy sees it (`core.state.Me`). `versions`, of all rows, count
    mutations."""

    SUMS = ("frames", "counted_steps", "stale_sum")

    steps: int = 0  # a plain number is faster than a property
    learning_rate: float = 0.0
    living: tuple[int, ...] = ()
    everyone: tuple[int, ...] = ()
    centre: int = 0
    minibatches_a_round: int = 1

    def __init__(self, rank: int, everyone: tuple[int, ...], seed: int, versions: list[int], names: tuple[str, ...]):
        self.rank, self.learners, self.seed = rank, len(everyone), seed
        self.everyone, self.centre = everyone, len(everyone)
        self.gradient_buffer = NO_VECTOR
        self.versions = versions
        self._memory = dict.fromkeys(names, NO_VECTOR)
        self._count_steps = True
        self.clear()

    def clear(self) -> None:
        """Set all counts to zero."""
        self.counted_steps, self.frames, self.stalest, self.stale_sum = 0, 0, 0, 0
        self.ages = [0] * STALENESS_BINS
        self.exchanges: dict[int, int] = {}

    @property
    def x(self) -> Tensor:
        return NO_VECTOR

    @property
    def memory(self) -> Mapping[str, Tensor]:
        return self._memory

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        return {}

    def reset_momentum(self) -> None: ...

    def share_after_reset(self, steps: int) -> float:
        return 1.0

    def begin_segment(self, plan: SegmentPlan, living: tuple[int, ...], ages: str) -> None:
        """Begin a segment, as `LearnerState` does."""
        self._plan, self._warms_up = plan, plan.warmup is not None
        self.learning_rate = plan.rate(plan.first_round)
        self.living, self._count_steps = living, ages == "row"

    def drawn(self, batch: Minibatch) -> None:
        """Note a drawn minibatch, as `LearnerState` does; only strategies that read the learning rate depend on it."""
        if self._warms_up and batch.index >= 0:
            self.learning_rate = self._plan.rate(batch.index // self.learners)

    def snapshot(self) -> Snapshot:
        return Snapshot(NO_VECTOR, self.versions[self.rank])

    def step(self, gradient: Gradient) -> None:
        version = self.versions[self.rank]
        self.versions[self.rank] = version + 1
        self.steps += 1
        self.counted_steps += 1
        if self._count_steps:
            self.count_age(version - gradient.version)

    def count_age(self, stale: int) -> None:
        """Count the age of a gradient, as `LearnerState` does."""
        self.ages[stale if stale < STALENESS_BINS else -1] += 1
        self.stale_sum += stale
        self.stalest = max(self.stalest, stale)

    def count_exchange(self, request: Exchange, version: int) -> None:
        self.exchanges[request.peer] = self.exchanges.get(request.peer, 0) + 1
        if request.since is not None and not self._count_steps:
            self.count_age(version - 1 - request.since)

    def replace(self, vector: Tensor) -> None:
        self.versions[self.rank] += 1

    def count(self, statistics: Statistics) -> None:
        self.frames += statistics.frames

    def reach(self, effect: Reach) -> int:
        """Count a change of each row that the effect writes; return the version of the peer's."""
        versions, (mine, theirs) = self.versions, REACH_RULES[type(effect)].access
        if mine is WRITTEN:
            versions[self.rank] += 1
        if theirs is WRITTEN:
            versions[effect.peer] += 1
        return versions[effect.peer]

    def report(self, counts: Counts) -> None:
        """Write the counts into the tables."""
        rank = self.rank
        counts.steps[rank], counts.frames[rank] = self.counted_steps, self.frames
        counts.staleness[rank] = self.ages
        counts.stalest[rank], counts.stale_sum[rank] = self.stalest, self.stale_sum
        for peer, number in self.exchanges.items():
            counts.exchanges[rank, peer] = number


GO_ON = Engine.go_on  # as an action of the clock it needs no object of its own


class SimBackend(Backend):
    """The backend of one simulated learner, from its start to its end or death, or that of its group; one that comes
    back has a new backend."""

    __slots__ = (
        "_admitted",
        "_clock",
        "_computed",
        "_frames_only",
        "_has_come",
        "_lives",
        "_prices",
        "_role",
        "_timed",
        "_world",
        "claims",
        "closing",
        "engine",
        "gone",
        "me",
        "rank",
    )

    def __init__(self, world: VirtualWorld, me: LearnerState | TimedLearner, role: Any) -> None:
        self._world, self._clock, self._prices, self._lives = world, world.clock, world.prices, world.lives
        self._role, self._timed, self._frames_only = role, world.timed, world.frames_only
        self.me, self.rank = me, me.rank
        lane = None if world.lanes is None else world.lanes.setdefault(me.rank, Lane())
        self.engine = Engine(me, self) if lane is None else LaneEngine(me, self, world.clock, lane)
        self.claims: list[Minibatch] = []
        """Minibatches it works on."""
        self.gone = False
        self.closing = False
        """Is it to close the gathering it waits in?"""
        self._computed: Minibatch
        self._admitted, self._has_come = False, False

    def begin(self) -> None:
        """Run the learner's coroutine from its first line."""
        if not self.gone:
            self.engine.begin(self._role)

    def ended(self) -> None:
        self._world.ended(self)

    # Minibatches and gradients ----------------------------------------------------------------------------------------

    def draw(self, group: tuple[int, ...]) -> Minibatch | None:
        batch = self._world.work.draw(self.rank, group)
        if batch is not None:
            self.claims.append(batch)
        else:
            self._world.drained_ns = self._clock.now_ns
        return batch

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        batch, engine = effect.batch, self.engine
        frames = batch.stop - batch.start
        if not engine.again:
            now = self._clock.now_ns
            cost = self._prices.gradient_ns(self.rank, frames, self.me.steps, now)
            if not self._timed:
                self._world.gradients.ask(self.rank, effect.at, batch)
            self._clock.at(now + cost, GO_ON, engine)
            return LATER
        self._computed = batch
        statistics = self._frames_only(frames) if self._timed else self._world.gradients.take(self.rank)
        return Gradient(self.me.gradient_buffer, effect.at.version, statistics, float(frames))

    def settle(self, statistics: Statistics) -> None:
        self.me.count(statistics)
        self.claims.remove(self._computed)

    # Means ------------------------------------------------------------------------------------------------------------

    def publish(self, effect: Mean | Mix) -> Ticket:
        ticket = Ticket(self, type(self.engine.pending) is Begin)
        if isinstance(effect, Mean):
            self._world.meet(ticket, effect, effect.vector, effect.weight, effect.fragment)
        else:
            self._world.mix(ticket, effect)
        return ticket

    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> Ticket:
        ticket = Ticket(self, False)
        self._world.meet(ticket, effect, gradient.vector, gradient.weight, WHOLE)
        return ticket

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor | Later:
        ticket: Ticket = published
        if not ticket.there:
            ticket.waits = True
            return LATER
        if ticket.cost_ns:  # in the foreground the learner's own work begins here
            self._clock.at(self._clock.now_ns + ticket.cost_ns, GO_ON, self.engine)
            ticket.cost_ns = 0
            return LATER
        return ticket.mean

    # Gatherings -------------------------------------------------------------------------------------------------------

    def admits(self, effect: Gather) -> bool | Later:
        """Return True if the learner's contribution counts, once its model has come to the centre; the learner fetches
        the result later by itself."""
        if not self.engine.again:
            world = self._world
            self._admitted, self._has_come = world.gatherings.admits(self.rank, effect), False
            at = world.hold_centre(self.rank, FP32) if self._admitted else self._clock.now_ns
            self._clock.at(at, world.has_come, self)
            return LATER
        return self._admitted

    def closes(self, effect: Gather) -> bool | Later:
        if self._has_come:
            return self.closing
        self._has_come, world = True, self._world
        if not world.gatherings.arrive(self.rank, effect.last, world.seconds):
            return False
        world.waiting[self.rank] = effect, self
        return LATER

    def closed(self, effect: Gather) -> Later | None:
        if not self.closing:
            return None
        self.closing = False
        self._world.gatherings.close(self._lives.living, self._world.seconds)
        return LATER

    # Rows -------------------------------------------------------------------------------------------------------------

    def lives(self, peer: int) -> bool:
        lives = self._lives
        return lives.all_there or lives.there(peer)

    def reach(self, effect: Reach) -> int | Later:
        """Perform an effect on rows, which are busy from the moment all are free; its rule sees them as they are at its
        end."""
        me = self.me
        if not self.engine.again:
            self._clock.at(self._end_of(effect), GO_ON, self.engine)
            return LATER
        if type(me) is TimedLearner:
            return me.reach(effect)
        rows = self._world.rows
        version = reach(rows[self.rank], rows[effect.peer], effect)
        assert version is not None  # rows of a simulator are never away
        return version

    def starts(self, effect: Reach, handle: Handle[int | None]) -> bool:
        if self._world.background:
            handle.pending = effect, self.engine
            self._clock.at(self._end_of(effect), _over, handle)
        return self._world.background

    def _end_of(self, effect: Reach) -> int:
        """Keep the rows of an effect busy; return the time when the effect is over."""
        rank, peer, prices, rule = self.rank, effect.peer, self._prices, REACH_RULES[type(effect)]
        held = prices.held(rank, peer)
        if not rule.access.mine:
            held = held[1:]
        fragments = effect.fragment.of if type(effect) is Exchange else 1
        return self._world.hold(held, prices.reach_ns(rank, peer, *rule.carried(effect), fragments))


@final
class LaneEngine(Engine):
    """An engine that records spans of its effects' virtual time."""

    __slots__ = ("_clock", "_lane", "_since")

    def __init__(self, me: LearnerState | TimedLearner, backend: SimBackend, clock: Clock, lane: Lane) -> None:
        super().__init__(me, backend)
        self._clock, self._lane, self._since = clock, lane, 0.0

    def _run(self, reply: Any) -> None:
        if self.pending is not None:
            self._note(span_kind(self.pending))
        self._since = self._clock.now_ns / 1e9
        super()._run(reply)

    def _gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        gradient = super()._gradient(effect, on_ready)
        if gradient is not LATER:
            self._note(ON_GRADIENT)
        return gradient

    def _note(self, kind: int) -> None:
        now = self._clock.now_ns / 1e9
        self._lane.note(kind, self._since, now)
        self._since = now


def _over(handle: Handle[int | None]) -> None:
    """Finish an effect that was begun, at the end of its time."""
    engine: Engine = handle.pending[1]
    engine.finish(handle)
