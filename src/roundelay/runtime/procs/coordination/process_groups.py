"""Process groups of torch.distributed, by library, each an object of its own beside the one of the whole process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, final

from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

Library = Literal["nccl", "gloo"]


@final
@dataclass(frozen=True)
class GroupPlace:
    """The place of one member in a process group.

    Attributes:
        rank, size: of how many.
        address: of this host, where gloo listens.
        seconds: after which a call has failed.
    """

    rank: int
    size: int
    address: str
    seconds: float


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
"""A process group of each library, whose ends find each other by a store."""
