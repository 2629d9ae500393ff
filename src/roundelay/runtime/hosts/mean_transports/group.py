"""Means by a process group of torch.distributed: gloo between processors, NCCL between GPUs. They are faster than along
the chain, and equal to rounding, not to the bit, to those of one host. All hosts get the same bits.

Each host sums its own learners' vectors, in rank order, and the library sums over hosts, bucket by bucket, from the end
of the vector, as backward fills it. On a GPU buckets go there and back from the host's memory.

How hosts agree on a communicator, and what becomes of a mean when one is lost, is in agreement.py. A library's call
cannot always be ended: it may still write into a buffer that is read no more.

A process group needs a store by which its ends find each other. Ours (`SealedStore`) tells other hosts by the links of
the run, which know who is there: nothing listens for it, and no store of a launcher is believed. What the library then
sends by connections of its own is neither authenticated nor encrypted.

Legend: P parameters.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, distributed
from torch.distributed import Store, Work  # type: ignore[attr-defined]

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.mean_transports.agreement import AgreedTransport, CommunicatorAgreement, CommunicatorBroken
from roundelay.runtime.hosts.mean_transports.base import LocalMean
from roundelay.runtime.hosts.mean_transports.messages import CommunicatorTerms
from roundelay.runtime.procs.coordination.collectives import OPENED, GroupPlace, Library

GROUP_BUCKET = 2**22
"""Elements in one call of the library: 16 MiB. Smaller ones begin earlier, but each costs a round through all hosts."""


@final
@dataclass(frozen=True)
class GroupOptions:
    """Options of means by a library: a process group of torch.distributed."""

    library: Library  # which
    address: str  # of this host, at which the library listens
    seconds: float  # that hosts wait for each other, for a call of the library, and for a mean that has failed
    bucket: int = GROUP_BUCKET  # elements in one call; the same for all


@final
class _Communicator:
    """A process group as hosts have agreed on it, and a vector (P,) on its device, where sums are taken."""

    def __init__(self, terms: CommunicatorTerms, group: Any, parameters: int, device: torch.device) -> None:
        self.terms, self.group, self.idle = terms, group, True
        self.sums = torch.empty(parameters, device=device)

    def all_reduce(self, vector: Tensor) -> Work | None:
        """Begin to replace `vector` by its sum over all members, and return the call; None: there are no other members.

        Raises:
            CommunicatorBroken: the library has failed.
        """
        self.idle = False
        with _broken_by_errors():
            return None if self.group is None else self.group.allreduce([vector])

    def broadcast(self, vector: Tensor, source: int) -> Work | None:
        """Begin to replace `vector` by that of the member at place `source`, and return the call.

        Raises:
            CommunicatorBroken: the library has failed.
        """
        options = distributed.BroadcastOptions()
        options.rootRank, self.idle = source, False
        with _broken_by_errors():
            return None if self.group is None else self.group.broadcast([vector], options)

    def end(self) -> None:
        """End the process group. Where it is not `idle`, a call of the library may go on for as long as hosts wait for
        each other: a thread waits for that."""
        held, self.group = [self.group], None
        if self.idle:
            _end(held)
        else:
            threading.Thread(target=_end, args=(held,), daemon=True, name="end of a communicator").start()


def _end(held: list[Any]) -> None:
    """End the process group that the list `held` has, and nothing else holds."""
    if held[0] is not None:
        held[0].abort()
    held.clear()


@final
class GroupTransport(AgreedTransport[_Communicator]):
    """Transport of means by a library, on one host.

    Args:
        host: number of this host.
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
        """Set `sums` to the weighted sum of elements `piece` of this host's learners."""
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
        """Wait until the call `work` of the library is complete.

        Raises:
            CommunicatorBroken, PartOver: before that.
        """
        self._agreement.until(communicator.terms, lambda: _through(work), lambda: True)
        if work is not None:
            with _broken_by_errors():
                work.wait()


def _through(work: Work | None) -> bool:
    return work is None or work.is_completed()


@contextmanager
def _broken_by_errors() -> Iterator[None]:
    """Raise errors of the library as `CommunicatorBroken`: its communicator is of no more use."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicatorBroken(str(error).partition("\n")[0]) from error


@final
class SealedStore(Store):
    """Store of one communicator, in which all members find the values that any of them sets."""

    def __init__(self, agreement: CommunicatorAgreement, terms: CommunicatorTerms) -> None:
        super().__init__()
        self._agreement, self._terms = agreement, terms

    def set(self, key: str, value: Any) -> None:
        self._agreement.set_key(self._terms, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._agreement.key(self._terms, key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._agreement.key(self._terms, key, None if timeout is None else timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        return all(self._agreement.has_key(self._terms, key) for key in keys)


def device_of_means(library: Library) -> torch.device:
    """Return the device on which a library takes means: its first GPU, or the host's memory."""
    return torch.device("cuda", 0) if library == "nccl" else torch.device("cpu")


def check_library(library: Library, rank: int) -> None:
    """Check that this host can take means by `library`.

    Args:
        rank: the lowest rank of this host, for the error.

    Raises:
        UserError: the installed torch lacks the library, or this host lacks a device for it.
    """
    lacks = ""
    if library == "gloo" and not (distributed.is_available() and distributed.is_gloo_available()):
        lacks = "this torch has no gloo"
    if library == "nccl" and not (distributed.is_available() and distributed.is_nccl_available()):
        lacks = "this torch has no NCCL"
    elif library == "nccl" and not torch.cuda.is_available():
        lacks = "torch finds no GPU on this host"
    if lacks:
        raise UserError(f"rank {rank}: means are to be taken by {library}, but {lacks}. Choose training.means: chain.")
