"""Means of everybody between hosts: duties of every way, and the share that a host's own learners have in a mean.

Learners give their vectors in the arena and find the mean there, however it has travelled. A thread of their host's own
process waits until all of them have come to the next mean and hands it to the host's `MeanTransport`, which sums over
all hosts and says that it is complete. Learners know of none of this.

Legend: P parameters, n elements of a vector that goes into a mean, n <= P.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from roundelay.algorithms.averaging import add_shares_
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.mean_transports.messages import OfPart
from roundelay.runtime.hosts.mean_transports.part import MeansPart
from roundelay.runtime.procs.coordination.means import Means, MemberLost
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import HostMeanSequences


@final
@dataclass(frozen=True, eq=False)
class LocalMean:
    """One mean of everybody under way, as this host has it.

    Attributes:
        number: 1 for the first of a part.
        weights: of this host's learners that are in it, in rank order.
        vectors: theirs, (P,) each.
        mean: where the result belongs, (n,).
        gradient: are the vectors gradients? They may still be computed, from the last element to the first.
    """

    number: int
    weights: Sequence[float]
    vectors: Sequence[Tensor]
    mean: Tensor
    gradient: bool
    share: "LocalShare"

    def pieces(self, elements: int) -> list[slice]:
        """Return the vector cut into pieces of so many elements, from the last to the first, as backward goes through
        it."""
        size = len(self.mean)
        return [slice(at, min(at + elements, size)) for at in reversed(range(0, size, elements))]

    def computed(self, first: int) -> bool:
        """Return True if all vectors are complete from element `first` on."""
        return self.share.computed(first)

    def add(self, part: Tensor, piece: slice, total: float, afresh: bool = False) -> None:
        """Add what this host's learners have in a `piece`, as soon as it is computed, to `part`: each by its share of
        the `total` weight of all learners, in rank order. `afresh`: what was in `part` does not count.

        Raises:
            MemberLost, PartOver.
        """
        self.share.until_computed(piece.start)
        shares = [weight / total for weight in self.weights]
        for at in range(0, len(part), CHUNK):  # so much stays in cache
            low, high = piece.start + at, min(piece.start + at + CHUNK, piece.stop)
            if afresh:
                part[at : at + CHUNK].zero_()
            add_shares_(part[at : at + CHUNK], [vector[low:high] for vector in self.vectors], shares)

    def alike_unless(self, weights: Sequence[float]) -> "tuple[LocalMean, float]":
        """Return the mean, and the weight of all in it, given those of all hosts' learners: where all that weighs
        anything is lost, the others weigh alike."""
        if any(weights):
            return self, float(sum(weights))
        return replace(self, weights=[1.0] * len(self.weights)), float(len(weights))

    def complete(self, total: float) -> None:
        """Complete the mean, which is in its place; `total` is the weight of all learners."""
        self.share.complete(self.number, total)


@final
class LocalShare:
    """The share of this host's learners in means of everybody.

    Args:
        here: their ranks.
        goes_on: those that die are left out.
    """

    def __init__(self, arena: Arena, here: Sequence[int], part: MeansPart, goes_on: bool = False) -> None:
        self._arena, self._here, self._part, self._goes_on = arena, list(here), part, goes_on
        self._present = self._here  # in the mean under way
        self._alive = arena.liveness.alive
        self._sequences, self._between = arena.sequences, arena.view(HostMeanSequences)
        self._mean = arena.vector("mean", self._here[0])

    def next(self, number: int) -> LocalMean:
        """Return mean `number` of the part, once all learners of this host have come to it.

        Raises:
            PartOver.
        """
        sequences = self._sequences
        self._part.until(lambda: self._have_come(number))
        here = self._present
        parity = int(sequences.sent_seq[here[0]]) % 2
        sources = [int(sequences.source[parity, rank]) for rank in here]
        return LocalMean(
            number,
            [float(sequences.weights[parity, rank]) for rank in here],
            [self._arena.vector(Means.SOURCES[source], rank) for source, rank in zip(sources, here, strict=True)],
            self._mean[: int(self._between.elements[parity, here[0]])],
            not any(sources),
            self,
        )

    def _have_come(self, number: int) -> bool:
        """Return True if all who are waited for have come to mean `number`. Who is present is noted; one who has died
        is, if its vector is complete."""
        sent = self._between.global_sent_seq
        if not self._goes_on:
            return bool((sent[self._here] >= number).all())
        living = [rank for rank in self._here if self._alive[rank]]  # before the numbers are read, which are the last
        there = [rank for rank in self._here if sent[rank] >= number]  # of those who are not
        self._present = [rank for rank in there if rank in living or not self._between.ready_from[rank]]
        return bool(living) and {*living} <= {*there}

    @property
    def done(self) -> int:
        """Number of the last mean that is complete."""
        return int(self._between.global_seq[0])

    def total(self, number: int) -> float:
        """Return the weight of all in one of the last two means."""
        return float(self._between.total[number % 2])

    def last(self, elements: int) -> Tensor:
        """Return the mean that is complete, (n,)."""
        return self._mean[:elements]

    def computed(self, first: int) -> bool:
        """Return True if all vectors of the mean under way are complete from element `first` on.

        Raises:
            MemberLost: one never will be, since its learner has died.
        """
        if self._goes_on:
            gone = [rank for rank in self._present if not self._alive[rank]]  # before its number is read
            for rank in gone:
                if self._between.ready_from[rank] > first:
                    raise MemberLost(rank)
        return bool((self._between.ready_from[self._present] <= first).all())

    def until_computed(self, first: int) -> None:
        """Wait until they are.

        Raises:
            MemberLost, PartOver.
        """
        self._part.until(lambda: self.computed(first))

    def complete(self, number: int, total: float) -> None:
        """Tell learners that mean `number` is in its place."""
        self._between.total[number % 2] = total
        publish(self._between.global_seq, 0, number)
        self._part.bell.ring()


class MeanTransport(ABC):
    """One host's part in means of everybody, one after the other, for one part of a segment."""

    @abstractmethod
    def take(self, mean: LocalMean) -> None:
        """Take part in the next mean, and see to it that `mean.complete` is called once it is in its place; that may be
        after this returns.

        Raises:
            PartOver: the part of the segment is over.
            LinkError, TimeoutError: it cannot be taken any more; says why.
        """

    def threads(self) -> Mapping[str, Callable[[], None]]:
        """Work, by name, that goes on beside `take` in threads of its own until the part is over."""
        return {}

    def heard(self, host: int, message: OfPart) -> bool:
        """Take what another host has said over its link for mixes; return False if that is not for this.

        Raises:
            InvalidMessage: it makes no sense here.
        """
        return False

    def lost(self, host: int) -> bool:
        """Note that the link for mixes to another host is gone; return False if no more means can be taken."""
        return False

    def close(self) -> None:  # noqa: B027 most have nothing
        """Close: the part of the segment is over, and no learner is in `take`."""
