"""The work queue of somebody else's training loop: passes over data, each drawn from by whoever is ready.

Learners need not be in the same pass: the fast begin the next while the slow end the last. So several are kept, in
slots found by key. The minibatch a learner has drawn last is held for it: should it die, somebody else draws it.
"""

from dataclasses import dataclass

from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.views.view import Integers, Sizes, Table, View
from roundelay.runtime.procs.memory.views.work_queue import NONE

Key = tuple[int, int, int]
"""(sampler, epoch, how often that epoch was gone through before)"""
PASS_SLOTS = 64
"""Passes that may be under way."""


@dataclass(frozen=True)
class PassTables(View):
    """Written under the queue lock."""

    keys: Integers
    """(PASS_SLOTS, 3) The pass in each slot: its key, the first number raised by 1."""
    next_index: Integers
    """(PASS_SLOTS,) The next minibatch of each."""
    returned: Integers
    """(PASS_SLOTS, 1 + L) How many minibatches of each are to be drawn again, then which."""
    count: Integers
    """(1,) Passes begun so far."""
    held: Integers
    """(L, 2) Slot and number of the minibatch a learner has drawn last, or NONE twice."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        return {
            "keys": Table((PASS_SLOTS, 3)),
            "next_index": Table((PASS_SLOTS,)),
            "returned": Table((PASS_SLOTS, 1 + sizes.learners)),
            "count": Table((1,)),
            "held": Table((sizes.learners, 2)),
        }


def draw(arena: Arena, rank: int, key: Key, pieces: int) -> int | None:
    """The number of the next minibatch of pass `key`, which has so many; None at its end. What the learner drew before
    counts as trained."""
    arena.queue_lock.acquire()
    try:
        tables = arena.view(PassTables)
        slot = _slot(tables, key)
        following, returned, held = tables.next_index, tables.returned[slot], tables.held
        if returned[0]:  # what a dead learner left undone comes first
            index = int(returned[returned[0]])
            held[rank] = slot, index
            returned[0] -= 1
            return index
        index = int(following[slot])
        if index >= pieces:
            held[rank] = NONE
            return None
        held[rank] = slot, index
        following[slot] += 1
        return index
    finally:
        arena.queue_lock.release()


def _slot(tables: PassTables, key: Key) -> int:
    keys, count = tables.keys, tables.count
    wanted = (key[0] + 1, *key[1:])  # no key is all zeros, as an unused slot is
    for slot in range(PASS_SLOTS):
        if tuple(keys[slot]) == wanted:
            return slot
    slot = int(count[0]) % PASS_SLOTS
    count[0] += 1
    keys[slot], tables.next_index[slot], tables.returned[slot, 0] = wanted, 0, 0
    return slot


def give_back(arena: Arena, rank: int) -> None:
    """Under the queue lock: what a dead learner held is for others to draw, unless it died before that was out."""
    tables = arena.view(PassTables)
    slot, index = (int(number) for number in tables.held[rank])
    returned = tables.returned[slot]
    if index >= 0 and index < tables.next_index[slot] and index not in returned[1 : 1 + returned[0]]:
        returned[0] += 1
        returned[returned[0]] = index
    tables.held[rank] = NONE
