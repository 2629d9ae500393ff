"""One work queue for all hosts of a run. The coordinator owns it; every host prefetches a few leases, so no learner
waits for the network.

A minibatch is leased to one host at a time. That host reports the minibatches that its learners have trained, together
with their counts; only then is the lease settled. When a host dies, its leases that are not settled are drawn again by
others, and its counts for the rest stay: so every minibatch of an epoch is counted exactly once.

This file also divides an epoch between hosts of which some have only some shards of the training examples.

Where all hosts have the same shards nothing is divided: all draw from one order, as without shards. Else every host
draws from an order of its own shards. A shard that several have is trained by one of them: shards are given out one by
one, those that fewest hosts have first, each to the host that has the fewest examples a learner so far.

Each host's examples are settled when an epoch begins, and stay so until it ends. Those that a lost host had not trained
are trained by no host in that epoch, unless the host comes back; from the next epoch on another that has the same
shards trains them.
"""

import dataclasses
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.epochs import EpochPlan, Share
from roundelay.core.errors import UserError
from roundelay.learner.base import Task
from roundelay.runtime.base import Counts
from roundelay.runtime.hosts.control.messages import Common
from roundelay.runtime.messages import Message, table
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.driver import LOOK_SECONDS
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.views import PREFETCH, TRAINED

SHORTEST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 2e-3, 0.05
"""Bounds of the interval at which a host looks at its prefetched leases: a quarter of a minibatch. A host whose
learners need all of its cores has none to spare for looking."""
AHEAD_SECONDS = 0.02
"""Seconds that prefetched leases are to last beyond a round trip to the coordinator."""


