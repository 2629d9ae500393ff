"""Votes: facts beside the weight of a gradient that a mean is taken of.

    given      the module's parameters that had a gradient. A parameter that had one on no learner has none
               in the mean, as it has none in one process: the optimizer leaves it alone, weight decay included
    skip       this learner's gradient overflowed (torch.amp.GradScaler): all skip the update, as one process would
    changed    a fingerprint of parameters that its loop changed by hand since the last step, or 0
    numbers    of its optimizers, as they are for this step (settings.py)

A learner writes these before it takes part in the mean of a round, the others read them when the mean is complete and
these are written too: votes from other hosts come by another way than the mean. A mean that is begun in one round may
be used in the next, while another learner already writes for the one after that: so there are four slots, used in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from roundelay.runtime.attached.settings import NUMBERS, Numbers
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Floats, Integers, L, View, table

VOTE_SLOTS = 4


@dataclass(frozen=True)
class Vote:
    """Vote of one learner, or of several together. `given` has an item for each trainable parameter tensor."""

    given: tuple[bool, ...]
    skip: bool = False
    changed: int = 0


@dataclass(frozen=True)
class VoteTables(View):
    """Tables of votes. A learner writes its own items of a round's slot before it takes part in the mean of that round,
    and publishes in `cast` that it has."""

    PUBLISHED = ("cast",)

    given: Integers = table(VOTE_SLOTS, L, lambda of: max(1, -(-of.tensors // 64)))  # A bit for each parameter tensor
    skip: Integers = table(VOTE_SLOTS, L)  # 1: its gradient overflowed
    changed: Integers = table(VOTE_SLOTS, L)  # A fingerprint of its loop's changes, or 0
    numbers: Floats = table(VOTE_SLOTS, L, NUMBERS, kind=np.float64)  # Those of its optimizers
    cast: Integers = table(L)  # The last round of this segment that a learner has voted in


def cast(arena: Arena, rank: int, round_: int, vote: Vote, numbers: Numbers) -> None:
    """Write this learner's vote of round `round_`, before it takes part in the mean."""
    slot, tables = round_ % VOTE_SLOTS, arena.view(VoteTables)
    words = tables.given[slot, rank]
    words[:] = _packed(vote.given, len(words))
    tables.skip[slot, rank], tables.changed[slot, rank] = vote.skip, vote.changed
    tables.numbers[slot, rank] = numbers
    publish(tables.cast, rank, round_)


@lru_cache(maxsize=64)  # most steps give the same
def _packed(given: tuple[bool, ...], words: int) -> NDArray[np.int64]:
    """Return `given` packed into `words` words, a bit for each parameter."""
    found = np.zeros(words, np.int64)
    packed = np.packbits(np.asarray(given, dtype=bool))
    found.view(np.uint8)[: len(packed)] = packed
    return found


def missing(arena: Arena, ranks: Sequence[int], round_: int) -> list[int]:
    """Return those of `ranks` that have not voted in round `round_` yet, as far as this host has heard."""
    cast_ = arena.view(VoteTables).cast
    return [rank for rank in ranks if cast_[rank] < round_]


def count(arena: Arena, ranks: Sequence[int], round_: int, tensors: int) -> Vote:
    """Return the vote of all `ranks` together, once the mean of round `round_` is complete: `given` by any, `skip` by
    any. `changed` is 0 here; see `changes`."""
    slot, among, tables = round_ % VOTE_SLOTS, list(ranks), arena.view(VoteTables)
    words = np.bitwise_or.reduce(tables.given[slot][among], axis=0)
    return Vote(_unpacked(words.tobytes(), tensors), bool(tables.skip[slot][among].any()))


@lru_cache(maxsize=64)
def _unpacked(words: bytes, tensors: int) -> tuple[bool, ...]:
    return tuple(np.unpackbits(np.frombuffer(words, np.uint8))[:tensors].astype(bool).tolist())


def changes(arena: Arena, ranks: Sequence[int], round_: int) -> dict[int, int]:
    """Return `changed` by rank, of those `ranks` that had a gradient; empty where all are 0."""
    slot, tables = round_ % VOTE_SLOTS, arena.view(VoteTables)
    if not tables.changed[slot].any():
        return {}
    had = tables.given[slot].any(axis=1)
    return {rank: int(tables.changed[slot, rank]) for rank in ranks if had[rank]}


def lowest(arena: Arena, ranks: Sequence[int], round_: int) -> int | None:
    """Return the lowest of `ranks` that had a gradient in round `round_`; None if none had."""
    slot, tables = round_ % VOTE_SLOTS, arena.view(VoteTables)
    return next((rank for rank in ranks if tables.given[slot, rank].any()), None)


def numbers(arena: Arena, rank: int, round_: int) -> Numbers:
    """Return the numbers that learner `rank`'s optimizers had in round `round_`."""
    found: Numbers = arena.view(VoteTables).numbers[round_ % VOTE_SLOTS, rank]
    return found
