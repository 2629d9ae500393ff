"""The work queue of somebody else's training loop: passes over data, each drawn from by whoever is ready.

Learners need not be in the same pass: the fast begin the next while the slow end the last. So several are kept, in
slots found by key. What a learner has drawn and not trained is held for it: should it die, others draw it.

How many minibatches a pass has need not be known: of data that are read one after the other, whoever comes to their end
says so, by asking for one of so many.
"""

from collections import deque
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
HELD = 32
"""Minibatches that are held for a learner at most; of those it has drawn before, nobody else hears."""
ENDLESS = 1 << 52
"""Number of minibatches in a pass whose end is not known; the next one where it has come to its end."""


@dataclass(frozen=True)
class PassTables(View):
    """Written under the queue lock."""

    keys: Integers = table(PASS_SLOTS, 3)  # The pass in each slot: its key, the first number raised by 1
    next_index: Integers = table(PASS_SLOTS)  # The next minibatch of each
    returned: Integers = table(PASS_SLOTS, lambda of: 1 + HELD * of.learners)
    """Number of minibatches of each that are to be drawn again, then which, the first in the pass last."""
    count: Integers = table(1)  # Passes begun so far
    segment: Integers = table(PASS_SLOTS)  # The segment in which a minibatch of each was asked for last
    held: Integers = table(L, HELD, 2)
    """Slots and numbers of minibatches that each learner has drawn and not trained, in turn; then NONE."""


def draw(arena: Arena, rank: int, key: Key, pieces: int, segment: int = 0, keep: int = 0) -> int | None:
    """Return the number of the next minibatch of pass `key`, which has so many, in that segment; None at its end. Of
    those that the learner drew from it before all but the last `keep` count as trained, and so do all of earlier passes
    of that sampler. With no `pieces` nothing is drawn."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        slot = _slot(tables, key)
        held = _keep(tables, rank, slot, keep)
        if not pieces:
            return None
        tables.segment[slot] = segment
        following, returned = tables.next_index, tables.returned[slot]
        if returned[0] and returned[returned[0]] < pieces:  # what a dead learner left undone comes first
            index = int(returned[returned[0]])
            tables.held[rank, held] = slot, index
            returned[0] -= 1
            return index
        index = int(following[slot])
        if index >= pieces:
            following[slot], returned[0] = ENDLESS, 0  # what others have drawn beyond the end is nothing
            return None
        tables.held[rank, held] = slot, index
        following[slot] += 1
        return index


def _keep(tables: PassTables, rank: int, slot: int, keep: int) -> int:
    """Let go of what counts as trained when a learner draws from the pass in that slot; the place of the next."""
    sampler = tables.keys[slot, 0]
    entries = [(int(of), int(index)) for of, index in tables.held[rank] if index >= 0]
    here = [entry for entry in entries if entry[0] == slot]
    kept = [entry for entry in entries if tables.keys[entry[0], 0] != sampler] + here[max(0, len(here) - keep) :]
    kept = kept[-(HELD - 1) :]
    _hold(tables, rank, kept)
    return len(kept)


def _hold(tables: PassTables, rank: int, entries: Sequence[tuple[int, int]]) -> None:
    for place, entry in enumerate(entries):
        tables.held[rank, place] = entry
    tables.held[rank, len(entries) :] = NONE


def _slot(tables: PassTables, key: Key) -> int:
    keys, count = tables.keys, tables.count
    wanted = (key[0] + 1, *key[1:])  # no key is all zeros, as an unused slot is
    for slot in range(PASS_SLOTS):
        if tuple(keys[slot]) == wanted:
            return slot
    slot = int(count[0]) % PASS_SLOTS
    count[0] += 1
    tables.held[tables.held[:, :, 0] == slot] = NONE
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
    """Return the pass of a sampler that was begun last; None: none was."""
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
    """Return all that `newest` knows, for the arena of another host: of each pass, in the order in which they began,
    its key, the minibatches drawn, and the segment."""
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
    """Return every pass under way: its key, the next minibatch, and those that are to be drawn again."""
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
            for index in returned:
                _return(tables.returned[slot], index)


def give_back(arena: Arena, rank: int) -> None:
    """Give back, under the queue lock, what a dead learner held, for others to draw, unless it died before that was
    out."""
    tables = arena.view(PassTables)
    for slot, index in tables.held[rank].tolist():
        if 0 <= index < tables.next_index[slot]:
            _return(tables.returned[slot], index)
    tables.held[rank] = NONE


def _return(returned: Integers, index: int) -> None:
    """Let a minibatch be drawn again: those with lower numbers before, for data may be read in one direction only."""
    there = returned[1 : 1 + returned[0]].tolist()
    if index not in there and len(there) + 1 < len(returned):
        returned[1 : 2 + len(there)] = sorted([*there, index], reverse=True)
        returned[0] += 1


def changes(arena: Arena, before: dict[int, list[int]]) -> tuple[list[int], list[int], list[int]]:
    """Return, for `enter_changes`, passes that are not as they were `before`, which is brought up to date: their slots,
    and their numbers; and all that learners hold."""
    with arena.queue_lock:
        tables, slots, numbers, holds = arena.view(PassTables), list[int](), list[int](), list[int]()
        for slot in range(min(PASS_SLOTS, int(tables.count[0]))):
            returned, about = tables.returned[slot], (tables.next_index[slot], tables.segment[slot])
            row = [*tables.keys[slot].tolist(), *map(int, about), *returned[: 1 + returned[0]].tolist()]
            if before.get(slot) != row:
                before[slot] = row
                slots.append(slot)
                numbers += row
        for held in tables.held:
            entries = held[held[:, 1] >= 0]
            holds += [len(entries), *entries.reshape(-1).tolist()]
    return slots, numbers, holds


def enter_changes(arena: Arena, slots: Sequence[int], numbers: Sequence[int], count: int) -> bool:
    """Store what `changes` has found elsewhere, after so many passes have begun: all of it, or nothing. False: it is no
    such thing."""
    tables, left = arena.view(PassTables), deque(numbers)
    most = tables.returned.shape[1] - 1
    try:
        rows = [([left.popleft() for _ in range(5)], _take(left, most)) for _ in slots]
        held = [_take(left, HELD, 2) for _ in tables.held]
    except (IndexError, ValueError):
        return False
    if left or min(numbers, default=0) < 0 or any(of >= PASS_SLOTS for entries in held for of in entries[::2]):
        return False
    with arena.queue_lock:
        for slot, (row, returned) in zip(slots, rows, strict=True):
            tables.keys[slot], tables.next_index[slot], tables.segment[slot] = row[:3], row[3], row[4]
            tables.returned[slot, : 1 + len(returned)] = [len(returned), *returned]
        for rank, entries in enumerate(held):
            _hold(tables, rank, list(zip(entries[::2], entries[1::2], strict=True)))
        tables.count[0] = count
    return True


def _take(numbers: deque[int], most: int, wide: int = 1) -> list[int]:
    """Take a number, at most `most`, and as many items behind it; return these."""
    if not 0 <= (count := numbers.popleft()) <= most:
        raise ValueError
    return [numbers.popleft() for _ in range(count * wide)]


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
        for rank in {rank for rank, _, _ in given}:
            last = [(_slot(tables, key), index) for of, key, index in given if of == rank]
            ahead = int((tables.held[rank, :, 1] >= 0).sum())  # a learner draws as far ahead as it did
            _hold(tables, rank, last[-max(1, ahead) :])
        for rank in lost:
            give_back(arena, rank)
