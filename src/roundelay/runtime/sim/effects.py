"""The effects of simulated learners: performed on a virtual clock, each reply at the time it would be there.

These are the rules of the engine (`runtime/engine.py`) once more, and the only other copy. Where time is virtual, what
is begun goes on by itself, as between hosts, and an event is all that happens: with the engine between, whose calls
cost more than an event without vectors, a simulation would take half as long again. A law holds both to the same
replies, versions and counts (tests/laws/test_engine_in_simulator.py).

Legend: P parameters.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Begin, Draw, Effect, Exchange, Gather, Grad, GradMean, Handle, Mean, Mix, Reach, Wait
from roundelay.core.flat import WHOLE, VectorFragment
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.runtime.backend import LATER
from roundelay.runtime.coding import arrived
from roundelay.runtime.rows import REACH_RULES, Row, reach
from roundelay.runtime.sim.clock import Clock
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import Prices
from roundelay.runtime.sim.gatherings import VirtualGatherings
from roundelay.runtime.sim.gradients import Gradients
from roundelay.runtime.sim.lives import Lives
from roundelay.runtime.sim.meetings import VirtualMeans, VirtualMixes
from roundelay.runtime.sim.roles import InForeground, LearnerCoroutine, Meeting, To
from roundelay.runtime.sim.timed import TimedLearner
from roundelay.runtime.sim.work import Work

NEVER_NS = 1 << 62
"""Longer than anything rests."""


class VirtualEffects:
    """Runs the coroutines of all learners of a virtual cluster.

    Args:
        rows: by rank, then the centre; none where learners have no vectors.
        goes_on: means and mixes are taken without those who have died.

    `events` counts effects answered and ticks of the clock that apply one; `drained_ns` is the last time at which a
    learner found nothing to draw.
    """

    def __init__(
        self,
        virtual: VirtualCluster,
        prices: Prices,
        gradients: Gradients,
        rows: Sequence[Row],
        learners: int,
        goes_on: bool = False,
    ) -> None:
        self._virtual, self._prices, self._gradients, self._rows = virtual, prices, gradients, rows
        self._learners, self._timed, self._goes_on = learners, not rows, goes_on
        self._perform: dict[type[Effect[Any]], Callable[[LearnerCoroutine, To, Any], Any]] = {
            Draw: self._draw,
            Grad: self._gradient,
            GradMean: self._gradient,
            Mean: self._mean,
            Mix: self._mix,
            Gather: self._gather,
            Begin: self._begin,
            Wait: self._wait,
            **dict.fromkeys(REACH_RULES, self._reach),
        }
        self._frames_only = cache(Statistics)  # minibatches have few sizes
        self.events = 0
        self.gatherings: VirtualGatherings[tuple[LearnerCoroutine, To, bool]] = VirtualGatherings(learners)
        self._work: Work
        self.restart(0)

    def restart(self, now_ns: int) -> None:
        """Nothing is under way at this time."""
        self.clock, self.drained_ns = Clock(now_ns), now_ns
        self._busy_until = [now_ns] * self._prices.resources
        self._carried: dict[tuple[int, ...], int] = {}  # by group, the time at which its last mean of models was there
        self.lives = Lives(self._virtual, self._prices, now_ns)

    def begin_segment(self, work: Work) -> None:
        """Draw from `work` from now on."""
        self._work = work

    def begin(self, roles: Sequence[LearnerCoroutine]) -> None:
        """All begin together."""
        gone = [rank for rank, there in enumerate(self.lives.alive) if self._goes_on and not there]
        self._means, self._mixes = VirtualMeans[Meeting](gone), VirtualMixes[To](self._learners, gone)
        self.gatherings.begin(self._seconds)
        self.roles: dict[int, LearnerCoroutine] = {}
        self.outside: set[int] = set()
        """Learners that have come back, and take their place in a group when all begin again."""
        self.unfinished = 0
        for role in roles:
            self.join(role)

    def join(self, role: LearnerCoroutine) -> None:
        """It begins now."""
        self.roles[role.rank] = role
        self.gatherings.rules.join(role.rank, self._seconds)
        self.unfinished += 1
        self.clock.at(self.clock.now_ns, self._advance, role)

    def end(self, role: LearnerCoroutine) -> None:
        """It does not go on."""
        if role.gone:
            return
        role.gone = True
        del self.roles[role.rank]
        self._one_less()
        self._gradients.drop(role.rank)
        for batch in role.claims:
            self._work.give_back(batch)
        self.gatherings.waiting.pop(role.rank, None)
        self._look_at_gathering()

    def abandon(self, rank: int) -> None:
        """Those that wait for `rank` in a group stop as well, or go on without it."""
        if self._goes_on:
            for group, mean, waiting in self._means.leave(rank):
                self._met(mean, waiting, self._prices.mean_ns(group, FP32))
            self._mixed(self._mixes.leave(rank))
            return
        for other, *_ in self._means.abandon(rank):
            self.end(other)

    def hold(self, resources: tuple[int, ...], cost_ns: int) -> int:
        """Keep all of them busy for so long, as soon as all are free; the time they are free again."""
        busy, end = self._busy_until, self.clock.now_ns
        for resource in resources:
            end = max(end, busy[resource])
        end += cost_ns
        for resource in resources:
            busy[resource] = end
        return end

    def missing(self) -> str:
        """The learners that others wait for, for people."""
        return (
            f"allreduce groups and who is missing in them: {self._means.missing()}; learners that wait for their "
            f"neighbours in mix number: {self._mixes.missing()}"
        )

    def _one_less(self) -> None:
        """A learner has finished, or died. After the last nothing matters that was to happen later."""
        self.unfinished -= 1
        if not self.unfinished:
            self.clock.forget()

    # Replies ----------------------------------------------------------------------------------------------------------

    def _advance(self, role: LearnerCoroutine, reply: Any = None, _: Any = None) -> None:
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
            del self.roles[role.rank]
            self._one_less()

    def _reply(self, to: To, answer: Any, _: Any = None) -> None:
        """The answer has come."""
        self.events += 1
        if type(to) is LearnerCoroutine:
            self._advance(to, answer)
        else:
            self._finish(to, answer)  # type: ignore[arg-type]

    def _finish(self, handle: Handle[Any], answer: Any) -> None:
        handle.finish(answer)
        if isinstance(handle, InForeground) and handle.holds is not None:
            self._advance(handle.holds, handle)
        elif handle.pending is not None:
            self._collect(handle.pending, handle)

    def _begin(self, role: LearnerCoroutine, _: To, effect: Begin[Any]) -> Any:
        begun, in_background = effect.effect, self._virtual.background
        handle: Handle[Any] = Handle() if in_background else InForeground()
        answer = self._perform[type(begun)](role, handle, begun)
        if answer is not LATER:
            handle.finish(answer)
        elif not in_background and type(begun) in REACH_RULES:
            handle.holds = role  # type: ignore[attr-defined]
            return LATER
        return handle

    def _wait(self, role: LearnerCoroutine, _: To, effect: Wait[Any]) -> Any:
        handle = effect.handle
        if not handle.done:
            handle.pending = role
        elif isinstance(handle, InForeground) and handle.cost_ns:
            self._collect(role, handle)
        else:
            return handle.reply
        return LATER

    def _collect(self, role: LearnerCoroutine, handle: Handle[Any]) -> None:
        """The learner has waited for what is done now; in the foreground its work begins here."""
        if isinstance(handle, InForeground) and handle.cost_ns:
            self.clock.at(self.clock.now_ns + handle.cost_ns, self._reply, role, handle.reply)
        else:
            self._advance(role, handle.reply)

    # Effects ----------------------------------------------------------------------------------------------------------

    def _draw(self, role: LearnerCoroutine, _: To, effect: Draw) -> Minibatch | None:
        batch = self._work.draw(role.rank, effect.group)
        if batch is not None:
            role.claims.append(batch)
            role.me.drawn(batch)
        else:
            self.drained_ns = self.clock.now_ns
        return batch

    def _gradient(self, role: LearnerCoroutine, to: To, effect: Grad | GradMean) -> object:
        batch, clock, me = effect.batch, self.clock, role.me
        cost = self._prices.gradient_ns(role.rank, batch.stop - batch.start, me.steps, clock.now_ns)
        if not self._timed:
            self._gradients.ask(role.rank, effect.at, batch, to is role)
        clock.at(clock.now_ns + cost, self._gradient_there, role, to, effect)
        return LATER

    def _gradient_there(self, role: LearnerCoroutine, to: To, effect: Grad | GradMean) -> None:
        if role.gone:
            return
        batch = effect.batch
        frames = batch.stop - batch.start
        statistics = self._frames_only(frames) if self._timed else self._gradients.take(role.rank)
        weight = float(frames)
        gradient = Gradient(role.me.gradient_buffer, effect.at.version, statistics, weight)
        if type(effect) is GradMean:
            self.events += 1
            self._meet(role, effect, gradient.vector, weight, (role, to, gradient, batch))
            return
        self._trained(role, gradient, batch)
        self._reply(to, gradient)

    def _trained(self, role: LearnerCoroutine, gradient: Gradient, batch: Minibatch) -> None:
        """From here on the minibatch need never be drawn again."""
        role.me.count(gradient.statistics)
        role.claims.remove(batch)

    def _mean(self, role: LearnerCoroutine, to: To, effect: Mean) -> object:
        self._meet(role, effect, effect.vector, effect.weight, (role, to, None, None), effect.fragment)
        return LATER

    def _meet(
        self,
        role: LearnerCoroutine,
        effect: GradMean | Mean,
        vector: Tensor,
        weight: float,
        who: Meeting,
        fragment: VectorFragment = WHOLE,
    ) -> None:
        group, codec = effect.group, effect.codec
        if not (self._goes_on or (self.lives.all_there and not self.outside)) and not all(map(self._comes, group)):
            self.end(role)
            return
        given = arrived(codec, vector, weight, role.me.memory, fragment)
        complete = self._means.arrive(role.rank, group, given, weight, who)
        if complete is None:
            return
        mean, waiting = complete
        cost = self._prices.mean_ns(group, codec, fragment.of)
        if self._prices.restarts and type(effect) is Mean:
            now = self.clock.now_ns
            cost = self._prices.rested(group, cost, now - self._carried.get(group, -NEVER_NS))
            self._carried[group] = now + cost
        self._met(mean, waiting, cost)

    def _met(self, mean: Tensor, waiting: Sequence[Meeting], cost: int) -> None:
        """All who were waited for have come to a mean."""
        for someone in waiting:
            self.clock.at(self._later(someone[1], cost), self._mean_there, someone, mean)

    def _comes(self, member: int) -> bool:
        """Can it be waited for in a group?"""
        return self.lives.there(member) and member not in self.outside

    def _mean_there(self, who: Meeting, mean: Tensor, _: Any) -> None:
        role, to, own, batch = who
        if role.gone:
            return
        if own is None or batch is None:
            self._reply(to, mean)
        else:
            self._trained(role, own, batch)
            self._reply(to, Gradient(mean, own.version, own.statistics, own.weight))

    def _mix(self, role: LearnerCoroutine, to: To, effect: Mix) -> object:
        given = arrived(effect.codec, effect.vector, 1.0, role.me.memory)
        self._mixed(self._mixes.arrive(role.rank, effect, given, to))
        return LATER

    def _mixed(self, complete: Sequence[tuple[int, Mix, Tensor, To]]) -> None:
        """These mixes are complete."""
        for rank, mix, mixed, who in complete:
            cost = self._prices.mix_ns(rank, [other for other, _ in mix.weights if other != rank], mix.codec)
            self.clock.at(self._later(who, cost), self._reply, who, mixed)

    # Gatherings -------------------------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        return self.clock.now_ns / 1e9

    def _gather(self, role: LearnerCoroutine, to: To, effect: Gather) -> object:
        """A model goes to the centre, if it counts; what comes of it the learner fetches by itself."""
        counts = self.gatherings.rules.admits(role.rank, effect)
        at = self._hold_centre(role.rank, FP32) if counts else self.clock.now_ns
        self.clock.at(at, self._gave, role, (to, counts), effect)
        return LATER

    def _gave(self, role: LearnerCoroutine, given: tuple[To, bool], effect: Gather) -> None:
        if role.gone:
            return
        to, counts = given
        if counts and effect.give is not None:
            self._apply(role, effect.give)
        if self.gatherings.rules.arrive(role.rank, effect.last, self._seconds):
            self.gatherings.waiting[role.rank] = effect, (role, to, counts)
        else:
            self._reply(to, counts)
        self._look_at_gathering()

    def _look_at_gathering(self, *__: object) -> None:
        """Close it, or look again when it is to close."""
        waiting, rules = self.gatherings.waiting, self.gatherings.rules
        if not waiting:
            return
        rank = self.gatherings.first
        effect, (role, *_) = waiting[rank]
        living = self.lives.living
        if rules.begin_closing(rank, effect.terms, living, self._seconds):
            self.clock.at(self._hold_centre(rank, None), self._close, role, effect)
        elif self._seconds < (due := rules.closing_time(effect.terms, living)) < math.inf:
            self.clock.at(max(self.clock.now_ns + 1, math.ceil(due * 1e9)), self._look_at_gathering)

    def _close(self, role: LearnerCoroutine, effect: Gather, _: Any) -> None:
        if role.gone:
            return
        self._apply(role, effect.close)
        self.gatherings.rules.close(self.lives.living, self._seconds)
        for _, to, counts in self.gatherings.released(self._seconds):
            self._reply(to, counts)
        self._look_at_gathering()

    def _hold_centre(self, rank: int, there: Codec | None) -> int:
        """The time when a row in the form `there`, or a word, of learner `rank` has come to the centre."""
        prices = self._prices
        return self.hold(prices.held(rank, prices.centre), prices.reach_ns(rank, prices.centre, there, None))

    def _later(self, to: To, cost_ns: int) -> int:
        """The time when a mean that costs so much from now on is there; in the foreground it costs it in the wait."""
        if isinstance(to, InForeground):
            to.cost_ns = cost_ns
            return self.clock.now_ns
        return self.clock.now_ns + cost_ns

    def _reach(self, role: LearnerCoroutine, to: To, effect: Reach) -> Any:
        """The rows it meets are busy from the moment all are free; its rule meets them as they are when it ends."""
        rank, peer = role.rank, effect.peer
        if not self.lives.there(peer):
            return None
        prices, rule = self._prices, REACH_RULES[type(effect)]
        held = prices.held(rank, peer)
        if not rule.access.mine:
            held = held[1:]
        fragments = effect.fragment.of if type(effect) is Exchange else 1
        end = self.hold(held, prices.reach_ns(rank, peer, *rule.carried(effect), fragments))
        self.clock.at(end, self._reached, role, to, effect)
        return LATER

    def _reached(self, role: LearnerCoroutine, to: To, effect: Reach) -> None:
        if role.gone:
            return
        self._reply(to, self._apply(role, effect) if self.lives.there(effect.peer) else None)

    def _apply(self, role: LearnerCoroutine, effect: Reach) -> int:
        """Do it now; the version of the peer's row."""
        me = role.me
        if type(me) is TimedLearner:
            version: int | None = me.reach(effect)
        else:
            version = reach(self._rows[role.rank], self._rows[effect.peer], effect)
        assert version is not None  # rows of a simulator are never away
        if type(effect) is Exchange:
            me.count_exchange(effect, version)
        return version
