"""Means between devices by a collective library: by NCCL, where each learner of a host has a GPU of its own; and
process groups of torch.distributed, each an object of its own beside the one of the whole process.

The members of a mean, their weights and their deaths are in the arena's tables, as for means in shared memory; the
library, which would otherwise wait for ever, is called only when all have come. From then on the vector goes bucket by
bucket, from its end, as backward fills it: a gradient's mean is under way while the rest of the gradient is computed,
and that of a vector given before (`Begin`) beside the next gradient. The sums are the library's: equal to rounding, not
to the bit, to those of the other runtimes.

Where other nodes do not wait (hadpsgd), each node has a process group of its own, made at the first mean of a part of a
segment: a node that has lost a member forms again without it in the next part. A vector that is one member's alone, as
the model that a node's first learner hands to the others, is sent by one broadcast, half the bytes of an all-reduce; a
gradient by one all-reduce, and nothing else after it. Results lie in two buffers in turn, for the next gradient may be
taken at the last one.

Legend: P parameters, L learners.
"""

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from typing import Any, Literal, final

import torch
from torch import Tensor, distributed
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    Work,
)

from roundelay.core.errors import UserError
from roundelay.runtime.base import Cluster
from roundelay.runtime.procs.coordination.means import PAUSES, Means, MemberLost
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.device_rows import CONTRIBUTIONS, GRADIENT, MEAN, DeviceVectors
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import Floats
from roundelay.strategies.base import Strategy

Library = Literal["nccl", "gloo"]


@final
@dataclass(frozen=True)
class GroupPlace:
    """The place of one member in a process group."""

    # rank, size: of how many.
    rank: int
    size: int
    address: str  # of this host, where gloo listens
    seconds: float  # after which a call has failed


def _gloo(store: Store, place: GroupPlace) -> Any:
    group = distributed.ProcessGroupGloo
    options = group._Options()  # type: ignore[attr-defined]
    options._devices = [group.create_device(hostname=place.address)]
    options._timeout = timedelta(seconds=place.seconds)
    return group(store, place.rank, place.size, options)


def _nccl(store: Store, place: GroupPlace) -> Any:
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=place.seconds)
    return distributed.ProcessGroupNCCL(store, place.rank, place.size, options)


OPENED: Mapping[Library, Callable[[Store, GroupPlace], Any]] = {"gloo": _gloo, "nccl": _nccl}
"""Makers of process groups, whose ends find each other by a store; by library."""


BUCKET = 25 * 2**18
"""Elements in one call of the library: 25 MiB. Smaller ones begin earlier, but each costs a round through all GPUs."""


@final
@dataclass(frozen=True)
class MeansLibrary:
    """The library wanted for means between devices."""

    # of it; None: NCCL, where each learner has a GPU of its own and nothing is recorded, else nothing but the arena.
    name: Library | None = None
    bucket: int = BUCKET  # elements in one call of it


USUAL_LIBRARY = MeansLibrary()
"""The library that is usual on this machine."""


@dataclass(frozen=True)
class Collectives:
    """The collective library that learner processes are to use: its name, and a folder, where the L processes meet."""

    library: Library
    folder: str
    bucket: int = BUCKET
    nodes: bool = False
    """Each node takes means of its own (`NodeMeans`)."""

    def join(self, rank: int, learners: int, device: torch.device, patience_seconds: float) -> None:
        """Form a process group with all other learners; once in a process. Sockets of the library stay on this host.

        Raises:
            RuntimeError: the library cannot work here, or a learner did not come.
        """
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            self.library,
            store=FileStore(os.path.join(self.folder, "meet"), learners),
            rank=rank,
            world_size=learners,
            timeout=timedelta(seconds=patience_seconds),
            device_id=torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else None,
        )

    def clear(self) -> None:
        """Delete the folder in which the learners met."""
        shutil.rmtree(self.folder, ignore_errors=True)


