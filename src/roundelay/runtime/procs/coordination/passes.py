"""The work queue of a user's training loop: passes over data, from which any learner that is ready draws.

Learners need not be in the same pass: the fast begin the next while the slow end the last. So several are kept, in
slots found by key. Minibatches that a learner has drawn and not trained are held for it: should it die, others draw
them.

How many minibatches a pass has need not be known: of data that are read one after the other, the learner that comes to
their end says how many there are, by drawing with that number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from roundelay.runtime.messages import InvalidMessage, Message, Range, Rank
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.views import NONE, Integers, L, View, table

Key = tuple[int, int, int]
"""(sampler, epoch, how often that epoch was gone through before)"""
PASS_SLOTS = 64
"""Passes that may be under way."""
HELD = 32
"""Minibatches that are held for a learner at most; those it has drawn before are forgotten."""
ENDLESS = 1 << 52
"""Number of minibatches in a pass whose end is not known; the next one where it has come to its end."""
Slot = Annotated[int, Range(0, PASS_SLOTS - 1)]


@dataclass(frozen=True)
class PassTables(View):
    """Tables of the passes under way, and of the minibatches that learners hold; written under the queue lock."""

    keys: Integers = table(PASS_SLOTS, 3)  # The pass in each slot: its key, the first number raised by 1
    next_index: Integers = table(PASS_SLOTS)  # The next minibatch of each
    returned: Integers = table(PASS_SLOTS, lambda of: 1 + HELD * of.learners)
    """Number of minibatches of each that are to be drawn again, then which, the first in the pass last."""
    count: Integers = table(1)  # Passes begun so far
    segment: Integers = table(PASS_SLOTS)  # The segment in which a minibatch of each was asked for last
    held: Integers = table(L, HELD, 2)
    """Slots and numbers of minibatches that each learner has drawn and not trained, in turn; then NONE."""


def draw(arena: Arena, rank: int, key: Key, pieces: int, segment: int = 0, keep: int = 0) -> int | None:
    """Return the number of the next minibatch of pass `key`, which has `pieces`, for learner `rank` in segment
    `segment`; None at the end of the pass. Of the minibatches that the learner drew from this pass before, all but the
    last `keep` count as trained, and so do all of earlier passes of the same sampler. 0 `pieces`: draw nothing."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        slot = _slot(tables, key)
        held = _keep(tables, rank, slot, keep)
        if not pieces:
            return None
        tables.segment[slot] = segment
        following, returned = tables.next_index, tables.returned[slot]
        if returned[0] and returned[returned[0]] < pieces:  # minibatches of a dead learner come first
            index = int(returned[returned[0]])
            tables.held[rank, held] = slot, index
            returned[0] -= 1
            return index
        index = int(following[slot])
        if index >= pieces:
            following[slot], returned[0] = ENDLESS, 0  # numbers that others have drawn beyond the end are void
            return None
        tables.held[rank, held] = slot, index
        following[slot] += 1
        return index


def _keep(tables: PassTables, rank: int, slot: int, keep: int) -> int:
    """Let go of minibatches that count as trained when learner `rank` draws from the pass in `slot`; return the place,
    among those it holds, of the next."""
    sampler = tables.keys[slot, 0]
    entries = _entries(tables, rank)
    here = [entry for entry in entries if entry[0] == slot]
    kept = [entry for entry in entries if tables.keys[entry[0], 0] != sampler] + here[max(0, len(here) - keep) :]
    kept = kept[-(HELD - 1) :]
    _hold(tables, rank, kept)
    return len(kept)


def _entries(tables: PassTables, rank: int) -> list[tuple[int, int]]:
    """Return (slot, number) of every minibatch that learner `rank` holds, in the order in which it drew them."""
    return [(of, index) for of, index in tables.held[rank].tolist() if index >= 0]


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
class Pass:
    """A copy of the present state of a pass over data."""

    key: Key
    following: int  # the next minibatch
    again: tuple[int, ...]  # those that are to be drawn again, the first in the pass last
    segment: int  # in which one was asked for last

    @property
    def drawn(self) -> int:
        """Number of minibatches that need not be drawn any more."""
        return self.following - len(self.again)


class Passes(Message):
    """The tables of passes as a message to another host: how many passes have begun; those under way, by slot; and by
    rank the slots and numbers of minibatches that learners hold."""

    count: int
    passes: tuple[tuple[Slot, Pass], ...] = ()
    held: tuple[tuple[Rank, tuple[tuple[Slot, int], ...]], ...] = ()

    def since(self, before: "Passes") -> "Passes":
        """Return the entries that differ from those in `before`."""
        passes, held = {*before.passes}, {*before.held}
        changed = tuple(one for one in self.passes if one not in passes)
        return Passes(self.count, changed, tuple(one for one in self.held if one not in held))


