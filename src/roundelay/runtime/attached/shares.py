"""Samplers of several learners share out one set of data in one order, so all must be made alike. The arguments
of each can be read by all, and are compared as soon as two learners have given theirs, and again in meetings. So are
some minibatches of every pass over those that come as they are, whose order is not known beforehand.

Learners make their samplers in the same order, and know them by number. A table has room for a few; a slot is used
again, for the sampler so many later.

L learners that draw the same minibatches do the work of one, L times: a data loader shuffled under the same seed
everywhere, without a sampler that shares the examples out. Fingerprints of the first few inputs, which all can read,
say so (`Inputs`). No alarm where inputs repeat within a learner (a mask, or all examples in every step): then equal
ones say nothing.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Integers, L, View, table

log = logging.getLogger("roundelay")

SHARE_SLOTS = 16
COMPARED = (0, 1, 4, 16, 64, 256, 1024, 4096)
"""Numbers of minibatches in a pass that are compared between learners."""
STATED, FOUND, COUNT, FINGERPRINTS = range(4)
"""Columns of what is known of a pass: its length if it has one, minibatches found, those that it had in the end, and
the first of `COMPARED`."""
PASSES = 8
"""Passes whose minibatches a learner lets others compare, the last ones."""
UNSEEN, ANY = 0, -1
"""Fingerprints of a first minibatch: not known yet, and not compared."""


@dataclass(frozen=True)
class ShareTerms:
    """The arguments of a sampler; all 0 for one that shares out minibatches as they come."""

    examples: int = 0
    batch_size: int = 0
    seed: int = 0
    shuffle: int = 0
    drop_last: int = 0
    first: int = ANY  # fingerprint of the first minibatch, above 0, or UNSEEN, or ANY

    def words(self, name: str) -> str:
        """Return the argument called `name`, in words."""
        value = getattr(self, name)
        return f"{name}={bool(value) if name in ('shuffle', 'drop_last') else value}"


@dataclass(frozen=True)
class ShareTables(View):
    """Tables in which each learner writes its samplers' terms, publishes their number, and writes facts of passes."""

    PUBLISHED = ("made",)

    terms: Integers = table(L, SHARE_SLOTS, len(fields(ShareTerms)))
    made: Integers = table(L)  # Number of samplers a learner has made
    passes: Integers = table(L, PASSES, 3 + FINGERPRINTS + len(COMPARED))
    """Passes, each by its sampler (0: none) and epoch, with what is known of it (`Shares.note`), and XOR of all."""