class DeviceMeans(Means):
    """One learner's part in means, of all learners or of neighbours, whose vectors and results are on devices.

    Args:
        gradient: buffer of the learner's gradients, (P,), on its device.
        bucket: elements in one call of the library; the same for all.
    """

    def __init__(self, arena: Arena, rank: int, patience: Patience, gradient: Tensor, bucket: int = BUCKET) -> None:
        super().__init__(arena, rank, patience)
        self._members = list(range(arena.layout.learners))  # of the mean under way
        self._own = gradient
        self._given = self._own
        self._contribution, self._mean = torch.empty_like(gradient), torch.empty_like(gradient)
        self._bucket = bucket
        self._open = False  # is a mean of all under way?
        self._laid = 0  # from this element on, the given vector is complete
        self._under_way: list[Work | None] = []

    def leave(self) -> None:
        """Leave the process group, as every learner does after the last mean."""
        distributed.destroy_process_group()

    def publish_gradient(self, weight: float, group: Sequence[int]) -> None:
        self._given = self._own
        super().publish_gradient(weight, group)

    def announce_gradient(self, weight: float, group: Sequence[int], at: Tensor) -> Callable[[int], None]:
        """Announce a gradient that is still to be computed; never None, since the mean has a place of its own."""
        self._laid = len(self._own)
        self.publish_gradient(weight, group)
        return self._lay

    def _lay(self, first: int) -> None:
        self._laid = first
        self.advance()

    def _lay_out(self, parity: int, vector: Tensor) -> None:
        self._given = self._contribution
        self._given[: len(vector)].copy_(vector)

    def _announce(self, source: int, weight: float, readers: Sequence[int], group: Sequence[int]) -> None:
        self._under_way, self._open = [], bool(group)
        if source:
            self._laid = 0
        super()._announce(source, weight, readers, group)
        self.advance()

    def advance(self) -> None:
        """Begin to sum the buckets of the mean that are complete, once all members have come. Every member sums the
        same buckets in the same order. Call this repeatedly while a mean is under way."""
        number = int(self._sent[self._rank])
        if not self._open or not bool((self._sent[self._members] >= number).all()):
            return
        weights = self._sequences.weights[number % 2, self._members]  # after: before, one may be of an earlier mean
        if weights.sum() <= 0:
            return
        share = float(weights[self._members.index(self._rank)] / weights.sum())
        ends = range(self._elements, 0, -self._bucket)
        for end in ends[len(self._under_way) :]:
            bucket = slice(max(0, end - self._bucket), end)
            if bucket.start < self._laid:
                return
            part = self._mean[bucket]
            if share:
                torch.mul(self._given[bucket], share, out=part)
            else:
                part.zero_()
            self._under_way.append(self._sum(part, weights))

    def _sum(self, part: Tensor, weights: Floats) -> Work | None:
        """Begin to sum the bucket `part` over all members, whose weights in the mean are `weights`."""
        work: Work | None = distributed.all_reduce(part, async_op=True)
        return work

    def _finish(self, work: Work | None) -> None:
        """Wait until the library has done `work`; None: there was nothing to do."""
        if work is not None:
            work.wait()

    def look(self, _: int) -> None:
        """Call `advance` while a gradient is computed that has no part in the mean under way."""
        self.advance()

    def collect(self, group: Sequence[int]) -> Tensor:
        assert list(group) == self._members
        number = int(self._sent[self._rank])
        self._wait(group, self._sent, "sent", number)
        self.total = float(self._sequences.weights[number % 2, self._members].sum())
        if self.total <= 0:
            raise ValueError("a weighted mean needs a positive total weight")
        self._lay(0)
        for work in self._under_way:
            self._finish(work)
        self._open = False
        publish(self._acked, self._rank, number)
        return self._mean

    def collect_neighbours(self, weights: Sequence[tuple[int, float]]) -> Tensor:
        number = int(self._sent[self._rank])
        readers = self._readers[number % 2]
        self._wait(sorted({*readers, *(rank for rank, _ in weights)} - {self._rank}), self._sent, "sent", number)
        vectors = {rank: torch.empty_like(self._mean) for rank, _ in weights if rank != self._rank}
        transfers = [distributed.P2POp(distributed.isend, self._given, reader) for reader in readers]
        transfers += [distributed.P2POp(distributed.irecv, vector, rank) for rank, vector in vectors.items()]
        for work in distributed.batch_isend_irecv(transfers) if transfers else []:
            work.wait()
        vectors[self._rank] = self._given
        total = sum(weight for _, weight in weights)
        self._mean.zero_()
        for rank, weight in weights:
            self._mean.add_(vectors[rank], alpha=weight / total)
        publish(self._acked, self._rank, number)
        return self._mean


