"""State that simulated learners share: virtual time, lives, rows that are busy, means, mixes and gatherings.

Means of a group and mixes with neighbours take a vector's value when its learner arrives, and are computed when the
last has. Where learners go on without the dead, they are of the living, and of those that had arrived before they died.

Legend: P parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

from roundelay.algorithms.averaging import some_weight, weighted_mean
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Gather, GradMean, Mean, Mix
from roundelay.core.flat import VectorFragment
from roundelay.core.state import Statistics
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.coding import arrived
from roundelay.runtime.gathering import Gatherings, GatheringTable
from roundelay.runtime.lanes import Lane
from roundelay.runtime.rows import Row
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import Prices
from roundelay.runtime.sim.work import Gradients, Work

if TYPE_CHECKING:
    from roundelay.runtime.sim.backend import SimBackend

W = TypeVar("W")
Group = tuple[int, ...]


class VirtualMeans(Generic[W]):
    """The means under way, by group; a group has one at a time.

    Args:
        gone: learners that no mean waits for any more.
    """

    def __init__(self, gone: Sequence[int] = ()) -> None:
        self._gatherings: dict[Group, dict[int, tuple[Tensor, float, W]]] = {}  # those that have arrived, by rank
        self._recent: Group = ()
        self._arrived: dict[int, tuple[Tensor, float, W]] = {}
        self._gone = {*gone}

    def leave(self, rank: int) -> list[tuple[Group, Tensor, list[W]]]:
        """Remove learner `rank`, which has died; return the means that were waiting for it alone, as of `arrive`, with
        their groups."""
        self._gone.add(rank)
        found = []
        for group in [group for group in self._gatherings if rank in group]:
            self._recent, self._arrived = group, self._gatherings[group]
            if (complete := self._complete(group)) is not None:
                found.append((group, *complete))
        return found

    def arrive(self, rank: int, group: Group, vector: Tensor, weight: float, who: W) -> tuple[Tensor, list[W]] | None:
        """Add learner `rank`'s vector to its group's mean; if it was the last one missing, return the mean and all that
        wait for it, in the group's order."""
        if group is not self._recent:  # to look a thousand ranks up by their hash costs more than all the rest
            gathering = self._gatherings.setdefault(group, {})
            self._recent, self._arrived = group, gathering
        arrived = self._arrived
        arrived[rank] = (vector.clone() if vector.numel() else vector, weight, who)  # its value now
        if len(arrived) + len(self._gone) < len(group):  # of ten thousand learners nearly always
            return None
        return self._complete(group)

    def _complete(self, group: Group) -> tuple[Tensor, list[W]] | None:
        """Complete the mean of a group all of whose members have come; return it as `arrive` does."""
        arrived, members = self._arrived, group
        if len(arrived) < len(group):
            if any(member not in arrived and member not in self._gone for member in group):
                return None
            members = tuple(member for member in group if member in arrived)
        del self._gatherings[group]
        self._recent = ()
        vectors, weights, waiting = zip(*(arrived[member] for member in members), strict=True)
        if not vectors[0].numel():
            return vectors[0], list(waiting)
        return weighted_mean(vectors, some_weight(weights) if self._gone else weights), list(waiting)

    def abandon(self, rank: int) -> list[W]:
        """Drop the means of groups with `rank`, which will not come; return all that waited in them."""
        groups = [group for group in self._gatherings if rank in group]
        self._recent = ()
        return [who for group in groups for _, _, who in self._gatherings.pop(group).values()]

    def missing(self) -> dict[Group, list[int]]:
        """Return the learners that have not arrived, by group."""
        return {group: sorted(set(group) - set(arrived)) for group, arrived in self._gatherings.items()}


@dataclass(slots=True)
class _Contribution:
    """A vector laid out for a Mix, and how many have still to read it."""

    vector: Tensor
    readers: int


