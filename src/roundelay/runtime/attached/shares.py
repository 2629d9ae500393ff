"""Samplers of several learners share out one set of data in one order, so all must be made alike. What each is made
with can be read by all, and is compared as soon as two have said it, and again in meetings.

Learners make their samplers in the same order, and know them by number. A table has room for a few; a slot is used
again, for the sampler so many later.
"""

import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.tables import Integers, L, View, table

log = logging.getLogger("roundelay")

SHARE_SLOTS = 16
UNSEEN, ANY = 0, -1
"""Fingerprints of a first minibatch: not known yet, and not compared."""


@dataclass(frozen=True)
class ShareTerms:
    """The arguments of a sampler; none for one that shares out minibatches as they come.

    Attributes:
        first: fingerprint of the first minibatch, above 0, or UNSEEN, or ANY.
    """

    examples: int = 0
    batch_size: int = 0
    seed: int = 0
    shuffle: int = 0
    drop_last: int = 0
    first: int = ANY

    def words(self, name: str) -> str:
        """Return one of them, in words."""
        value = getattr(self, name)
        return f"{name}={bool(value) if name in ('shuffle', 'drop_last') else value}"


@dataclass(frozen=True)
class ShareTables(View):
    """Table in which each learner writes the terms of a sampler, and then publishes how many it has."""

    PUBLISHED = ("made",)

    terms: Integers = table(L, SHARE_SLOTS, len(fields(ShareTerms)))
    made: Integers = table(L)  # Number of samplers a learner has made


class Shares:
    """Part of one learner in it.

    Args:
        joined: learners may come later, who have made fewer.
    """

    def __init__(self, tables: ShareTables, rank: int, joined: bool = False) -> None:
        self._tables, self._rank, self._joined = tables, rank, joined
        self._agreed: dict[int, set[int]] = {}  # ranks known to have made a sampler alike, by its number
        self._said = False
        publish(tables.made, rank, 0)

    def make(self, number: int, terms: ShareTerms) -> None:
        """Note that this learner makes its sampler `number`, from 1 on."""
        self._tables.terms[self._rank, number % SHARE_SLOTS] = astuple(terms)
        publish(self._tables.made, self._rank, number)
        self._agreed[number] = {self._rank}
        self._agreed.pop(number - SHARE_SLOTS, None)

    def begin(self, number: int, first: int) -> None:
        """Note the fingerprint of the first minibatch of sampler `number`, which this learner has made."""
        if number in self._agreed:
            self._tables.terms[self._rank, number % SHARE_SLOTS, FIRST_BATCH] = first

    def check(self, number: int, living: Sequence[int]) -> bool:
        """Return True if all of `living` have made sampler `number` as this learner has. False: somebody has not made
        it yet, or has not begun with it.

        Raises:
            UserError: somebody has made it otherwise; names both, and in what.
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
        """Check the same in a meeting for all samplers; and warn, once, where learners have made more or fewer.

        Raises:
            UserError: as `check`.
        """
        for number in self._agreed:
            self.check(number, living)
        made = {rank: int(self._tables.made[rank]) for rank in living}
        few, many = (which(living, key=made.__getitem__, default=self._rank) for which in (min, max))
        fewer = made and made[few] < made[many] and not (self._joined and made[few])
        if fewer and not self._said:
            self._said = True
            if self._rank == many:
                log.warning(
                    "rank %d has made %d samplers and rank %d %d: what a sampler would give a learner that has not "
                    "made it, that learner does not train. Make the same samplers on all.",
                    many,
                    made[many],
                    few,
                    made[few],
                )

    def _read(self, rank: int, number: int) -> ShareTerms | None:
        """Return the terms of another's sampler; None: it is not made yet, or its slot may be used again by now."""
        made = self._tables.made
        if made[rank] < number:
            return None
        found = ShareTerms(*self._tables.terms[rank, number % SHARE_SLOTS].tolist())
        return None if made[rank] > number + SHARE_SLOTS - 2 else found

    def _compare(self, number: int, rank: int, theirs: ShareTerms) -> bool:
        """Return True if there is nothing more to be compared."""
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