LOOPBACK = "127.0.0.1"
LOST_SECONDS = 5.0
"""Seconds in which a death that a library has noticed is in the tables."""


@final
class NodeMeans(DeviceMeans):
    """One learner's part in means of its node.

    Args:
        gradient: buffer of the learner's gradients, (P,), on its device.
    """

    def __init__(self, arena: Arena, rank: int, patience: Patience, gradient: Tensor, collectives: Collectives) -> None:
        super().__init__(arena, rank, patience, gradient, collectives.bucket)
        self._collectives, self._other = collectives, torch.empty_like(gradient)
        self._group: Any = None  # of the node, once there is one
        self._part = 0

    def begin_part(self, number: int) -> None:
        """Begin part `number` of a segment; no other part has this number, and nodes may have other members in each."""
        self.leave()
        self._part = number

    def leave(self) -> None:
        """Leave the process group of this node's members."""
        held, self._group, idle = [self._group], None, not self._open
        self._under_way, self._open = [], False
        if idle:
            _end(held)
        else:  # a call to which a member does not come ends when its time is up
            threading.Thread(target=_end, args=(held,), daemon=True, name="end of a node's group").start()

    def _announce(self, source: int, weight: float, readers: Sequence[int], group: Sequence[int]) -> None:
        self._members = list(group)
        self._mean, self._other = self._other, self._mean
        super()._announce(source, weight, readers, group)

    def _sum(self, part: Tensor, weights: Floats) -> Work | None:
        givers = weights.nonzero()[0]
        if len(self._members) == 1:
            return None
        group = self._open_group()
        if len(givers) > 1:
            work: Work = group.allreduce([part])
        else:
            options = distributed.BroadcastOptions()
            options.rootRank = int(givers[0])
            work = group.broadcast([part], options)
        return work

    def _open_group(self) -> Any:
        """Return a process group of this node, whose members have all come to its first mean."""
        if self._group is None:
            store = FileStore(os.path.join(self._collectives.folder, "nodes"))
            place = GroupPlace(self._members.index(self._rank), len(self._members), LOOPBACK, self._patience.seconds)
            own = PrefixStore(f"{self._part}/{self._members[0]}", store)
            self._group = OPENED[self._collectives.library](own, place)
        return self._group

    def _finish(self, work: Work | None) -> None:
        """Wait until the library has done `work`.

        Raises:
            MemberLost: a member of the node died, for which the library would wait for ever.
        """

        def through() -> bool:
            self._check_members()
            return work is None or work.is_completed()

        self._patience.until(through, f"a mean of learners {tuple(self._members)} by a library", PAUSES)
        try:
            super()._finish(work)
        except RuntimeError:  # a connection ends before the tables say which is dead
            deadline = time.monotonic() + LOST_SECONDS
            while time.monotonic() < deadline:
                self._check_members()
                time.sleep(PAUSES[1])
            raise

    def _check_members(self) -> None:
        for rank in self._members:
            if not self._alive[rank]:
                raise MemberLost(rank)


def _end(held: list[Any]) -> None:
    """End the process group in the list `held`, which alone refers to it, and clear the list."""
    if held[0] is not None:
        held[0].abort()
    held.clear()


log = logging.getLogger("roundelay")


def device_of(place: int, device: torch.device) -> torch.device:
    """Return the device of the learner at `place` among those of its host: GPUs are dealt out in turn; with fewer of
    them than learners, some share one."""
    if device == torch.device("cuda"):  # any
        return torch.device("cuda", place % torch.cuda.device_count())
    return device


