"""Means of all learners between hosts: duties of every way, and the share that a host's own learners have in a mean.

Learners give their vectors in the arena and find the mean there, whichever way it has travelled. A thread of their
host's own process waits until all of them have come to the next mean and hands it to the host's `MeanTransport`, which
sums over all hosts and says that it is complete. Learners know of none of this.

Legend: P parameters, n elements of a vector that goes into a mean, n <= P.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from roundelay.algorithms.averaging import add_shares_
from roundelay.core.codec import Codec
from roundelay.core.flat import CHUNK
from roundelay.runtime.hosts.mean_transports.messages import OfPart
from roundelay.runtime.hosts.transport.wire import Link, LinkError, LinkTimeout
from roundelay.runtime.messages import Dialect
from roundelay.runtime.procs.coordination.means import Means, MemberLost
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.bell import Bell
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import HostMeanSequences

LISTEN_SECONDS = 0.1
"""Interval at which a thread that hears nothing, from a link or a learner, looks whether the part of the segment is
over."""


P = TypeVar("P", bound=OfPart)


class PartOver(Exception):
    """Signal that the part of the segment is over."""


@final
class MeansPart:
    """Part of a segment, as threads that take means see it.

    Args:
        number: a number that no other part has.
        bell: the bell that learners ring.
        dialect: messages of the links for means and mixes.
        also: called during waits; raises an error if they are to end for another reason.
    """

    def __init__(self, number: int, bell: Bell, dialect: Dialect, also: Callable[[], None] = lambda: None) -> None:
        self.number, self.bell, self.dialect, self._also = number, bell, dialect, also
        self.ended = threading.Event()

    def check(self) -> None:
        """Check that the part goes on.

        Raises:
            PartOver: the part is over.
        """
        if self.ended.is_set():
            raise PartOver
        self._also()

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`, which is called again when a learner of this host rings.

        Raises:
            PartOver: the part is over before that.
        """
        heard = self.bell.heard()
        while not ready():
            self.check()
            self.bell.wait(heard, LISTEN_SECONDS)
            heard = self.bell.heard()

    def receive(self, link: Link, kind: type[P], into: Tensor | None = None) -> P:
        """Return the next message of this part, which must be of `kind`; its payload is written `into` that vector.

        Raises:
            PartOver, LinkError: as `receive_any`; also LinkError for a message of another kind.
        """
        message = self.receive_any(link, into)
        if not isinstance(message, kind):
            raise LinkError(f"{link.peer} sent {message.kind!r} where {kind.kind!r} was due")
        return message

    def receive_any(self, link: Link, into: Tensor | None = None) -> OfPart:
        """Return the next message of this part; messages of an earlier part are dropped.

        Raises:
            PartOver: the part is over; or the other end has begun a later one, whose first message stays for that.
            LinkError: the link is closed.
        """
        while True:
            try:
                message = link.hear(self.dialect, LISTEN_SECONDS, None if into is None else as_bytes(into))
            except LinkTimeout:
                self.check()
                continue
            assert isinstance(message, OfPart)
            if message.part == self.number:
                return message
            if message.part > self.number:
                link.unread(message)
                raise PartOver


def as_bytes(vector: Tensor) -> Any:
    """Return the bytes of a vector, as they lie in memory, without a copy."""
    return vector.view(torch.uint8).numpy()


def encoded(codec: Codec, vector: Tensor) -> Tensor:
    """Return the bytes of a vector (P,) coded by `codec`, by which it was decoded before, so nothing is lost."""
    coded = torch.empty(codec.bytes_of(len(vector)), dtype=torch.uint8)
    for x, out in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
        codec.encode(x, out)
    return coded


def decode(codec: Codec, coded: Tensor, vector: Tensor) -> None:
    """Decode the bytes `coded` that came into `vector`; a vector that travels uncoded is there already."""
    if not codec.exact:
        for x, part in zip(torch.split(vector, CHUNK), codec.parts(coded, len(vector)), strict=True):
            codec.decode(part, x)


@final
@dataclass(frozen=True, eq=False)
class LocalMean:
    """A mean of all learners that is under way, as this host has it."""

    number: int  # 1 for the first of a part
    weights: Sequence[float]  # of this host's learners that are in it, in rank order
    vectors: Sequence[Tensor]  # theirs, (P,) each
    mean: Tensor  # where the result belongs, (n,)
    gradient: bool  # are the vectors gradients? They may still be computed, from the last element to the first
    share: "LocalShare"

    def pieces(self, elements: int) -> list[slice]:
        """Return slices that cut the vector into pieces of so many `elements`, from the last to the first, as backward
        goes through it."""
        size = len(self.mean)
        return [slice(at, min(at + elements, size)) for at in reversed(range(0, size, elements))]

    def computed(self, first: int) -> bool:
        """Return True if the vectors of all learners of this host are complete from element `first` on."""
        return self.share.computed(first)

    def add(self, part: Tensor, piece: slice, total: float, afresh: bool = False) -> None:
        """Add this host's learners' elements of a `piece`, as soon as they are computed, to `part`: each by its share
        of the `total` weight of all learners, in rank order. `afresh`: the old values of `part` do not count.

        Raises:
            MemberLost, PartOver: a learner has died, or the part is over, before the elements are computed.
        """
        self.share.until_computed(piece.start)
        shares = [weight / total for weight in self.weights]
        for at in range(0, len(part), CHUNK):  # so much stays in cache
            low, high = piece.start + at, min(piece.start + at + CHUNK, piece.stop)
            if afresh:
                part[at : at + CHUNK].zero_()
            add_shares_(part[at : at + CHUNK], [vector[low:high] for vector in self.vectors], shares)

    def alike_unless(self, weights: Sequence[float]) -> "tuple[LocalMean, float]":
        """Return the mean, and the sum of `weights`, those of all hosts' learners. Where these are all 0, since
        learners with weight are lost, the others weigh alike."""
        if any(weights):
            return self, float(sum(weights))
        return replace(self, weights=[1.0] * len(self.weights)), float(len(weights))

    def complete(self, total: float) -> None:
        """Tell learners that the mean is in its place; `total` is the weight of all learners."""
        self.share.complete(self.number, total)