def read(arena: Arena) -> Passes:
    """Return the tables of passes of `arena`, for `enter` on another host."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        count = int(tables.count[0])
        under_way = tuple((slot, _read(tables, slot)) for slot in range(min(PASS_SLOTS, count)))
        held = tuple((rank, tuple(_entries(tables, rank))) for rank in range(len(tables.held)))
        return Passes(count, under_way, held)


def enter(arena: Arena, said: Passes) -> None:
    """Store the tables `said`, which `read` returned on another host: all of them, or nothing.

    Raises:
        InvalidMessage: `said` does not fit the tables of `arena`.
    """
    tables = arena.view(PassTables)
    again = max((len(one.again) for _, one in said.passes), default=0)
    if again >= tables.returned.shape[1] or any(len(entries) > HELD for _, entries in said.held):
        raise InvalidMessage("more minibatches than so many learners can hold")
    with arena.queue_lock:
        for slot, one in said.passes:
            tables.keys[slot] = one.key[0] + 1, *one.key[1:]
            tables.next_index[slot], tables.segment[slot] = one.following, one.segment
            _draw_again(tables.returned[slot], one.again)
        for rank, entries in said.held:
            _hold(tables, rank, entries)
        tables.count[0] = said.count


def _read(tables: PassTables, slot: int) -> Pass:
    first, epoch, times = tables.keys[slot].tolist()
    again = tuple(_again(tables.returned[slot]))
    return Pass((first - 1, epoch, times), int(tables.next_index[slot]), again, int(tables.segment[slot]))


def newest(arena: Arena, sampler: int) -> Pass | None:
    """Return the pass of a sampler that was begun last; None if no pass was begun."""
    said = read(arena)
    under_way = dict(said.passes)
    for number in range(said.count - 1, max(-1, said.count - 1 - PASS_SLOTS), -1):
        if under_way[number % PASS_SLOTS].key[0] == sampler:
            return under_way[number % PASS_SLOTS]
    return None


def copy_of(arena: Arena) -> list[list[Any]]:
    """Return every pass under way, for a save: its key, its next minibatch, and the minibatches to be drawn again."""
    return [[list(one.key), one.following, list(one.again)] for _, one in read(arena).passes]


def restore(arena: Arena, passes: Sequence[Sequence[Any]]) -> None:
    """Go on with `passes`, which `copy_of` returned, in an arena in which no pass has begun."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for key, following, returned in passes:
            slot = _slot(tables, (int(key[0]), int(key[1]), int(key[2])))
            tables.next_index[slot] = following
            _draw_again(tables.returned[slot], returned)


def give_back(arena: Arena, rank: int) -> None:
    """Give back, under the queue lock, minibatches that dead learner `rank` held, for others to draw; one that it had
    not yet taken out of the queue stays there."""
    tables = arena.view(PassTables)
    for slot, index in tables.held[rank].tolist():
        if 0 <= index < tables.next_index[slot]:
            _draw_again(tables.returned[slot], [index, *_again(tables.returned[slot])])
    tables.held[rank] = NONE


def _again(returned: Integers) -> list[int]:
    return returned[1 : 1 + returned[0]].tolist()  # type: ignore[no-any-return]


def _draw_again(returned: Integers, indices: Iterable[int]) -> None:
    """Write into `returned` the minibatches to be drawn again, `indices` and no others: lower numbers first, for data
    may be read in one direction only."""
    ordered = sorted({*indices}, reverse=True)[1 - len(returned) :]
    returned[1 : 1 + len(ordered)] = ordered
    returned[0] = len(ordered)


def take_over(arena: Arena, given: Sequence[tuple[int, Key, int]], lost: Sequence[int]) -> None:
    """Go on from a copy of the tables of another host, which may lack the last draws: minibatches that living learners
    were `given` (rank, pass, minibatch), each in turn, are not drawn again; those that `lost` ones held, or that no
    living learner was given, are."""
    with arena.queue_lock:
        tables = arena.view(PassTables)
        for _, key, index in sorted(given, key=lambda one: one[2]):
            slot = _slot(tables, key)
            returned, following = tables.returned[slot], int(tables.next_index[slot])
            _draw_again(returned, {*_again(returned), *range(following, index)} - {index})
            tables.next_index[slot] = max(following, index + 1)
        for rank in {rank for rank, _, _ in given}:
            last = [(_slot(tables, key), index) for of, key, index in given if of == rank]
            ahead = int((tables.held[rank, :, 1] >= 0).sum())  # a learner draws as far ahead as it did
            _hold(tables, rank, last[-max(1, ahead) :])
        for rank in lost:
            give_back(arena, rank)