class VirtualMixes(Generic[W]):
    """The mixes under way, by the number that each learner has asked for so far. Only the readers that a learner names
    read its vector. No mix waits for learners that are `gone`."""

    def __init__(self, learners: int, gone: Sequence[int] = ()) -> None:
        self._number = [0] * learners
        self._contributions: dict[tuple[int, int], _Contribution] = {}
        self._there: dict[tuple[int, int], int] = {}  # (reader, number) -> contributions to it
        self._waiting: dict[int, tuple[int, Mix, W]] = {}
        self._gone = {*gone}

    def leave(self, rank: int) -> list[tuple[int, Mix, Tensor, W]]:
        """Remove learner `rank`, which has died; return the mixes that were waiting for it alone, as of `arrive`."""
        self._gone.add(rank)
        self._waiting.pop(rank, None)
        return [
            self._complete(reader, *asked)
            for reader, asked in [*self._waiting.items()]
            if self._there.get((reader, asked[0]), 0) == self._expected(*asked)
        ]

    def arrive(self, rank: int, mix: Mix, vector: Tensor, who: W) -> list[tuple[int, Mix, Tensor, W]]:
        """Add learner `rank`'s vector; return all mixes that are complete now: (rank, its effect, the mixed vector, its
        `who`). `vector` (P,) is that of `mix` as others receive it."""
        number = self._number[rank] = self._number[rank] + 1
        counts_itself = any(other == rank for other, _ in mix.weights)
        if vector.numel():
            self._contributions[rank, number] = _Contribution(vector.clone(), len(mix.readers) + counts_itself)
        self._waiting[rank] = (number, mix, who)
        found, there = [], self._there
        for reader in (rank, *mix.readers):
            key = (reader, number)
            there[key] = laid_out = there.get(key, 0) + (reader != rank or counts_itself)
            asked = self._waiting.get(reader)
            if asked is None or asked[0] != number:
                continue
            if laid_out == (self._expected(*asked) if self._gone else len(asked[1].weights)):
                found.append(self._complete(reader, *asked))
        return found

    def _expected(self, number: int, mix: Mix, _: W) -> int:
        """Return the number of contributions to a mix: of all except learners that died before they came to it."""
        absent = [other for other, _ in mix.weights if other in self._gone and self._number[other] < number]
        return len(mix.weights) - len(absent)

    def _complete(self, rank: int, number: int, mix: Mix, who: W) -> tuple[int, Mix, Tensor, W]:
        del self._waiting[rank]
        del self._there[rank, number]
        if not mix.vector.numel():
            return rank, mix, mix.vector, who
        given = mix.weights
        if self._gone:
            given = tuple(one for one in given if (one[0], number) in self._contributions)
        contributions = [self._contributions[other, number] for other, _ in given]
        mixed = weighted_mean([one.vector for one in contributions], [weight for _, weight in given])
        for (other, _), contribution in zip(given, contributions, strict=True):
            contribution.readers -= 1
            if not contribution.readers:
                del self._contributions[other, number]
        return rank, mix, mixed, who

    def missing(self) -> dict[int, int]:
        """Return, by learner that waits, the number of the mix it waits for."""
        return {rank: number for rank, (number, _, _) in self._waiting.items()}


NEVER_NS = 1 << 62
"""Nanoseconds longer than any rest."""


