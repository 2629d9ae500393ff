"""Meetings of synchronous learners: means of a group, and mixes with neighbours.

Both take a vector's value when its learner arrives and are computed when the last one has. Who is waiting is an opaque
`Waiting` of the driver's. Where learners go on without the dead, a meeting is one of those who had arrived when they
died, and of the living.

Legend: P parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from roundelay.algorithms.averaging import some_weight, weighted_mean
from roundelay.core.effects import Mix

W = TypeVar("W")
Group = tuple[int, ...]


class VirtualMeans(Generic[W]):
    """Means by group; a group may be in one at a time.

    Args:
        gone: learners who are waited for no more.
    """

    def __init__(self, gone: Sequence[int] = ()) -> None:
        self._gatherings: dict[Group, dict[int, tuple[Tensor, float, W]]] = {}  # those that have arrived, by rank
        self._recent: Group = ()
        self._arrived: dict[int, tuple[Tensor, float, W]] = {}
        self._gone = {*gone}

    def leave(self, rank: int) -> list[tuple[Group, Tensor, list[W]]]:
        """Remove learner `rank`, which has died; return the means that were waiting for it alone, as of `arrive`, with
        their groups."""
        self._gone.add(rank)
        found = []
        for group in [group for group in self._gatherings if rank in group]:
            self._recent, self._arrived = group, self._gatherings[group]
            if (complete := self._complete(group)) is not None:
                found.append((group, *complete))
        return found

    def arrive(self, rank: int, group: Group, vector: Tensor, weight: float, who: W) -> tuple[Tensor, list[W]] | None:
        """Return the mean and all that wait for it, in the group's order, if `rank` was the last one missing."""
        if group is not self._recent:  # to look a thousand ranks up by their hash costs more than all the rest
            gathering = self._gatherings.setdefault(group, {})
            self._recent, self._arrived = group, gathering
        arrived = self._arrived
        arrived[rank] = (vector.clone() if vector.numel() else vector, weight, who)  # its value now
        if len(arrived) + len(self._gone) < len(group):  # of ten thousand learners nearly always
            return None
        return self._complete(group)

    def _complete(self, group: Group) -> tuple[Tensor, list[W]] | None:
        """Complete the mean, as of `arrive`, of a group all of which have come."""
        arrived, members = self._arrived, group
        if len(arrived) < len(group):
            if any(member not in arrived and member not in self._gone for member in group):
                return None
            members = tuple(member for member in group if member in arrived)
        del self._gatherings[group]
        self._recent = ()
        vectors, weights, waiting = zip(*(arrived[member] for member in members), strict=True)
        if not vectors[0].numel():
            return vectors[0], list(waiting)
        return weighted_mean(vectors, some_weight(weights) if self._gone else weights), list(waiting)

    def abandon(self, rank: int) -> list[W]:
        """Return all that wait in a group with `rank`, which will not come; they need not wait any longer."""
        groups = [group for group in self._gatherings if rank in group]
        self._recent = ()
        return [who for group in groups for _, _, who in self._gatherings.pop(group).values()]

    def missing(self) -> dict[Group, list[int]]:
        """Return learners that have not arrived, by group."""
        return {group: sorted(set(group) - set(arrived)) for group, arrived in self._gatherings.items()}


@dataclass(slots=True)
class _Contribution:
    """A vector laid out for a Mix, and how many have still to read it."""

    vector: Tensor
    readers: int


class VirtualMixes(Generic[W]):
    """Mixes by the number each learner has asked for so far. Who names whom as a reader is read by it, and by no
    other. Learners who are `gone` are waited for no more."""

    def __init__(self, learners: int, gone: Sequence[int] = ()) -> None:
        self._number = [0] * learners
        self._contributions: dict[tuple[int, int], _Contribution] = {}
        self._there: dict[tuple[int, int], int] = {}  # (reader, number) -> contributions to it
        self._waiting: dict[int, tuple[int, Mix, W]] = {}
        self._gone = {*gone}

    def leave(self, rank: int) -> list[tuple[int, Mix, Tensor, W]]:
        """Remove learner `rank`, which has died; return the mixes that were waiting for it alone, as of `arrive`."""
        self._gone.add(rank)
        self._waiting.pop(rank, None)
        return [
            self._complete(reader, *asked)
            for reader, asked in [*self._waiting.items()]
            if self._there.get((reader, asked[0]), 0) == self._expected(*asked)
        ]

    def arrive(self, rank: int, mix: Mix, vector: Tensor, who: W) -> list[tuple[int, Mix, Tensor, W]]:
        """Return all mixes that are complete now: (rank, what it asked, the mixed vector, who waits). `vector` (P,) is
        what the others receive of the one in `mix`."""
        number = self._number[rank] = self._number[rank] + 1
        counts_itself = any(other == rank for other, _ in mix.weights)
        if vector.numel():
            self._contributions[rank, number] = _Contribution(vector.clone(), len(mix.readers) + counts_itself)
        self._waiting[rank] = (number, mix, who)
        found, there = [], self._there
        for reader in (rank, *mix.readers):
            key = (reader, number)
            there[key] = laid_out = there.get(key, 0) + (reader != rank or counts_itself)
            asked = self._waiting.get(reader)
            if asked is None or asked[0] != number:
                continue
            if laid_out == (self._expected(*asked) if self._gone else len(asked[1].weights)):
                found.append(self._complete(reader, *asked))
        return found

    def _expected(self, number: int, mix: Mix, _: W) -> int:
        """Return contributions to a mix: all, but of those who died before they had come to it."""
        absent = [other for other, _ in mix.weights if other in self._gone and self._number[other] < number]
        return len(mix.weights) - len(absent)

    def _complete(self, rank: int, number: int, mix: Mix, who: W) -> tuple[int, Mix, Tensor, W]:
        del self._waiting[rank]
        del self._there[rank, number]
        if not mix.vector.numel():
            return rank, mix, mix.vector, who
        given = mix.weights
        if self._gone:
            given = tuple(one for one in given if (one[0], number) in self._contributions)
        contributions = [self._contributions[other, number] for other, _ in given]
        mixed = weighted_mean([one.vector for one in contributions], [weight for _, weight in given])
        for (other, _), contribution in zip(given, contributions, strict=True):
            contribution.readers -= 1
            if not contribution.readers:
                del self._contributions[other, number]
        return rank, mix, mixed, who

    def missing(self) -> dict[int, int]:
        """Return the number of the mix each waiting learner waits for."""
        return {rank: number for rank, (number, _, _) in self._waiting.items()}
