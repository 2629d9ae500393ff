"""Rows in the memory of the devices that learners compute on, mapped by all processes of a host.

Under an asynchronous strategy others read and write a learner's row while it trains. Where learners compute on GPUs,
rows, what optimizers remember of them, and the centre lie there too, so that gradient, update and exchange never cross
to the host. All of it is allocated by the process that leads the learners: theirs may die without a row being lost.
Learners map it (between GPUs: where each can reach each other's memory). Tables and locks stay in the arena.

A lock guards what is in memory, and a device is told what to do long before it does it: so a row's lock is taken when
the device has done what it was told before, the gradient above all, which nobody else should wait for; and given back
when it has done what it was told under the lock.

Legend: P parameters, L learners.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roundelay.runtime.rows import Lock


@dataclass(frozen=True)
class DeviceRows:
    """Vectors (P,) of all learners by name and rank, the centre, and by name what lies beside it. Sent to another
    process it arrives as a view of the same memory (torch.multiprocessing).

    Attributes:
        shared: other processes map them, and have to wait until the device has done what it was told.
    """

    vectors: dict[str, list[Tensor]]
    centre: Tensor | None
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    shared: bool = True

    @classmethod
    def allocate(
        cls,
        names: Sequence[str],
        parameters: int,
        centre: bool,
        devices: Sequence[torch.device],
        beside: Sequence[str] = (),
    ) -> "DeviceRows":
        """Allocate zeros: of these names on each learner's own of the `devices`, (L,), and a centre on the first, with
        vectors `beside` it.

        Raises:
            torch.OutOfMemoryError: a device has no room.
        """

        def vector(device: torch.device) -> Tensor:
            zeros = torch.zeros(parameters, device=device)
            zeros.share_memory_()  # type: ignore[no-untyped-call]
            return zeros

        vectors = {name: [vector(device) for device in devices] for name in names}
        return cls(vectors, vector(devices[0]) if centre else None, {name: vector(devices[0]) for name in beside})

    @property
    def devices(self) -> set[torch.device]:
        """On which they lie."""
        return {row.device for row in self.vectors["row"]}


class DeviceLock(Lock):
    """A row's lock for a process that has its `devices` work on rows."""

    def __init__(self, lock: Lock, devices: Iterable[torch.device]) -> None:
        self._lock = lock
        self._devices = [device for device in devices if device.type == "cuda"]

    def _catch_up(self) -> None:
        """Wait for what this process has told its devices; what others have, goes on."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()

    def acquire(self) -> None:
        self._catch_up()
        self._lock.acquire()

    def try_acquire(self) -> bool:
        self._catch_up()
        return self._lock.try_acquire()

    def release(self) -> None:
        self._catch_up()
        self._lock.release()
