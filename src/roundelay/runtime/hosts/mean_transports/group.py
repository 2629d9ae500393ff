"""Means by a process group of torch.distributed: gloo between processors, NCCL between GPUs. They are faster than along
the chain, and equal to rounding, not to the bit, to those of one host. All hosts get the same bits.

Each host sums its own learners' vectors, in rank order, and the library sums over hosts, bucket by bucket, from the end
of the vector, as backward fills it. On a GPU buckets go there and back from the host's memory.

How hosts agree on a communicator, and what becomes of a mean when one is lost, is in agreed.py. A library's call cannot
always be ended: what it still writes goes into a buffer that nobody reads any more.

Legend: P parameters.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, distributed
from torch.distributed import Work

from roundelay.runtime.hosts.mean_transports.agreed import AgreedTransport
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement, CommunicatorBroken
from roundelay.runtime.hosts.mean_transports.base import LocalMean
from roundelay.runtime.hosts.mean_transports.libraries import SealedStore, device_of_means
from roundelay.runtime.hosts.mean_transports.messages import CommunicatorTerms
from roundelay.runtime.procs.coordination.process_groups import OPENED, GroupPlace, Library

GROUP_BUCKET = 2**22
"""Elements in one call of the library: 16 MiB. Smaller ones begin earlier, but each costs a round through all hosts."""


@final
@dataclass(frozen=True)
class GroupOptions:
    """Options of means by a library.

    Attributes:
        library: which.
        address: of this host, at which the library listens.
        seconds: that hosts wait for each other, for a call of the library, and for a mean that has failed.
        bucket: elements in one call; the same for all.
    """

    library: Library
    address: str
    seconds: float
    bucket: int = GROUP_BUCKET


@final
class _Communicator:
    """A process group as hosts have agreed on it, and a vector (P,) on its device, where sums are taken."""

    def __init__(self, terms: CommunicatorTerms, group: Any, parameters: int, device: torch.device) -> None:
        self.terms, self.group, self.idle = terms, group, True
        self.sums = torch.empty(parameters, device=device)

    def all_reduce(self, vector: Tensor) -> Work | None:
        """Begin to make `vector` the sum of all members'; None: there are no others.

        Raises:
            CommunicatorBroken.
        """
        self.idle = False
        with _broken_by_errors():
            return None if self.group is None else self.group.allreduce([vector])

    def broadcast(self, vector: Tensor, source: int) -> Work | None:
        """Begin to make `vector` that of the member at place `source`.

        Raises:
            CommunicatorBroken.
        """
        options = distributed.BroadcastOptions()
        options.rootRank, self.idle = source, False
        with _broken_by_errors():
            return None if self.group is None else self.group.broadcast([vector], options)

    def end(self) -> None:
        """End it. Where it is not `idle`, a call of the library may go on for as long as hosts wait for each other: a
        thread waits for that."""
        held, self.group = [self.group], None
        if self.idle:
            _end(held)
        else:
            threading.Thread(target=_end, args=(held,), daemon=True, name="end of a communicator").start()


def _end(held: list[Any]) -> None:
    """End the process group in the list, which nobody else has."""
    if held[0] is not None:
        held[0].abort()
    held.clear()


@final
class GroupTransport(AgreedTransport[_Communicator]):
    """One host of those that take means by a library.

    Args:
        host: number of this one.
        parameters: P.
    """

    def __init__(self, agreement: CommunicatorAgreement, host: int, parameters: int, options: GroupOptions) -> None:
        super().__init__(agreement, options.library, options.seconds)
        self._host, self._parameters, self._options = host, parameters, options
        self._device = device_of_means(options.library)
        self._staged = torch.empty(
            0 if self._device.type == "cpu" else min(options.bucket, parameters)
        )  # on its way to a GPU

    # The communicator -------------------------------------------------------------------------------------------------

    def _connect(self, terms: CommunicatorTerms) -> _Communicator:
        options = self._options
        place = GroupPlace(terms.members.index(self._host), len(terms.members), options.address, options.seconds)
        group = None
        if place.size > 1:
            try:
                group = OPENED[options.library](SealedStore(self._agreement, terms), place)
            except (RuntimeError, CommunicatorBroken) as error:
                self._agreement.abandon(terms)
                raise CommunicatorBroken(str(error)) from error
        return _Communicator(terms, group, self._parameters, self._device)

    def _pass_on(self, communicator: _Communicator, mean: LocalMean, source: int) -> None:
        newest = communicator.terms.progress[source]
        sums = communicator.sums[: newest.elements]
        if self._progress.done == newest.done:
            sums.copy_(mean.share.last(newest.elements))
        self._finish(communicator, communicator.broadcast(sums, source))
        if self._progress.done < newest.done:
            mean.mean.copy_(sums)

    # A mean -----------------------------------------------------------------------------------------------------------

    def _sum(self, communicator: _Communicator, mean: LocalMean) -> None:
        weights = self._agreement.weights(communicator.terms, mean.number, mean.weights)
        mean, total = mean.alike_unless(weights)
        under_way = deque[tuple[slice, Work | None]]()

        def ready(first: int) -> bool:
            while under_way and _through(under_way[0][1]):
                self._store(communicator, mean, *under_way.popleft())
            return mean.computed(first)

        for piece in mean.pieces(self._options.bucket):
            self._agreement.until(communicator.terms, partial(ready, piece.start), lambda: bool(under_way))
            sums = communicator.sums[piece]
            self._add(mean, sums, piece, total)
            under_way.append((piece, communicator.all_reduce(sums)))
        while under_way:
            self._store(communicator, mean, *under_way.popleft())
        self._complete(mean, total)

    def _add(self, mean: LocalMean, sums: Tensor, piece: slice, total: float) -> None:
        """Make `sums`, of a `piece`, the sum of what this host's learners have there."""
        if self._device.type == "cpu":
            mean.add(sums, piece, total, afresh=True)
        else:
            staged = self._staged[: len(sums)]
            mean.add(staged, piece, total, afresh=True)
            sums.copy_(staged)

    def _store(self, communicator: _Communicator, mean: LocalMean, piece: slice, work: Work | None) -> None:
        self._finish(communicator, work)
        mean.mean[piece].copy_(communicator.sums[piece])

    def _finish(self, communicator: _Communicator, work: Work | None) -> None:
        """Wait for a call of the library.

        Raises:
            CommunicatorBroken, PartOver.
        """
        self._agreement.until(communicator.terms, lambda: _through(work), lambda: True)
        if work is not None:
            with _broken_by_errors():
                work.wait()


def _through(work: Work | None) -> bool:
    return work is None or work.is_completed()


@contextmanager
def _broken_by_errors() -> Iterator[None]:
    """Note, for errors of the library mean, that its communicator is of no more use."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicatorBroken(str(error).partition("\n")[0]) from error