class Shares:
    """One learner's samplers, and their comparison with those of the other learners.

    Args:
        joined: learners may join later, with fewer samplers made.
    """

    def __init__(self, tables: ShareTables, rank: int, joined: bool = False) -> None:
        self._tables, self._rank, self._joined = tables, rank, joined
        self._agreed: dict[int, set[int]] = {}  # ranks known to have made a sampler alike, by its number
        self._said = False
        self._begun = 0  # passes
        self._slots: dict[tuple[int, int], int] = {}  # of the last ones, by sampler and epoch
        self._passes_of = Counter[int]()  # by sampler
        self._said_apart: set[int] = set()  # samplers of which it was said that passes differ
        tables.passes[rank] = 0
        publish(tables.made, rank, 0)

    def make(self, number: int, terms: ShareTerms) -> None:
        """Note that this learner makes its sampler `number`, from 1 on."""
        self._tables.terms[self._rank, number % SHARE_SLOTS] = astuple(terms)
        publish(self._tables.made, self._rank, number)
        self._agreed[number] = {self._rank}
        self._agreed.pop(number - SHARE_SLOTS, None)

    def note(self, number: int, epoch: int, what: int, value: int) -> None:
        """Note a fact of a pass over sampler `number`, once known: how many minibatches it has by its length, or had in
        the end, or were found, each plus 1; or the fingerprint, above 0, of one of `COMPARED`. The length comes first.
        The fingerprint of the first minibatch of the first pass is one of the sampler's terms, if it is to be
        compared."""
        mine = self._tables.passes[self._rank]
        if what == STATED:
            slot = self._begun % PASSES
            self._slots = {key: at for key, at in self._slots.items() if at != slot} | {(number, epoch): slot}
            self._begun += 1
            self._passes_of[number] += 1
            mine[slot] = 0
            mine[slot, :2] = number, epoch
        terms = self._tables.terms[self._rank, number % SHARE_SLOTS]
        first = self._passes_of[number] == 1 and number in self._agreed
        if what == FINGERPRINTS and first and terms[FIRST_BATCH] == UNSEEN:
            terms[FIRST_BATCH], value = value, UNSEEN
        if (at := self._slots.get((number, epoch))) is not None:
            mine[at, 2 + what] = value
            mine[at, -1] = np.bitwise_xor.reduce(mine[at, :-1])

    def check(self, number: int, living: Sequence[int]) -> bool:
        """Return True if all of `living` have made sampler `number` as this learner has. Return False if one has not
        made it yet, or has not begun with it.

        Raises:
            UserError: a learner has made it otherwise; names both learners, and the difference.
        """
        agreed = self._agreed.get(number)
        if agreed is None:  # too many came after it
            return True
        for rank in living:
            theirs = None if rank in agreed else self._read(rank, number)
            if theirs is not None and self._compare(number, rank, theirs):
                agreed.add(rank)
        return agreed.issuperset(living)

    def check_all(self, living: Sequence[int]) -> None:
        """Check all samplers as `check` does, in a meeting; warn, once, where learners have made more or fewer.

        Raises:
            UserError: as `check`.
        """
        for number in self._agreed:
            self.check(number, living)
        self.say_passes_apart(living)
        made = {rank: int(self._tables.made[rank]) for rank in living}
        few, many = (which(living, key=made.__getitem__, default=self._rank) for which in (min, max))
        fewer = made and made[few] < made[many] and not (self._joined and made[few])
        if fewer and not self._said:
            self._said = True
            if self._rank == many:
                log.warning(
                    f"rank {many} has made {made[many]} samplers and rank {few} {made[few]}: what a sampler would give "
                    "a learner that has not made it, that learner does not train. Make the same samplers on all."
                )

    def say_passes_apart(self, living: Sequence[int]) -> None:
        """Warn, once a sampler, if a pass of this learner has another minibatch than the same pass of one of `living`,
        as far as both are known."""
        passes = self._tables.passes
        mine = [one for one in passes[self._rank] if one[0] and int(one[0]) not in self._said_apart]
        for rank in living if mine else ():
            theirs = passes[rank].copy()
            theirs = theirs[np.bitwise_xor.reduce(theirs, axis=1) == 0]  # others are being written
            for one in mine:
                for other in theirs[(theirs[:, :2] == one[:2]).all(axis=1)]:
                    self._say_apart(one, rank, other)

    def _say_apart(self, mine: NDArray[Any], rank: int, theirs: NDArray[Any]) -> None:
        number, epoch = int(mine[0]), int(mine[1])
        found = _apart(mine[2:-1], theirs[2:-1])
        if not found or number in self._said_apart:
            return
        self._said_apart.add(number)
        log.warning(
            f"rank {self._rank}: of what it gives to session.share (sampler {number} of this session), epoch {epoch} "
            f"has {found} than on rank {rank}: batches are known by their numbers, so some are trained twice in such a "
            "pass, and others never. Give all learners the same ones, in an order drawn by the epoch, which set_epoch "
            "says, and not by random numbers that the loop draws too (Python's, NumPy's). Where only a random change "
            "of the same examples differs, nothing is wrong."
        )

    def _read(self, rank: int, number: int) -> ShareTerms | None:
        """Return the terms of another's sampler `number`; None if not made yet, or if its slot may be used again."""
        made = self._tables.made
        if made[rank] < number:
            return None
        found = ShareTerms(*self._tables.terms[rank, number % SHARE_SLOTS].tolist())
        return None if made[rank] > number + SHARE_SLOTS - 2 else found

    def _compare(self, number: int, rank: int, theirs: ShareTerms) -> bool:
        """Return True if sampler `number` is as `theirs` of learner `rank`, with nothing more to be compared."""
        mine = ShareTerms(*self._tables.terms[self._rank, number % SHARE_SLOTS].tolist())
        arguments = [field.name for field in fields(mine)][:FIRST_BATCH]
        other = [name for name in arguments if getattr(mine, name) != getattr(theirs, name)]
        if other:
            raise UserError(
                f"rank {self._rank}: its sampler {number} has {', '.join(map(mine.words, other))}, that of rank {rank} "
                f"{', '.join(map(theirs.words, other))}: learners share out the same examples in one order, so make "
                "the same samplers on all, in the same order and with the same arguments. (A seed that differs is for "
                "loaders without session.sampler.)"
            )
        firsts = {mine.first, theirs.first}
        if len(firsts) > 1 and min(firsts) > UNSEEN:
            raise UserError(
                f"rank {self._rank}: what it gives to session.share begins with another batch than what rank {rank} "
                "gives: batches are known by their numbers, so all learners must go through the same ones in the same "
                "order. Shuffle by the same seed on all, and deal nothing out by rank (world_size=1, rank=0)."
            )
        return UNSEEN not in firsts


