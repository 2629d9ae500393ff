"""State that simulated learners share: virtual time, who lives, rows that are busy, means, mixes and gatherings.

Legend: P parameters.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from torch import Tensor

from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Gather, GradMean, Mean, Mix
from roundelay.core.flat import VectorFragment
from roundelay.core.state import Statistics
from roundelay.runtime.coding import arrived
from roundelay.runtime.gathering import Gatherings, GatheringTable
from roundelay.runtime.lanes import Lane
from roundelay.runtime.rows import Row
from roundelay.runtime.sim.clock import Clock
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import Prices
from roundelay.runtime.sim.gradients import Gradients
from roundelay.runtime.sim.lives import Lives
from roundelay.runtime.sim.meetings import VirtualMeans, VirtualMixes
from roundelay.runtime.sim.work import Work

if TYPE_CHECKING:
    from roundelay.runtime.sim.backend import SimBackend

NEVER_NS = 1 << 62
"""Longer than anything rests."""


class Ticket:
    """A learner's part in a mean or mix.

    begun    the learner did not wait for it at once
    there    the `mean` is
    waits    the learner does, for that
    cost_ns  of a mean that was begun in the foreground: what is still to be paid, in the wait
    """

    __slots__ = ("begun", "cost_ns", "learner", "mean", "there", "waits")

    def __init__(self, learner: "SimBackend", begun: bool) -> None:
        self.learner, self.begun = learner, begun
        self.there = self.waits = False
        self.cost_ns = 0
        self.mean: Tensor


class VirtualWorld:
    """State that the backends of all learners of a virtual cluster share.

    Args:
        rows: by rank, then the centre; none where learners have no vectors.
        goes_on: means and mixes are taken without those who have died.

    `drained_ns` is the last time at which a learner found nothing to draw.
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
        self._virtual, self.prices, self.gradients, self.rows = virtual, prices, gradients, rows
        self.background, self.timed = virtual.background, not rows
        self._learners, self._goes_on = learners, goes_on
        self.frames_only = cache(Statistics)  # minibatches have few sizes
        self._answers = 0  # of learners that have ended
        self.lanes: dict[int, Lane] | None = None
        """By rank, of the segment that runs; None: it has none."""
        self.gatherings = Gatherings(GatheringTable.zeros(learners))
        self.waiting: dict[int, tuple[Gather, SimBackend]] = {}
        """Those who wait in a gathering."""
        self.running: dict[int, SimBackend] = {}
        self.work: Work
        self.restart(0)

    def restart(self, now_ns: int) -> None:
        """Begin again: nothing is under way at this time."""
        self.clock, self.drained_ns = Clock(now_ns), now_ns
        self._busy_until = [now_ns] * self.prices.resources
        self._carried: dict[tuple[int, ...], int] = {}  # by group, the time at which its last mean of models was there
        self.lives = Lives(self._virtual, self.prices, now_ns)

    @property
    def events(self) -> int:
        """Answers to effects, those included that said only when the reply would be there."""
        return self._answers + sum(learner.engine.answers for learner in self.running.values())

    @property
    def seconds(self) -> float:
        """Virtual seconds now."""
        return self.clock.now_ns / 1e9

    # Learners ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin all together: they `join` next."""
        gone = [rank for rank, there in enumerate(self.lives.alive) if self._goes_on and not there]
        self._means, self._mixes = VirtualMeans[Ticket](gone), VirtualMixes[Ticket](self._learners, gone)
        self.waiting.clear()
        self.gatherings.begin_part(self.seconds)
        self.running.clear()
        self.outside: set[int] = set()
        """Learners that have come back, and take their place in a group when all begin again."""

    def join(self, learner: "SimBackend") -> None:
        """Begin now."""
        self.running[learner.rank] = learner
        self.gatherings.join(learner.rank, self.seconds)
        self.clock.at(self.clock.now_ns, type(learner).begin, learner)

    def ended(self, learner: "SimBackend") -> None:
        """End: it has finished, or died. After the last nothing matters that was to happen later."""
        learner.gone = True
        self._answers += learner.engine.answers
        del self.running[learner.rank]
        if not self.running:
            self.clock.forget()

    def end(self, learner: "SimBackend") -> None:
        """End: it does not go on."""
        if learner.gone:
            return
        self.ended(learner)
        learner.engine.close()
        self.gradients.drop(learner.rank)
        for batch in learner.claims:
            self.work.give_back(batch)
        self.waiting.pop(learner.rank, None)
        self._look_at_gathering()

    def abandon(self, rank: int) -> None:
        """Stop those that wait for `rank` in a group as well, or let them go on without it."""
        if self._goes_on:
            for group, mean, waiting in self._means.leave(rank):
                self._met(mean, waiting, self.prices.mean_ns(group, FP32))
            self._mixed(self._mixes.leave(rank))
            return
        for other in self._means.abandon(rank):
            self.end(other.learner)

    def missing(self) -> str:
        """Return the learners that others wait for, for people."""
        return (
            f"allreduce groups and who is missing in them: {self._means.missing()}; learners that wait for their "
            f"neighbours in mix number: {self._mixes.missing()}"
        )

    # Rows -------------------------------------------------------------------------------------------------------------

    def hold(self, resources: tuple[int, ...], cost_ns: int) -> int:
        """Keep all of them busy for so long, as soon as all are free; the time they are free again."""
        busy, end = self._busy_until, self.clock.now_ns
        for resource in resources:
            end = max(end, busy[resource])
        end += cost_ns
        for resource in resources:
            busy[resource] = end
        return end

    def hold_centre(self, rank: int, there: Codec | None) -> int:
        """Return the time when a row in the form `there`, or a word, of learner `rank` has come to the centre."""
        prices = self.prices
        return self.hold(prices.held(rank, prices.centre), prices.reach_ns(rank, prices.centre, there, None))

    # Means and mixes --------------------------------------------------------------------------------------------------

    def meet(
        self, ticket: Ticket, effect: GradMean | Mean, vector: Tensor, weight: float, fragment: VectorFragment
    ) -> None:
        """Come to a mean with a vector (P,). A learner that waits for one who will never come ends here."""
        learner, group, codec = ticket.learner, effect.group, effect.codec
        if not (self._goes_on or (self.lives.all_there and not self.outside)) and not all(map(self._comes, group)):
            self.end(learner)
            return
        given = arrived(codec, vector, weight, learner.me.memory, fragment)
        complete = self._means.arrive(learner.rank, group, given, weight, ticket)
        if complete is not None:
            mean, waiting = complete
            cost = self.prices.mean_ns(group, codec, fragment.of)
            if self.prices.restarts and type(effect) is Mean:
                now = self.clock.now_ns
                cost = self.prices.rested(group, cost, now - self._carried.get(group, -NEVER_NS))
                self._carried[group] = now + cost
            self._met(mean, waiting, cost)

    def _comes(self, member: int) -> bool:
        """Return True if it can be waited for in a group."""
        return self.lives.there(member) and member not in self.outside

    def _met(self, mean: Tensor, waiting: Sequence[Ticket], cost_ns: int) -> None:
        """Let all who were waited for go on from a mean, which is there for all of them at once."""
        for ticket in waiting:
            ticket.mean = mean
        if self.background:
            self.clock.at(self.clock.now_ns + cost_ns, _give, waiting)
            return
        for ticket in waiting:
            self._give_later(ticket, cost_ns)

    def _give_later(self, ticket: Ticket, cost_ns: int) -> None:
        """Give a learner its mean when it is there; if it does it itself, its cost is paid in the wait."""
        if ticket.begun and not self.background:
            ticket.cost_ns, cost_ns = cost_ns, 0
        self.clock.at(self.clock.now_ns + cost_ns, _give, (ticket,))

    def mix(self, ticket: Ticket, effect: Mix) -> None:
        """Come to a mix."""
        given = arrived(effect.codec, effect.vector, 1.0, ticket.learner.me.memory)
        self._mixed(self._mixes.arrive(ticket.learner.rank, effect, given, ticket))

    def _mixed(self, complete: Sequence[tuple[int, Mix, Tensor, Ticket]]) -> None:
        """Let learners go on from these mixes, which are complete."""
        for rank, mix, mixed, ticket in complete:
            ticket.mean = mixed
            others = [other for other, _ in mix.weights if other != rank]
            self._give_later(ticket, self.prices.mix_ns(rank, others, mix.codec))

    # Gatherings -------------------------------------------------------------------------------------------------------

    def has_come(self, learner: "SimBackend") -> None:
        """Have a learner go on whose model has come to the centre."""
        if not learner.gone:
            learner.engine.go_on()
            self._look_at_gathering()

    def _look_at_gathering(self, _: object = None) -> None:
        """Close it, or look again when it is to close. Of those who wait, one that goes on closes it, if there is any;
        else the first."""
        if not self.waiting:
            return
        rank = min(self.waiting, key=lambda rank: (self.waiting[rank][0].last, rank))
        effect, learner = self.waiting[rank]
        living = self.lives.living
        if self.gatherings.begin_closing(rank, effect.terms, living, self.seconds):
            self.clock.at(self.hold_centre(rank, None), self._close, learner)
        elif self.seconds < (due := self.gatherings.closing_time(effect.terms, living)) < math.inf:
            self.clock.at(max(self.clock.now_ns + 1, math.ceil(due * 1e9)), self._look_at_gathering)

    def _close(self, learner: "SimBackend") -> None:
        """Let one who waits close the gathering; it goes on with the others, by rank."""
        if learner.gone:
            return
        learner.closing = True
        learner.engine.go_on()
        released = [rank for rank in sorted(self.waiting) if self.gatherings.take_release(rank, self.seconds)]
        for _, other in [self.waiting.pop(rank) for rank in released]:
            other.engine.go_on()
        self._look_at_gathering()


def _give(tickets: Sequence[Ticket]) -> None:
    """Give a mean to those that wait for it, which go on, in order."""
    for ticket in tickets:
        learner = ticket.learner
        if learner.gone:
            continue
        ticket.there = True
        if ticket.waits:
            learner.engine.go_on()
        else:
            learner.engine.answers += 1
