"""Meetings of synchronous learners: means of a group, and mixes with neighbours.

Both take a vector's value when its learner arrives and are computed when the last one has. Who is waiting is an opaque
`Waiting` of the driver's.

Legend: P parameters.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.effects import Mix

W = TypeVar("W")
Group = tuple[int, ...]


class VirtualMeans(Generic[W]):
    """Means by group; a group may be in one at a time."""

    def __init__(self) -> None:
        self._gatherings: dict[Group, dict[int, tuple[Tensor, float, W]]] = {}  # those that have arrived, by rank
        self._recent: Group = ()
        self._arrived: dict[int, tuple[Tensor, float, W]] = {}

    def arrive(self, rank: int, group: Group, vector: Tensor, weight: float, who: W) -> tuple[Tensor, list[W]] | None:
        """The mean and all that wait for it, in the group's order, if `rank` was the last one missing."""
        if group is not self._recent:  # to look a thousand ranks up by their hash costs more than all the rest
            gathering = self._gatherings.setdefault(group, {})
            self._recent, self._arrived = group, gathering
        arrived = self._arrived
        arrived[rank] = (vector.clone() if vector.numel() else vector, weight, who)  # its value now
        if len(arrived) < len(group):
            return None
        del self._gatherings[group]
        self._recent = ()
        vectors, weights, waiting = zip(*(arrived[member] for member in group), strict=True)
        return weighted_mean(vectors, weights) if vector.numel() else vector, list(waiting)

    def abandon(self, rank: int) -> list[W]:
        """All that wait in a group with `rank`, which will not come; they need not wait any longer."""
        groups = [group for group in self._gatherings if rank in group]
        self._recent = ()
        return [who for group in groups for _, _, who in self._gatherings.pop(group).values()]

    def missing(self) -> dict[Group, list[int]]:
        """Learners that have not arrived, by group."""
        return {group: sorted(set(group) - set(arrived)) for group, arrived in self._gatherings.items()}


@dataclass(slots=True)
class _Contribution:
    """A vector laid out for a Mix, and how many have still to read it."""

    vector: Tensor
    readers: int


class VirtualMixes(Generic[W]):
    """Mixes by the number each learner has asked for so far. Who names whom as a reader is read by it, and by no
    other."""

    def __init__(self, learners: int) -> None:
        self._number = [0] * learners
        self._contributions: dict[tuple[int, int], _Contribution] = {}
        self._there: dict[tuple[int, int], int] = {}  # (reader, number) -> contributions to it
        self._waiting: dict[int, tuple[int, Mix, W]] = {}

    def arrive(self, rank: int, mix: Mix, vector: Tensor, who: W) -> list[tuple[int, Mix, Tensor, W]]:
        """All mixes that are complete now: (rank, what it asked, the mixed vector, who waits). `vector` (P,) is what
        the others receive of the one in `mix`."""
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
            if asked is not None and asked[0] == number and laid_out == len(asked[1].weights):
                found.append(self._complete(reader, *asked))
        return found

    def _complete(self, rank: int, number: int, mix: Mix, who: W) -> tuple[int, Mix, Tensor, W]:
        del self._waiting[rank]
        del self._there[rank, number]
        if not mix.vector.numel():
            return rank, mix, mix.vector, who
        contributions = [self._contributions[other, number] for other, _ in mix.weights]
        mixed = weighted_mean([one.vector for one in contributions], [weight for _, weight in mix.weights])
        for (other, _), contribution in zip(mix.weights, contributions, strict=True):
            contribution.readers -= 1
            if not contribution.readers:
                del self._contributions[other, number]
        return rank, mix, mixed, who

    def missing(self) -> dict[int, int]:
        """The number of the mix each waiting learner waits for."""
        return {rank: number for rank, (number, _, _) in self._waiting.items()}