class Ticket:
    """A learner's part in a mean or mix.

    begun    True if the learner did not wait at once
    there    True once `mean` is complete
    waits    True while the learner waits for `mean`
    cost_ns  for a mean begun in the foreground: the part of its cost still to be paid, in the wait
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
        rows: rows by rank, then the centre's; empty if learners have no vectors.
        goes_on: True if means and mixes go on without dead learners.

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
        """Learners that wait in a gathering."""
        self.running: dict[int, SimBackend] = {}
        self.work: Work
        self.restart(0)

    def restart(self, now_ns: int) -> None:
        """Begin again at this time, with nothing under way."""
        self.clock, self.drained_ns = Clock(now_ns), now_ns
        self._busy_until = [now_ns] * self.prices.resources
        self._carried: dict[tuple[int, ...], int] = {}  # by group, the time at which its last mean of models was there
        self.lives = Lives(self._virtual, self.prices, now_ns)

    @property
    def events(self) -> int:
        """Number of answers to effects, also of those that only announced the time of the reply."""
        return self._answers + sum(learner.engine.answers for learner in self.running.values())

    @property
    def seconds(self) -> float:
        """Present time, in virtual seconds."""
        return self.clock.now_ns / 1e9

    # Learners ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a part in which all learners begin together; each calls `join` next."""
        gone = [rank for rank, there in enumerate(self.lives.alive) if self._goes_on and not there]
        self._means, self._mixes = VirtualMeans[Ticket](gone), VirtualMixes[Ticket](self._learners, gone)
        self.waiting.clear()
        self.gatherings.begin_part(self.seconds)
        self.running.clear()
        self.outside: set[int] = set()
        """Learners that have come back, and take their place in a group when all begin again."""

    def join(self, learner: "SimBackend") -> None:
        """Let a learner begin now."""
        self.running[learner.rank] = learner
        self.gatherings.join(learner.rank, self.seconds)
        self.clock.at(self.clock.now_ns, type(learner).begin, learner)

    def ended(self, learner: "SimBackend") -> None:
        """Note that a learner has finished or died. After the last one, drop everything that was to happen later."""
        learner.gone = True
        self._answers += learner.engine.answers
        del self.running[learner.rank]
        if not self.running:
            self.clock.forget()

    def end(self, learner: "SimBackend") -> None:
        """Take a learner that does not go on out of all means, mixes and gatherings."""
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
        """Stop the learners that wait for `rank` in a group, or let them go on without it."""
        if self._goes_on:
            for group, mean, waiting in self._means.leave(rank):
                self._met(mean, waiting, self.prices.mean_ns(group, FP32))
            self._mixed(self._mixes.leave(rank))
            return
        for other in self._means.abandon(rank):
            self.end(other.learner)

    def missing(self) -> str:
        """Return words on the learners that others wait for."""
        return (
            f"allreduce groups and who is missing in them: {self._means.missing()}; learners that wait for their "
            f"neighbours in mix number: {self._mixes.missing()}"
        )

    # Rows -------------------------------------------------------------------------------------------------------------

    def hold(self, resources: tuple[int, ...], cost_ns: int) -> int:
        """Keep resources busy for `cost_ns`, as soon as all are free; return the time when they are free again."""
        busy, end = self._busy_until, self.clock.now_ns
        for resource in resources:
            end = max(end, busy[resource])
        end += cost_ns
        for resource in resources:
            busy[resource] = end
        return end

    def hold_centre(self, rank: int, there: Codec | None) -> int:
        """Return the time when a row in the form `there` (None: a word) from learner `rank` has come to the centre."""
        prices = self.prices
        return self.hold(prices.held(rank, prices.centre), prices.reach_ns(rank, prices.centre, there, None))

    # Means and mixes --------------------------------------------------------------------------------------------------

    def meet(
        self, ticket: Ticket, effect: GradMean | Mean, vector: Tensor, weight: float, fragment: VectorFragment
    ) -> None:
        """Add a learner's vector (P,) to a mean. A learner that waits for one that will never come ends here."""
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
        """Return True if a group can wait for learner `member`."""
        return self.lives.there(member) and member not in self.outside

    def _met(self, mean: Tensor, waiting: Sequence[Ticket], cost_ns: int) -> None:
        """Let all members of a mean go on; the mean is there for all of them at the same time."""
        for ticket in waiting:
            ticket.mean = mean
        if self.background:
            self.clock.at(self.clock.now_ns + cost_ns, _give, waiting)
            return
        for ticket in waiting:
            self._give_later(ticket, cost_ns)

    def _give_later(self, ticket: Ticket, cost_ns: int) -> None:
        """Give a learner its mean at the mean's end; one that performs the mean itself pays in the wait."""
        if ticket.begun and not self.background:
            ticket.cost_ns, cost_ns = cost_ns, 0
        self.clock.at(self.clock.now_ns + cost_ns, _give, (ticket,))

    def mix(self, ticket: Ticket, effect: Mix) -> None:
        """Add a learner's vector to a mix."""
        given = arrived(effect.codec, effect.vector, 1.0, ticket.learner.me.memory)
        self._mixed(self._mixes.arrive(ticket.learner.rank, effect, given, ticket))

    def _mixed(self, complete: Sequence[tuple[int, Mix, Tensor, Ticket]]) -> None:
        """Let learners go on from mixes that are complete."""
        for rank, mix, mixed, ticket in complete:
            ticket.mean = mixed
            others = [other for other, _ in mix.weights if other != rank]
            self._give_later(ticket, self.prices.mix_ns(rank, others, mix.codec))

    # Gatherings -------------------------------------------------------------------------------------------------------

    def has_come(self, learner: "SimBackend") -> None:
        """Let a learner go on whose model has come to the centre."""
        if not learner.gone:
            learner.engine.go_on()
            self._look_at_gathering()

    def _look_at_gathering(self, _: object = None) -> None:
        """Close the gathering, or look again when it is to close. Of the waiting learners one that goes on closes it,
        if there is one; else the first."""
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
        """Let a waiting learner close the gathering; then all go on, by rank."""
        if learner.gone:
            return
        learner.closing = True
        learner.engine.go_on()
        released = [rank for rank in sorted(self.waiting) if self.gatherings.take_release(rank, self.seconds)]
        for _, other in [self.waiting.pop(rank) for rank in released]:
            other.engine.go_on()
        self._look_at_gathering()


