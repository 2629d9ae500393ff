"""Columns of a model whose units are phones as hidden Markov models of the chain topology (Povey et al. 2016).

A phone lasts one frame or more. Its first frame has a column of its own and all further ones another, or all of them
one; transitions cost nothing, since every frame has one. A phone may have columns of its own after certain phones (left
biphones); after all others it has those that it has without context. Silence is a phone like others.

Legend: P phones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

FURTHER = "~"
"""Suffix of a phone's name for its second frame and all further ones."""


@dataclass(frozen=True)
class PhoneStates:
    """The kinds of columns of phones: states, context, and pairs with columns of their own."""

    silence: str  # its name
    states: int = 2  # columns of a phone: 2, its first frame and all others, or 1
    pairs: tuple[str, ...] = ()  # `LEFT PHONE`, phones that have columns of their own after another

    def phones(self, spoken: Sequence[str]) -> tuple[str, ...]:
        """Return the P phones: silence, then the others."""
        return (self.silence, *spoken)

    def columns(self, spoken: Sequence[str]) -> tuple[str, ...]:
        """Return the names of all columns: of phones, then of pairs as `LEFT-PHONE`."""
        names = [*self.phones(spoken), *(pair.replace(" ", "-") for pair in self.pairs)]
        return tuple(name + mark for name in names for mark in ("", FURTHER)[: self.states])

    def emitted(self, spoken: Sequence[str]) -> "Emitted":
        """Return the columns as numbers."""
        return Emitted(self, tuple(spoken))


@dataclass(frozen=True)
class Emitted:
    """The columns of phones after others, as numbers."""

    states: PhoneStates
    spoken: tuple[str, ...]

    @cached_property
    def _places(self) -> dict[tuple[str, str], int]:
        phones = self.states.phones(self.spoken)
        pairs = [pair.split(" ") for pair in self.states.pairs]
        alone = {("", phone): place for place, phone in enumerate(phones)}
        return alone | {(left, phone): place for place, (left, phone) in enumerate(pairs, len(phones))}

    def of(self, left: str, phone: str) -> tuple[int, int]:
        """Return the columns of a phone after another, or after none (any name that is no phone): of its first frame,
        and of all further ones."""
        place = self._places.get((left, phone))
        first = self.states.states * (self._places["", phone] if place is None else place)
        return first, first + self.states.states - 1
