"""Means between devices by a collective library: by NCCL, where each learner of a host has a GPU of its own.

Who takes part, with which weight, and who has died is said in the arena's tables, as for means in shared memory; only
when all have come is the library called, which would otherwise wait for ever. The sums are the library's: equal to
rounding, not to the bit, to those of the other runtimes.

Legend: P parameters, L learners.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]

from roundelay.runtime.procs.arena import Arena
from roundelay.runtime.procs.means import Means
from roundelay.runtime.procs.patience import Patience

Library = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class Collectives:
    """What a learner process is told of the library: its name, and a folder, where the L processes meet."""

    library: Library
    folder: str

    def join(self, rank: int, learners: int, device: torch.device, patience_seconds: float) -> None:
        """Meet the others; once in a process. Sockets, as far as the library uses any, stay on this host.

        Raises:
            RuntimeError: the library cannot work here, or somebody did not come.
        """
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            self.library, store=FileStore(os.path.join(self.folder, "meet"), learners), rank=rank, world_size=learners,
            timeout=timedelta(seconds=patience_seconds),
            device_id=torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else None,
        )  # fmt: skip

    def clear(self) -> None:
        """Nobody meets there any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


class DeviceMeans(Means):
    """One learner's part in means of all learners, and of neighbours, of vectors on devices. Replies are there, too.

    Args:
        gradient: where the learner has its gradients, (P,), on its device.
    """

    def __init__(self, arena: Arena, rank: int, patience: Patience, gradient: Tensor) -> None:
        super().__init__(arena, rank, patience)
        self._everybody = tuple(range(arena.layout.learners))
        self._own = gradient
        self._given = self._own
        self._letter, self._mean = torch.empty_like(gradient), torch.empty_like(gradient)

    def publish_gradient(self, weight: float, group: Sequence[int]) -> None:
        self._given = self._own
        super().publish_gradient(weight, group)

    def _lay_out(self, parity: int, vector: Tensor) -> None:
        self._given = self._letter.copy_(vector)

    def collect(self, group: Sequence[int]) -> Tensor:
        assert tuple(group) == self._everybody
        number = int(self._published[self._rank])
        self._wait(group, "published", number)
        weights = self._arena.weights[number % 2]
        self.total = float(weights.sum())
        if self.total <= 0:
            raise ValueError("a weighted mean needs a positive total weight")
        own = float(weights[self._rank])
        if own:
            torch.mul(self._given, own / self.total, out=self._mean)
        else:
            self._mean.zero_()
        distributed.all_reduce(self._mean)
        self._reduced[self._rank] = number
        return self._mean

    def collect_neighbours(self, weights: Sequence[tuple[int, float]]) -> Tensor:
        number = int(self._published[self._rank])
        readers = self._readers[number % 2]
        self._wait(sorted({*readers, *(rank for rank, _ in weights)} - {self._rank}), "published", number)
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
        self._reduced[self._rank] = number
        return self._mean