def reach_each_other(devices: Iterable[torch.device]) -> bool:
    """Return True if all `devices` can read and write each other's memory."""
    numbers = {device.index for device in devices if device.type == "cuda"}
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in permutations(numbers, 2))


def rows_may_leave(strategy: Strategy, alone: bool) -> bool:
    """Return True if rows can be on devices while others write them: on one of several hosts only those of a strategy
    whose exchanges take nothing but two learners' rows.

    Args:
        alone: True if there is one host.
    """
    traits = strategy.traits
    return not traits.synchronous and (alone or (traits.model == "mean" and not strategy.memory))


def rows_on_devices(
    cluster: Cluster, layout: Layout, device: torch.device | None, here: Sequence[int]
) -> DeviceVectors | None:
    """Return rows in the memory of devices, if others write a learner's row and these devices can reach each other's
    memory.

    Args:
        device: the device that learners compute on.
        here: ranks of this host's learners.

    Raises:
        UserError: the devices have no room for the rows.
    """
    if device is None or not rows_may_leave(cluster.strategy, len(here) == cluster.learners):
        return None
    own = {rank: device_of(place, device) for place, rank in enumerate(here)}
    devices = [own.get(rank) for rank in range(cluster.learners)]
    if not reach_each_other(own.values()):
        return None
    try:
        return DeviceVectors.allocate(
            ("row", *layout.memory), layout.parameters, layout.centre, devices, layout.centre_memory
        )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the GPUs have no room for {cluster.learners} learners of {layout.parameters:,} parameters ({error}). "
            "Use fewer learners or a smaller model."
        ) from error


def shared_for_means(strategy: Strategy) -> tuple[str, ...]:
    """Return the names of the vectors that learners of one host give to means, and of the mean, if they can be on
    devices; () under asynchronous strategies, and where the model is not the mean of rows."""
    traits = strategy.traits
    if not traits.synchronous or traits.model != "mean":
        return ()
    return (GRADIENT, *(CONTRIBUTIONS if strategy.gives_vectors else ()), MEAN)


def means_on_devices(cluster: Cluster, layout: Layout, device: torch.device | None) -> DeviceVectors | None:
    """Allocate, on devices that can reach each other's memory, the vectors that learners of one host give to means, and
    the mean. Return None if they are to be in the arena, as where a device has no room.

    Args:
        device: the device that learners compute on.
    """
    names = shared_for_means(cluster.strategy)
    if device is None or cluster.learners == 1 or not names:
        return None
    devices = [device_of(rank, device) for rank in range(cluster.learners)]
    if not reach_each_other(devices):
        return None
    try:
        return DeviceVectors.allocate(names, layout.parameters, False, devices)
    except torch.OutOfMemoryError as error:
        log.warning("means are taken in the memory of the host, for the GPUs have no room (%s).", error)
        return None


def visible() -> dict[str, str]:
    """Return the environment's variables that number devices; processes that share devices must agree on them."""
    return {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if name in os.environ}


def means_between_devices(
    cluster: Cluster, device: torch.device | None, wanted: MeansLibrary, recorded: bool, rows_there: bool = False
) -> Collectives | None:
    """Return the library by which learners take means: of all, under a synchronous strategy, or of each node. None:
    means are taken in the arena.

    Args:
        device: the device that learners compute on.
        recorded: True if a trace is taken.
        rows_there: True if rows are on devices, where all learners reach them.
    """
    nodes = not cluster.strategy.traits.synchronous and cluster.strategy.node_learners > 1 and rows_there
    if device is None or not (cluster.strategy.traits.synchronous or nodes):
        return None
    own = device.type == "cuda" and 1 < cluster.learners <= torch.cuda.device_count()
    library = wanted.name
    if library is None and own and not recorded and torch.distributed.is_nccl_available():
        library = "nccl"
    if library is None:
        return None
    return Collectives(library, tempfile.mkdtemp(prefix="roundelay-"), wanted.bucket, nodes)
