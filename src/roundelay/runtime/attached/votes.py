"""Votes: facts beside the weight of a gradient that a mean is taken of.

    given      of which of the module's parameters there was a gradient. A parameter of which nobody had one has none
               in the mean, as it has none in one process: the optimizer leaves it alone, weight decay included
    skip       this learner's gradient overflowed (torch.amp.GradScaler): all skip the update, as one process would
    changed    a fingerprint of parameters that its loop changed by hand since the last step, or 0

A learner writes these before it takes part in the mean of a round, the others read them when the mean is complete. A
mean that is begun in one round may be used in the next, while somebody else already writes for the one after that: so
there are four slots, used in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roundelay.runtime.procs.memory.arena import Arena

SLOTS = 4


@dataclass(frozen=True)
class Vote:
    """Of one learner, or of several together. `given` has an item for each trainable parameter tensor."""

    given: tuple[bool, ...]
    skip: bool = False
    changed: int = 0


def tables(learners: int, tensors: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of what the arena must have, for so many trainable parameter tensors."""
    words = max(1, -(-tensors // 64))
    return ("given", (SLOTS, learners, words)), ("skip", (SLOTS, learners)), ("changed", (SLOTS, learners))


def cast(arena: Arena, rank: int, round_: int, vote: Vote) -> None:
    """Say it, before taking part in the mean."""
    slot = round_ % SLOTS
    packed = np.packbits(np.asarray(vote.given, dtype=bool))
    words = arena.table("given")[slot, rank].view(np.uint8)
    words[:] = 0
    words[: len(packed)] = packed
    arena.table("skip")[slot, rank], arena.table("changed")[slot, rank] = vote.skip, vote.changed


def count(arena: Arena, ranks: Sequence[int], round_: int, tensors: int) -> Vote:
    """The vote of all `ranks`, once the mean of that round is complete: `given` by anybody, `skip` by anybody.
    `changed` is 0 here; see `changes`."""
    slot, among = round_ % SLOTS, list(ranks)
    words = np.bitwise_or.reduce(arena.table("given")[slot][among], axis=0).view(np.uint8)
    given = tuple(bool(bit) for bit in np.unpackbits(words)[:tensors])
    return Vote(given, bool(arena.table("skip")[slot][among].any()))


def changes(arena: Arena, ranks: Sequence[int], round_: int) -> dict[int, int]:
    """`changed` by rank, of those who had a gradient."""
    slot = round_ % SLOTS
    had = arena.table("given")[slot].any(axis=1)
    return {rank: int(arena.table("changed")[slot, rank]) for rank in ranks if had[rank]}