FIRST_BATCH = len(fields(ShareTerms)) - 1
"""Column of `ShareTerms.first`."""


def _apart(mine: NDArray[Any], theirs: NDArray[Any]) -> str:
    """Return how two passes differ, in words; empty if they do not, as far as is known."""
    other = np.flatnonzero((mine != theirs) & (mine != UNSEEN) & (theirs != UNSEEN))
    batches = other[other >= FINGERPRINTS]
    if len(batches):
        return f"another batch {COMPARED[batches[0] - FINGERPRINTS]}"
    beyond = (one[COUNT] != UNSEEN and two[FOUND] > one[COUNT] for one, two in ((mine, theirs), (theirs, mine)))
    if (STATED in other and not mine[COUNT]) or COUNT in other or any(beyond):
        return "another number of batches"
    return ""


FIRST = 4
"""Number of steps whose inputs are looked at."""


@dataclass(frozen=True)
class InputTables(View):
    """Tables in which each learner writes the fingerprints of its first inputs, and publishes their number."""

    PUBLISHED = ("count",)

    fingerprints: Integers = table(L, FIRST)  # Of each learner's first inputs
    count: Integers = table(L)  # How many of them are known


class Inputs:
    """Fingerprints of one learner's first inputs, and their comparison with those of the others."""

    def __init__(self, tables: InputTables, rank: int) -> None:
        self._seen, self._count, self._rank = tables.fingerprints, tables.count, rank
        self._looked = 0  # learners all of whose fingerprints there were when it looked last
        self._same: Mapping[int, int] = MappingProxyType({})

    @property
    def wanted(self) -> bool:
        """True if the fingerprint of the next step's input is wanted."""
        return bool(self._count[self._rank] < FIRST)

    def note(self, fingerprint: int) -> None:
        """Note the fingerprint of the next step's input."""
        number = int(self._count[self._rank])
        self._seen[self._rank, number] = fingerprint
        publish(self._count, self._rank, number + 1)

    def same_as(self) -> int | None:
        """Return a lower rank that has the same minibatches as this learner; None if no such rank is known yet."""
        return self._found().get(self._rank)

    def look(self) -> None:
        """Compare the inputs of all learners anew, for `different`."""
        if (known := int((self._count >= FIRST).sum())) != self._looked:
            self._looked, self._same = known, self._found()

    def different(self, ranks: Collection[int]) -> int:
        """Return how many different sequences of minibatches `ranks` have, as far as was known at the last look."""
        return len({self._same.get(rank, rank) for rank in ranks}) if self._same else len(ranks)

    def _found(self) -> dict[int, int]:
        """Return, by rank, the lowest rank with the same minibatches, for the ranks that have a lower one."""
        first, found = dict[tuple[int, ...], int](), dict[int, int]()
        for rank, seen in enumerate(self._seen.tolist()):
            if self._count[rank] >= FIRST and len({*seen}) == FIRST and first.setdefault(tuple(seen), rank) < rank:
                found[rank] = first[tuple(seen)]
        return found

    @property
    def settled(self) -> bool:
        """True if `same_as` will never know more than it does."""
        return all(self._count[r] >= FIRST for r in range(self._rank + 1))
