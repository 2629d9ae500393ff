"""Means of the learners of one node by a collective library, where other nodes do not wait for it (hadpsgd).

Each node has a process group of its own, made at the first mean of a part of a segment: a node that has lost a member
forms again without it in the next part. A vector that is one member's alone, as the model that a node's first learner
hands to the others, is sent by one broadcast, half of what an all-reduce would send; a gradient by one all-reduce, and
nothing else after it. Results lie in two buffers in turn, for the next gradient may be taken at the last one.

Legend: P parameters.
"""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore, PrefixStore, Work  # type: ignore[attr-defined]

from roundelay.runtime.procs.coordination.collectives import Collectives, DeviceMeans
from roundelay.runtime.procs.coordination.means import PAUSES, MemberLost
from roundelay.runtime.procs.coordination.process_groups import OPENED, GroupPlace
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.procs.memory.tables import Floats

LOOPBACK = "127.0.0.1"
LOST_SECONDS = 5.0
"""In which a death is said that a library has noticed."""


@final
class NodeMeans(DeviceMeans):
    """One learner's part in means of its node.

    Args:
        gradient: where the learner has its gradients, (P,), on its device.
    """

    def __init__(self, arena: Arena, rank: int, patience: Patience, gradient: Tensor, collectives: Collectives) -> None:
        super().__init__(arena, rank, patience, gradient, collectives.bucket)
        self._collectives, self._other = collectives, torch.empty_like(gradient)
        self._group: Any = None  # of the node, once there is one
        self._part = 0

    def begin_part(self, number: int) -> None:
        """The nodes of part `number`, which no other part has, are others."""
        self.leave()
        self._part = number

    def leave(self) -> None:
        """No more means with these members."""
        held, self._group, idle = [self._group], None, not self._open
        self._under_way, self._open = [], False
        if idle:
            _end(held)
        else:  # a call that somebody else does not come to ends when its time is up
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
        """The process group of this node, all of which have come to its first mean."""
        if self._group is None:
            store = FileStore(os.path.join(self._collectives.folder, "nodes"))
            place = GroupPlace(self._members.index(self._rank), len(self._members), LOOPBACK, self._patience.seconds)
            own = PrefixStore(f"{self._part}/{self._members[0]}", store)
            self._group = OPENED[self._collectives.library](own, place)
        return self._group

    def _finish(self, work: Work | None) -> None:
        """Wait for the library.

        Raises:
            MemberLost: a member died, for which it would wait in vain.
        """

        def through() -> bool:
            self._check_members()
            return work is None or work.is_completed()

        self._patience.until(through, f"a mean of learners {tuple(self._members)} by a library", PAUSES)
        try:
            super()._finish(work)
        except RuntimeError:  # a connection ends before anybody has said who is dead
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
    """End the process group in the list, which nobody else has."""
    if held[0] is not None:
        held[0].abort()
    held.clear()