@final
class LeaseSource:
    """Minibatches in the order in which they are drawn: those of all learners, or of the learners of one host.

    Args:
        plan: the epoch.
        ranks: ranks of the learners.
        first_round, end_round: the first round of the segment, and the round after its last.
    """

    def __init__(self, plan: EpochPlan, ranks: range, first_round: int, end_round: int) -> None:
        self._plan, self._ranks = plan, ranks
        self._at, self._end = first_round * len(ranks), end_round * len(ranks)
        self.returned: deque[int] = deque()

    @property
    def next(self) -> int:
        """Index of the first minibatch never drawn."""
        return self._index(self._at)

    @property
    def reached(self) -> int:
        """Number of rounds of which minibatches were drawn."""
        return -(-self._at // len(self._ranks))

    @property
    def left(self) -> bool:
        """True if there is a minibatch to draw."""
        return bool(self.returned) or self._at < self._end

    def draw(self) -> int | None:
        """Return the index of the next minibatch, first of those given back; None: it is empty, at an epoch's end."""
        if self.returned:
            return self.returned.popleft()
        batch = self._plan.piece(self._index(self._at))
        self._at += 1
        return batch.index if batch.frames else None

    def stop(self, round_: int) -> None:
        """Let no minibatch of `round_` or a later round be drawn."""
        self._end = min(self._end, round_ * len(self._ranks))

    def _index(self, at: int) -> int:
        round_, rank = divmod(at, len(self._ranks))
        return round_ * self._plan.learners + self._ranks[rank]


class Leases:
    """The coordinator's leases of one segment: minibatches `first` to `end` of an epoch, both multiples of L. Safe from
    any thread.

    Where the plan has shares, every host draws from its own, and no other does: minibatches that a lost host leaves are
    left, unless it comes back.
    """

    def __init__(self, plan: EpochPlan, first: int, end: int) -> None:
        self._plan = plan
        rounds = first // plan.learners, end // plan.learners
        some = [rounds if share.examples else (0, 0) for share in plan.shares] or [rounds]
        self._sources = [LeaseSource(plan, own, *of) for own, of in zip(plan.orders, some, strict=True)]
        self._held: dict[int, set[int]] = {}
        self._settled: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def next(self) -> int:
        """Index of the first minibatch never drawn, in the source from which most were drawn."""
        if len(self._sources) == 1:
            return self._sources[0].next
        return max(source.reached for source in self._sources) * self._plan.learners

    @property
    def left(self) -> bool:
        """True if there is a minibatch to draw for any host."""
        return any(source.left for source in self._sources)

    def left_for(self, hosts: Iterable[int]) -> bool:
        """Return True if there is a minibatch to draw for one of `hosts`."""
        return any(self._source(host).left for host in hosts)

    def draw(self, host: int, wanted: int) -> tuple[list[int], bool]:
        """Draw up to `wanted` minibatches for `host`, at most PREFETCH; those given back by others come first. Return
        their indices, and True if there are more."""
        with self._lock:
            found: list[int] = []
            source = self._source(host)
            while len(found) < min(wanted, PREFETCH) and source.left:
                if (index := source.draw()) is not None:
                    found.append(index)
            self._held.setdefault(host, set()).update(found)
            return found, source.left

    def settle(self, host: int, trained: Collection[int]) -> None:
        """Note that `host` has trained the minibatches of indices `trained`."""
        with self._lock:
            held = self._held.setdefault(host, set())
            self._settled[host] += len(held.intersection(trained))
            held.difference_update(trained)

    def settled(self, host: int) -> int:
        """Return the number of minibatches that `host` has trained."""
        return self._settled[host]

    def give_back(self, host: int) -> int:
        """Let all minibatches that `host` has drawn and not trained be drawn again; return how many these are."""
        with self._lock:
            held = self._held.pop(host, set())
            self._source(host).returned.extend(sorted(held))
            return len(held)

    def lose(self, host: int) -> int:
        """Give back the minibatches of a lost `host`; return how many others draw: 0 if it draws from its own share."""
        returned = self.give_back(host)
        return 0 if self._plan.shares else returned

    def stop(self, stop_round: Callable[[int], int]) -> None:
        """End the segment before the round that `stop_round` returns, given the number of rounds drawn from."""
        with self._lock:
            end = stop_round(max(source.reached for source in self._sources))
            for source in self._sources:
                source.stop(end)

    def _source(self, host: int) -> LeaseSource:
        return self._sources[host if self._plan.shares else 0]


class PrefetchedLeases:
    """Leases of minibatches that a host has in stock for its learners, kept filled by a thread while a part of a
    segment runs.

    Args:
        here: ranks of this host's learners.
        ask: asks the coordinator for a number of leases; the answer comes by `fill`.
    """

    def __init__(self, arena: Arena, here: Sequence[int], ask: Callable[[int], None]) -> None:
        self._arena, self._here, self._ask = arena, here, ask
        self._open: set[int] = set()  # drawn by this host, and not yet said to be trained
        self._lock = threading.Lock()
        self._answered, self._ended = threading.Event(), threading.Event()
        self._answered.set()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="prefetch")

    def start(self) -> None:
        """Start the thread that asks for leases."""
        self._thread.start()

    def fill(self, indices: Sequence[int], more: bool) -> None:
        """Add the minibatches `indices`, leased to this host by the coordinator; `more`: it has more."""
        with self._lock:
            if not self._ended.is_set():
                self._open.update(indices)
                queue.put(self._arena, indices, more)
        self._answered.set()

    def _keep(self) -> None:
        arena, prefetch = self._arena, self._arena.queue.prefetch
        asked, round_trip, rate, pause = 0.0, 0.0, 0.0, SHORTEST_LOOK_SECONDS
        drawn, since = int(prefetch[0]), time.monotonic()
        while not self._ended.wait(pause):
            now = time.monotonic()
            if now - since > 0.2:
                rate = max((int(prefetch[0]) - drawn) / (now - since), rate / 2)
                drawn, since = int(prefetch[0]), now
                pause = min(max(SHORTEST_LOOK_SECONDS, 0.25 / rate if rate else 0.0), LONGEST_LOOK_SECONDS)
            if not self._answered.is_set() or not arena.queue.more[0]:
                continue
            if asked:
                round_trip, asked = now - asked, 0.0
            target = max(len(self._here), math.ceil(rate * (round_trip + pause + AHEAD_SECONDS)))
            wanted = min(target, PREFETCH) - queue.prefetched(arena)
            if wanted > 0:
                self._answered.clear()
                asked = now
                try:
                    self._ask(wanted)
                except Exception:  # the link is gone, which others have noticed
                    return

    def stop(self) -> None:
        """Stop: no learner draws any more."""
        with self._lock:
            self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def report(self) -> dict[str, Any] | None:
        """Return, of one moment, `settled`, the minibatches trained since the last report, and `counts`, all that the
        learners have counted. None: a learner has just died that had not finished counting."""
        with self._lock:
            with self._arena.queue_lock:
                found = _of_one_moment(self._arena, self._here)
            if found is None:
                return None
            counts, untrained = found
            settled = self._open.difference(untrained)
            self._open -= settled
            return {"settled": sorted(settled), "counts": counts}


def counted(arena: Arena, ranks: Sequence[int]) -> dict[str, Any]:
    """Return all counts of learners `ranks`, for JSON."""
    return {name: table[list(ranks)].tolist() for name, table in vars(arena.counts).items()}


def enter(counts: Counts, ranks: Sequence[int], found: dict[str, Any], base: Counts | None = None) -> None:
    """Write the counts `found`, which `counted` returned on another host, plus `base`, into the table of all learners'
    counts: all of them, or none.

    Raises:
        InvalidMessage: `found` lacks counts, or has some of another shape or type.
    """
    values = {name: table(found.get(name), one[list(ranks)]) for name, one in vars(counts).items()}
    for name, one in vars(counts).items():
        for rank, value in zip(ranks, values[name], strict=True):
            before = 0 if base is None else vars(base)[name][rank]
            one[rank] = np.maximum(before, value) if name == "stalest" else before + value


