"""The work queue of somebody else's training loop: passes over data, each drawn from by whoever is ready.

Learners need not be in the same pass: the fast begin the next while the slow end the last. So several are kept, in
slots found by key. The minibatch a learner has drawn last is held for it: should it die, somebody else draws it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.tables import Integers, L, View, table
from roundelay.runtime.procs.memory.views import NONE

Key = tuple[int, int, int]
"""(sampler, epoch, how often that epoch was gone through before)"""
PASS_SLOTS = 64
"""Passes that may be under way."""


@dataclass(frozen=True)
class PassTables(View):
    """Written under the queue lock."""

    keys: Integers = table(PASS_SLOTS, 3)  # The pass in each slot: its key, the first number raised by 1
    next_index: Integers = table(PASS_SLOTS)  # The next minibatch of each
    returned: Integers = table(PASS_SLOTS, lambda of: 1 + of.learners)
    """Number of minibatches of each that are to be drawn again, then which."""
    count: Integers = table(1)  # Passes begun so far
    segment: Integers = table(PASS_SLOTS)  # The segment in which a minibatch of each was asked for last
    held: Integers = table(L, 2)  # Slot and number of the minibatch a learner has drawn last, or NONE twice


def draw(arena: Arena, rank: int, key: Key, pieces: int, segment: int = 0) -> int | None:
    """The number of the next minibatch of pass `key`, which has so many, in that segment; None at its end. What the
    learner drew before counts as trained."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        slot = _slot(tables, key)
        following, returned, held = tables.next_index, tables.returned[slot], tables.held
        tables.segment[slot] = segment
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


@dataclass(frozen=True)
class NewestPass:
    """The pass of a sampler that was begun last."""

    epoch: int
    times: int  # how often that epoch was gone through before
    drawn: int  # minibatches
    segment: int  # in which one was asked for last


def newest(arena: Arena, sampler: int) -> NewestPass | None:
    """The pass of a sampler that was begun last; None: none was."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for number in range(int(tables.count[0]) - 1, max(-1, int(tables.count[0]) - 1 - PASS_SLOTS), -1):
            slot = number % PASS_SLOTS
            first, epoch, times = tables.keys[slot].tolist()
            if first == sampler + 1:
                drawn = int(tables.next_index[slot] - tables.returned[slot, 0])
                return NewestPass(epoch, times, drawn, int(tables.segment[slot]))
    return None


def report(arena: Arena) -> list[tuple[int, int, int, int, int]]:
    """All that `newest` knows, for the arena of another host: of each pass, in the order in which they began, its key,
    the minibatches drawn, and the segment."""
    with arena.queue_lock:
        tables, found = arena.view(PassTables), list[tuple[int, int, int, int, int]]()
        count = int(tables.count[0])
        for slot in (number % PASS_SLOTS for number in range(max(0, count - PASS_SLOTS), count)):
            drawn = int(tables.next_index[slot] - tables.returned[slot, 0])
            found.append((*tables.keys[slot].tolist(), drawn, int(tables.segment[slot])))
        return found


def enter_report(arena: Arena, said: Sequence[Sequence[int]]) -> None:
    """Let `newest` know here what `report` has said elsewhere; nobody draws from this arena."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for slot, (first, epoch, times, drawn, segment) in enumerate(said):
            tables.keys[slot], tables.next_index[slot] = (first, epoch, times), drawn
            tables.returned[slot, 0], tables.segment[slot] = 0, segment
        tables.count[0] = len(said)


def copy_of(arena: Arena) -> list[list[Any]]:
    """Every pass under way: its key, the next minibatch, and those that are to be drawn again."""
    with arena.queue_lock:
        tables, found = arena.view(PassTables), []
        for slot in range(min(PASS_SLOTS, int(tables.count[0]))):
            key, returned = tables.keys[slot].tolist(), tables.returned[slot]
            found.append([[key[0] - 1, *key[1:]], int(tables.next_index[slot]), returned[1 : 1 + returned[0]].tolist()])
        return found


def restore(arena: Arena, passes: Sequence[Sequence[Any]]) -> None:
    """Go on with passes that `copy_of` has found, in an arena in which none has begun."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for key, following, returned in passes:
            slot = _slot(tables, (int(key[0]), int(key[1]), int(key[2])))
            tables.next_index[slot] = following
            tables.returned[slot, 0] = len(returned)
            tables.returned[slot, 1 : 1 + len(returned)] = returned


def give_back(arena: Arena, rank: int) -> None:
    """Under the queue lock: what a dead learner held is for others to draw, unless it died before that was out."""
    tables = arena.view(PassTables)
    slot, index = (int(number) for number in tables.held[rank])
    if index >= 0 and index < tables.next_index[slot]:
        _return(tables.returned[slot], index)
    tables.held[rank] = NONE


def _return(returned: Integers, index: int) -> None:
    """Let a minibatch be drawn again."""
    if index not in returned[1 : 1 + returned[0]] and returned[0] + 1 < len(returned):
        returned[0] += 1
        returned[returned[0]] = index


def take_over(arena: Arena, given: Sequence[tuple[int, Key, int]], lost: Sequence[int]) -> None:
    """Go on where a copy of the tables of another host is, which may lack the last draws: what living learners were
    `given` (rank, pass, minibatch), each in turn, is not drawn again; what `lost` ones held, or was given to nobody who
    lives, is."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for _, key, index in sorted(given, key=lambda one: one[2]):
            slot = _slot(tables, key)
            returned, following = tables.returned[slot], tables.next_index
            for missing in range(int(following[slot]), index):
                _return(returned, missing)
            following[slot] = max(int(following[slot]), index + 1)
            again = [one for one in returned[1 : 1 + returned[0]].tolist() if one != index]
            returned[0] = len(again)
            returned[1 : 1 + len(again)] = again
        for rank, key, index in given:
            tables.held[rank] = _slot(tables, key), index
        for rank in lost:
            give_back(arena, rank)