@final
class LocalShare:
    """The share of this host's learners in means of all learners.

    Args:
        here: the ranks of this host's learners.
        attend: called now and then while they have not all come to the next mean.
        goes_on: True if learners that die are left out.
    """

    def __init__(
        self, arena: Arena, here: Sequence[int], part: MeansPart, attend: Callable[[], None], goes_on: bool
    ) -> None:
        self._arena, self._here, self._part = arena, list(here), part
        self._attend, self._goes_on = attend, goes_on
        self._present = self._here  # in the mean under way
        self._alive = arena.liveness.alive
        self._sequences, self._between = arena.sequences, arena.view(HostMeanSequences)
        self._mean = arena.vector("mean", self._here[0])

    def next(self, number: int) -> LocalMean:
        """Return mean `number` of the part, once all learners of this host have come to it.

        Raises:
            PartOver: the part of the segment is over.
        """
        sequences = self._sequences

        def come() -> bool:
            found = self._have_come(number)
            if not found:
                self._attend()
            return found

        self._part.until(come)
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
        """Return True if all learners that are waited for have come to mean `number`. Note the learners that are
        present; a dead one is present if its vector is complete."""
        sent = self._between.global_sent_seq
        if not self._goes_on:
            return bool((sent[self._here] >= number).all())
        living = [rank for rank in self._here if self._alive[rank]]  # before the numbers are read:
        there = [rank for rank in self._here if sent[rank] >= number]  # those of the dead are final then
        self._present = [rank for rank in there if rank in living or not self._between.ready_from[rank]]
        return bool(living) and {*living} <= {*there}

    @property
    def done(self) -> int:
        """Number of the last mean that is complete."""
        return int(self._between.global_seq[0])

    def total(self, number: int) -> float:
        """Return the weight of all learners in mean `number`, one of the last two."""
        return float(self._between.total[number % 2])

    def last(self, elements: int) -> Tensor:
        """Return the last complete mean, (n,), of so many `elements`."""
        return self._mean[:elements]

    def computed(self, first: int) -> bool:
        """Return True if all vectors of the mean under way are complete from element `first` on.

        Raises:
            MemberLost: a vector never will be, since its learner has died.
        """
        if self._goes_on:
            gone = [rank for rank in self._present if not self._alive[rank]]  # before its number is read
            for rank in gone:
                if self._between.ready_from[rank] > first:
                    raise MemberLost(rank)
        return bool((self._between.ready_from[self._present] <= first).all())

    def until_computed(self, first: int) -> None:
        """Wait until all vectors of the mean under way are complete from element `first` on.

        Raises:
            MemberLost, PartOver: a learner has died, or the part of the segment is over, before that.
        """
        self._part.until(lambda: self.computed(first))

    def complete(self, number: int, total: float) -> None:
        """Tell learners that mean `number` is in its place."""
        self._between.total[number % 2] = total
        publish(self._between.global_seq, 0, number)
        self._part.bell.ring()


class MeanTransport(ABC):
    """One host's part in means of all learners, one after the other, for one part of a segment."""

    @abstractmethod
    def take(self, mean: LocalMean) -> None:
        """Take part in the next mean, and see to it that `mean.complete` is called once it is in its place; that may be
        after this returns.

        Raises:
            PartOver: the part of the segment is over.
            LinkError, TimeoutError: no mean can be taken any more; says why.
        """

    def attend(self) -> None:  # noqa: B027 most have nothing
        """Do what other hosts need of this one while its learners have not come to the next mean, and where they will
        come to no other.

        Raises:
            PartOver, LinkError, TimeoutError: as `take`.
        """

    def threads(self) -> Mapping[str, Callable[[], None]]:
        """Return functions by name, to run beside `take` in threads of their own until the part is over."""
        return {}

    def heard(self, host: int, message: OfPart) -> bool:
        """Handle a message of another host over its link for mixes; return False if it is not for means.

        Raises:
            InvalidMessage: the message makes no sense in the present state.
        """
        return False

    def lost(self, host: int) -> bool:
        """Note that the link for mixes to another host is gone; return False if no more means can be taken."""
        return False

    def close(self) -> None:  # noqa: B027 most have nothing
        """Close: the part of the segment is over, and no learner is in `take`."""
