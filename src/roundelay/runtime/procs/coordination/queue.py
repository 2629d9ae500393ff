"""The work queue of an asynchronous segment: any learner that is ready draws the next minibatch.

A learner may be killed between any two stores. Therefore it claims a minibatch before it takes it out: killed in
between, it holds a claim on something still to be drawn, which `give_back` can tell. In the other order the minibatch
would be lost.

A trained minibatch is counted exactly once, too: the new totals are laid out first, one store says that the minibatch
is trained, and entering the totals may be repeated.
"""

from collections.abc import Sequence

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import EMPTY, END, NONE, PREFETCH, TRAINED, Integers, WorkQueue

NONE_YET = Minibatch(0, NONE, 0, 0)
"""Nothing to draw just now; ask again."""
ELSEWHERE = 1 << 62
"""Position of the queue of a host among several: nothing is left in it, and everything was drawn from it."""


def draw(arena: Arena, rank: int, plan: EpochPlan) -> Minibatch | None:
    """Return the next minibatch, claimed by `rank`; None at the end of the segment; NONE_YET where the host waits for
    more."""
    with arena.queue_lock:
        if _short(arena, 1):
            return NONE_YET
        return _take(arena.queue, arena.queue.claims, rank, plan)


def draw_together(arena: Arena, rank: int, group: Sequence[int], plan: EpochPlan) -> Minibatch | None:
    """Return what `draw` does, for a member of a group: the first member that comes draws for all, and the others find
    their minibatches in `assigned`.

    Members never are two draws apart, since they do something together between any two.
    """
    queue, assigned = arena.queue, arena.queue.assigned
    with arena.queue_lock:
        if assigned[rank] == NONE:
            # All of the group, unless one died while it drew for the others.
            free = [member for member in group if assigned[member] == NONE]
            if _short(arena, len(free)):
                return NONE_YET
            batches = [_take(queue, assigned, member, plan) for member in free]
            for member, batch in zip(free, batches, strict=True):
                if batch is None:
                    assigned[member] = EMPTY if any(batches) else END
        index = int(assigned[rank])
        if index == END:
            return None
        queue.claims[rank] = index
        assigned[rank] = NONE
        return Minibatch(plan.epoch, EMPTY, 0, 0) if index == EMPTY else plan.piece(index)


def _short(arena: Arena, needed: int) -> bool:
    """Return True if there are fewer than `needed` minibatches, but more to come; under the lock."""
    if not arena.queue.more[0]:
        return False
    return int(arena.queue.returned[0]) + prefetched(arena) < needed


def prefetched(arena: Arena) -> int:
    """Return the number of prefetched minibatches that are not drawn yet."""
    prefetch = arena.queue.prefetch
    return int(prefetch[1] - prefetch[0])


def put(arena: Arena, indices: Sequence[int], more: bool) -> None:
    """Add the prefetched minibatches `indices`, drawn from the run's queue; `more`: True if others may follow."""
    prefetch = arena.queue.prefetch
    with arena.queue_lock:
        for index in indices:
            prefetch[2 + prefetch[1] % PREFETCH] = index
            prefetch[1] += 1
        arena.queue.more[0] = more


def open_prefetch(arena: Arena) -> None:
    """Open the queue at the beginning of a segment on one of several hosts, where every minibatch is prefetched."""
    queue = arena.queue
    queue.prefetch[:2] = 0
    queue.next_index[0], queue.more[0] = ELSEWHERE, 1


def untrained(arena: Arena, ranks: Sequence[int]) -> list[int]:
    """Return the minibatches that are prefetched, were put back, or are with one of `ranks`; under the queue lock."""
    queue, prefetch, returned = arena.queue, arena.queue.prefetch, arena.queue.returned
    found = [int(prefetch[2 + number % PREFETCH]) for number in range(int(prefetch[0]), int(prefetch[1]))]
    found += [int(index) for index in returned[1 : 1 + returned[0]]]
    notes = [int(note[rank]) for note in (queue.claims, queue.assigned) for rank in ranks]
    return found + [index for index in notes if index >= 0]


def clear_prefetch(arena: Arena) -> None:
    """Take out all prefetched minibatches, so that none of them is drawn any more."""
    prefetch = arena.queue.prefetch
    with arena.queue_lock:
        prefetch[0] = prefetch[1]
        arena.queue.returned[0] = 0


def _take(queue: WorkQueue, note: Integers, rank: int, plan: EpochPlan) -> Minibatch | None:
    """Note the next minibatch for `rank` in the table `note`, then take it out; under the lock."""
    following, returned, prefetch = queue.next_index, queue.returned, queue.prefetch
    if returned[0]:  # minibatches of a dead learner come first
        batch = plan.piece(int(returned[returned[0]]))
        note[rank] = batch.index
        returned[0] -= 1
        return batch
    if prefetch[0] < prefetch[1]:
        batch = plan.piece(int(prefetch[2 + prefetch[0] % PREFETCH]))
        note[rank] = batch.index
        prefetch[0] += 1
        return batch
    while following[0] < queue.stop_round[0] * plan.learners:
        batch = plan.piece(int(following[0]))
        note[rank] = batch.index if batch.frames else NONE
        following[0] += 1
        if batch.frames:
            return batch
    return None


def settle(arena: Arena, rank: int, statistics: Statistics) -> None:
    """Count the minibatch that `rank` has claimed as trained, with its `statistics`, and release the claim."""
    counts, totals = arena.counts, arena.queue.totals
    totals[0, rank] = counts.frames[rank] + statistics.frames
    totals[1, rank] = counts.correct[rank] + statistics.correct
    totals[2, rank] = counts.loss[rank] + statistics.loss
    publish(arena.queue.claims, rank, TRAINED)
    _enter(arena, rank)


def _enter(arena: Arena, rank: int) -> None:
    """Enter the totals of a trained minibatch into the counts of `rank`, and release its claim. The claim is published
    first and last: a reader without a lock (hosts/control/leases.py) sees no new count beside an old claim."""
    counts, totals = arena.counts, arena.queue.totals
    publish(counts.frames, rank, totals[0, rank])
    counts.correct[rank], counts.loss[rank] = totals[1:, rank]
    publish(arena.queue.claims, rank, NONE)


def give_back(arena: Arena, rank: int) -> int:
    """Put back the present and the next minibatch of learner `rank`, which draws no more, unless they are still in the
    queue; count one that it had trained. Return how many were put back."""
    queue, returned, before = arena.queue, arena.queue.returned, int(arena.queue.returned[0])
    with arena.queue_lock:
        if queue.claims[rank] == TRAINED:
            _enter(arena, rank)
        for note in (queue.claims, queue.assigned):
            index = int(note[rank])
            waiting = untrained(arena, ())
            if index >= 0 and index < queue.next_index[0] and index not in waiting:
                returned[0] += 1
                returned[returned[0]] = index
            note[rank] = NONE
        return int(returned[0]) - before
