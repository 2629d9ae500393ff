"""One work queue for all hosts of a run. The coordinator owns it; every host prefetches a few leases, so no learner
waits for the network.

A minibatch is leased to one host at a time. That host says what its learners have trained, together with what they
counted for it; only then is the lease settled. When a host dies, its leases that are not settled are drawn again by
others, and whatever it had counted for the rest stays counted: so every minibatch of an epoch is counted exactly once.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.epochs import EpochPlan
from roundelay.runtime.base import Counts
from roundelay.runtime.messages import table
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.views import PREFETCH, TRAINED

SHORTEST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 2e-3, 0.05
"""Bounds of the interval at which a host looks at its prefetched leases: a quarter of a minibatch. A host whose
learners need all of its cores has none to spare for looking."""
AHEAD_SECONDS = 0.02
"""Prefetched leases are to last so much longer than a round trip to the coordinator."""


@final
class LeaseSource:
    """Minibatches in the order in which they are drawn: those of all learners, or of the learners of one host.

    Args:
        ranks: of the learners.
        first_round, end_round: of the segment.
    """

    def __init__(self, plan: EpochPlan, ranks: range, first_round: int, end_round: int) -> None:
        self._plan, self._ranks = plan, ranks
        self._at, self._end = first_round * len(ranks), end_round * len(ranks)
        self.returned: deque[int] = deque()

    @property
    def next(self) -> int:
        """The first minibatch never drawn."""
        return self._index(self._at)

    @property
    def reached(self) -> int:
        """Rounds of which minibatches were drawn."""
        return -(-self._at // len(self._ranks))

    @property
    def left(self) -> bool:
        """Is there anything to draw?"""
        return bool(self.returned) or self._at < self._end

    def draw(self) -> int | None:
        """Return the next; those given back come first. None: it is empty, as those of a last round may be."""
        if self.returned:
            return self.returned.popleft()
        batch = self._plan.piece(self._index(self._at))
        self._at += 1
        return batch.index if batch.frames else None

    def stop(self, round_: int) -> None:
        """Let nobody draw of `round_` and later ones."""
        self._end = min(self._end, round_ * len(self._ranks))

    def _index(self, at: int) -> int:
        round_, rank = divmod(at, len(self._ranks))
        return round_ * self._plan.learners + self._ranks[rank]


class Leases:
    """The coordinator's leases of one segment: minibatches `first` to `end` of an epoch, both multiples of L. Safe from
    any thread.

    Where the plan has shares, every host draws from its own, and nobody else does: what a lost host leaves is left,
    unless it comes back.
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
        """The first minibatch never drawn; of several sources the one that was drawn from most."""
        if len(self._sources) == 1:
            return self._sources[0].next
        return max(source.reached for source in self._sources) * self._plan.learners

    @property
    def left(self) -> bool:
        """Is there anything to draw, for anybody?"""
        return any(source.left for source in self._sources)

    def left_for(self, hosts: Iterable[int]) -> bool:
        """Return True if there is anything to draw for one of these hosts."""
        return any(self._source(host).left for host in hosts)

    def draw(self, host: int, wanted: int) -> tuple[list[int], bool]:
        """Draw up to so many for `host`, at most PREFETCH; those given back by others come first. And: is there
        more?"""
        with self._lock:
            found: list[int] = []
            source = self._source(host)
            while len(found) < min(wanted, PREFETCH) and source.left:
                if (index := source.draw()) is not None:
                    found.append(index)
            self._held.setdefault(host, set()).update(found)
            return found, source.left

    def settle(self, host: int, trained: Collection[int]) -> None:
        """Note that `host` has trained them, and what its learners counted."""
        with self._lock:
            held = self._held.setdefault(host, set())
            self._settled[host] += len(held.intersection(trained))
            held.difference_update(trained)

    def settled(self, host: int) -> int:
        """Return minibatches that `host` has trained."""
        return self._settled[host]

    def give_back(self, host: int) -> int:
        """Let all that `host` has drawn and not trained be drawn again; return how many minibatches these are."""
        with self._lock:
            held = self._held.pop(host, set())
            self._source(host).returned.extend(sorted(held))
            return len(held)

    def lose(self, host: int) -> int:
        """Take `host` for lost; return minibatches of its that others draw again. Where it draws from its own, nobody
        else does."""
        returned = self.give_back(host)
        return 0 if self._plan.shares else returned

    def stop(self, stop_round: Callable[[int], int]) -> None:
        """End after the last round begun, or its block."""
        with self._lock:
            end = stop_round(max(source.reached for source in self._sources))
            for source in self._sources:
                source.stop(end)

    def _source(self, host: int) -> LeaseSource:
        return self._sources[host if self._plan.shares else 0]


class PrefetchedLeases:
    """A host's share of the queue, kept filled on a thread of its own while a part of a segment runs.

    Args:
        ask: ask the coordinator for so many; it answers by `fill`.
    """

    def __init__(self, arena: Arena, here: Sequence[int], ask: Callable[[int], None]) -> None:
        self._arena, self._here, self._ask = arena, here, ask
        self._open: set[int] = set()  # drawn by this host, and not yet said to be trained
        self._lock = threading.Lock()
        self._answered, self._ended = threading.Event(), threading.Event()
        self._answered.set()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="prefetch")

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def fill(self, indices: Sequence[int], more: bool) -> None:
        """Take what the coordinator answers."""
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
        """Return minibatches trained since the last report, `settled`, and all that learners have counted, `counts`: of
        one moment. None: just now a learner is dead that had not finished counting."""
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
    """Return all counts of `ranks`, for JSON."""
    return {name: table[list(ranks)].tolist() for name, table in vars(arena.counts).items()}


def enter(counts: Counts, ranks: Sequence[int], found: dict[str, Any], base: Counts | None = None) -> None:
    """Write what `counted` found, in addition to `base`, into the table of everybody's counts: all of it, or nothing.

    Raises:
        InvalidMessage: `found` is no such thing.
    """
    values = {name: table(found.get(name), one[list(ranks)]) for name, one in vars(counts).items()}
    for name, one in vars(counts).items():
        for rank, value in zip(ranks, values[name], strict=True):
            before = 0 if base is None else vars(base)[name][rank]
            one[rank] = np.maximum(before, value) if name == "stalest" else before + value


def _of_one_moment(arena: Arena, ranks: Sequence[int]) -> tuple[dict[str, Any], list[int]] | None:
    """Return all counts of `ranks`, and what they have not trained, under the queue lock, without which none draws.

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