def _of_one_moment(arena: Arena, ranks: Sequence[int]) -> tuple[dict[str, Any], list[int]] | None:
    """Return all counts of `ranks`, and their minibatches not trained, under the queue lock, without which none draws.

    Learners may finish a minibatch meanwhile, which must be in both or in neither; then both are read again. Counts are
    compared bit by bit: a loss may be NaN, which equals nothing.
    """
    places, counts = list(ranks), arena.counts

    def look() -> list[NDArray[Any]]:
        return [table[places] for table in (arena.queue.claims, counts.frames, counts.correct, counts.loss)]

    before = look()
    for _ in range(100):
        found = counted(arena, ranks), queue.untrained(arena, ranks)
        after = look()
        same = all(one.tobytes() == other.tobytes() for one, other in zip(before, after, strict=True))
        if same and not (after[0] == TRAINED).any():
            return found
        before = after
    return None


@final
@dataclass(frozen=True)
class HostShards:
    """Shards of the training examples on one host."""

    learners: int  # number of its learners
    examples: Sequence[int]  # in every shard, -1 where the host has it not; none: its corpus is not in shards
    alive: bool = True  # it takes part


def disagreement(ours: Sequence[int], theirs: Sequence[int], here: str, there: str) -> str:
    """Return the difference, in words, between the shards of two hosts, called `here` and `there`, that keeps them from
    training together; "" for none."""
    if len(ours) != len(theirs):
        cuts = [f"in {len(some)} shards" if some else "not in shards" for some in (ours, theirs)]
        return f"the training features are {cuts[0]} on {here} and {cuts[1]} on {there}"
    odd = [
        number for number, some in enumerate(zip(ours, theirs, strict=True)) if -1 not in some and some[0] != some[1]
    ]
    if not odd:
        return ""
    counts = f"{ours[odd[0]]} labelled frames on {here} and {theirs[odd[0]]} on {there}"
    return f"shard {odd[0]} has {counts}: copy one alignment"


def shares_of(hosts: Sequence[HostShards]) -> tuple[Share, ...]:
    """Return the share of every host in an epoch; an empty tuple where all have the same shards.

    Raises:
        UserError: no host that takes part has anything to train.
    """
    if len({tuple(host.examples) for host in hosts}) == 1:
        return ()
    owned: list[list[int]] = [[] for _ in hosts]
    examples = [0] * len(hosts)
    having = {
        number: [h for h, host in enumerate(hosts) if host.alive and host.examples[number] >= 0]
        for number in range(len(hosts[0].examples))
    }
    for number in sorted(having, key=lambda number: (len(having[number]), number)):
        if having[number]:
            owner = min(having[number], key=lambda h: (examples[h] / hosts[h].learners, h))
            owned[owner].append(number)
            examples[owner] += hosts[owner].examples[number]
    if not sum(examples):
        raise UserError("no host that takes part has a shard with labelled frames. Copy some shards to one of them.")
    return tuple(
        Share(host.learners, some, tuple(sorted(shards)))
        for host, some, shards in zip(hosts, examples, owned, strict=True)
    )


def task_in_common(task: Task, orders: SimpleQueue[Message], check: Callable[[], None], seconds: float) -> Task:
    """Return the task of this host with the first host's measurements on its examples, which may be others.

    Args:
        orders: queue of messages of the first host.
        check: raises an error when there is no reason to wait any more.

    Raises:
        UserError: the first host has not sent its measurements within `seconds`.
    """
    for _ in range(math.ceil(seconds / LOOK_SECONDS)):
        check()
        with suppress(Empty):
            order = orders.get(timeout=LOOK_SECONDS)
            if isinstance(order, Common):
                return task.begun_as(order.numbers) if order.numbers else task
    raise UserError(f"the first host has not begun within {seconds:g} s: raise training.patience_seconds.")


@final
class Division:
    """Division of the running epoch between hosts.

    Args:
        hosts: called when an epoch begins; returns the shards of all hosts, in rank order.
    """

    def __init__(self, hosts: Callable[[], Sequence[HostShards]]) -> None:
        self._hosts = hosts
        self._now: tuple[int, tuple[Share, ...]] = (-1, ())

    def divided(self, plan: EpochPlan) -> EpochPlan:
        """Return the plan of an epoch, with the share of every host.

        Raises:
            UserError: no host that takes part has anything to train.
        """
        if self._now[0] != plan.epoch:
            self._now = plan.epoch, shares_of(self._hosts())
        shares = self._now[1]
        if not shares:
            return plan
        return dataclasses.replace(plan, examples=sum(share.examples for share in shares), shares=shares)

    def has_its_share(self, host: int, examples: Sequence[int]) -> bool:
        """Return True if a host that comes back, with `examples` in every shard, has all its examples of this epoch.
        One that joins a run whose epochs are divided between shards has no share."""
        shares = self._now[1]
        return not shares or (host < len(shares) and all(examples[number] >= 0 for number in shares[host].shards))
