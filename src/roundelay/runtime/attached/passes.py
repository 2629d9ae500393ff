"""The work queue of somebody else's training loop: passes over data, each drawn from by whoever is ready.

Learners need not be in the same pass: the fast begin the next while the slow end the last. So several are kept, in
slots found by key. The minibatch a learner has drawn last is held for it: should it die, somebody else draws it.
"""

from roundelay.runtime.procs.memory.arena import NONE, Arena

Key = tuple[int, int, int]
"""(sampler, epoch, how often that epoch was gone through before)"""
SLOTS = 64
TABLES = ("pass_key", "pass_next", "pass_returned", "pass_count", "held")


def tables(learners: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of what the arena must have."""
    shapes = ((SLOTS, 3), (SLOTS,), (SLOTS, 1 + learners), (1,), (learners, 2))
    return tuple(zip(TABLES, shapes, strict=True))


def draw(arena: Arena, rank: int, key: Key, pieces: int) -> int | None:
    """The number of the next minibatch of pass `key`, which has so many; None at its end. What the learner drew before
    counts as trained."""
    arena.queue_lock.acquire()
    try:
        slot = _slot(arena, key)
        following, returned, held = arena.table("pass_next"), arena.table("pass_returned")[slot], arena.table("held")
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


def _slot(arena: Arena, key: Key) -> int:
    keys, count = arena.table("pass_key"), arena.table("pass_count")
    wanted = (key[0] + 1, *key[1:])  # no key is all zeros, as an unused slot is
    for slot in range(SLOTS):
        if tuple(keys[slot]) == wanted:
            return slot
    slot = int(count[0]) % SLOTS
    count[0] += 1
    keys[slot], arena.table("pass_next")[slot], arena.table("pass_returned")[slot, 0] = wanted, 0, 0
    return slot


def give_back(arena: Arena, rank: int) -> None:
    """Under the queue lock: what a dead learner held is for others to draw, unless it died before that was out."""
    slot, index = (int(number) for number in arena.table("held")[rank])
    returned = arena.table("pass_returned")[slot]
    if index >= 0 and index < arena.table("pass_next")[slot] and index not in returned[1 : 1 + returned[0]]:
        returned[0] += 1
        returned[returned[0]] = index
    arena.table("held")[rank] = NONE