def _give(tickets: Sequence[Ticket]) -> None:
    """Let those that wait for a mean go on with it, in order."""
    for ticket in tickets:
        learner = ticket.learner
        if learner.gone:
            continue
        ticket.there = True
        if ticket.waits:
            learner.engine.go_on()
        else:
            learner.engine.answers += 1


class Lives:
    """The living learners of a cluster at virtual time `now_ns`. The learners that share a node depend on them."""

    def __init__(self, cluster: VirtualCluster, prices: Prices, now_ns: int) -> None:
        self._cluster, self._prices = cluster, prices
        self.alive = [cluster.alive_at(rank, now_ns) for rank in range(cluster.learners)]
        self.number = sum(self.alive)
        """Learners that live."""
        self.all_there = all(self.alive)
        prices.set_alive(self.alive)

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks of the living learners, in order."""
        return tuple(rank for rank, there in enumerate(self.alive) if there)

    def set(self, rank: int, there: bool) -> None:
        """Note that learner `rank` has joined or died."""
        if self.alive[rank] == there:
            return
        self.alive[rank] = there
        self.number += 1 if there else -1
        self.all_there = self.number == len(self.alive)
        self._prices.change_alive(rank, there)

    def late(self, now_ns: int) -> list[int]:
        """Return the learners that should have joined by now and have not: they were still copying a row."""
        return [r for r, there in enumerate(self.alive) if not there and self._cluster.alive_at(r, now_ns)]

    def after(self, now_ns: int) -> list[tuple[int, int, bool]]:
        """Return the coming deaths and joins: (virtual nanosecond, rank, whether it joins)."""
        return [told for told in self._cluster.lives() if told[0] > now_ns]

    def neighbour(self, rank: int) -> int:
        """Return the living learner nearest to `rank` by number."""
        return min((other for other in self.living if other != rank), key=lambda other: (abs(other - rank), other))

    def there(self, peer: int) -> bool:
        """Return True if learner `peer` lives; always for the centre."""
        return self.all_there or peer >= len(self.alive) or self.alive[peer]

    def died(self, rank: int, now_ns: int) -> LearnerDied:
        """Return the exception for a death of learner `rank` that ends the run."""
        return LearnerDied(rank, self.reason(now_ns))

    def reason(self, now_ns: int) -> str:
        """Return the reason of a death in words, with its virtual time."""
        return f"cluster {self._cluster.name!r} says so, at {now_ns / 1e9:g} s"


Action = Callable[[Any], None]


class Clock:
    """A virtual clock with a heap of actions to do. Their total order (time, serial) makes equal simulations equal.

    An action comes with its argument: making a closure for each would cost as much as the rest of an event.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[tuple[int, int, Action, Any]] = []
        self._serial = 0

    def at(self, time_ns: int, action: Action, what: Any = None) -> None:
        """Do `action(what)` at `time_ns`, after everything already asked for at that time."""
        if time_ns < self.now_ns:
            raise ValueError(f"{time_ns} ns lies before now ({self.now_ns} ns)")
        self._serial += 1
        heappush(self._heap, (time_ns, self._serial, action, what))

    def run(self, times: int) -> bool:
        """Do the next `times` actions; return False if there were fewer."""
        heap = self._heap
        for _ in range(times):
            if not heap:
                return False
            self.now_ns, _, action, what = heappop(heap)
            action(what)
        return True

    def forget(self) -> None:
        """Drop all actions asked for so far."""
        self._heap.clear()
