"""Learners that compute on devices: which is whose, and what of a run on one host is there.

Legend: L learners.
"""

import os
import tempfile
from collections.abc import Iterable
from itertools import permutations

import torch

from roundelay.core.errors import UserError
from roundelay.runtime.base import Cluster
from roundelay.runtime.procs.coordination.collectives import Collectives, MeansLibrary
from roundelay.runtime.procs.memory.arena import Layout
from roundelay.runtime.procs.memory.device_rows import DeviceRows


def device_of(place: int, device: torch.device) -> torch.device:
    """Return the device of the learner at `place` among those of its host: GPUs are dealt out in turn; with fewer of
    them than learners, some share one."""
    if device == torch.device("cuda"):  # any
        return torch.device("cuda", place % torch.cuda.device_count())
    return device


def reach_each_other(devices: Iterable[torch.device]) -> bool:
    """Return True if each of these can read and write each other's memory."""
    numbers = {device.index for device in devices if device.type == "cuda"}
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in permutations(numbers, 2))


def rows_on_devices(cluster: Cluster, layout: Layout, device: torch.device | None) -> DeviceRows | None:
    """Return rows in the memory of devices, if others write a learner's row and these devices can reach each other's
    memory.

    Args:
        device: that learners compute on.

    Raises:
        UserError: there is no room.
    """
    if device is None or cluster.strategy.traits.synchronous:
        return None
    devices = [device_of(rank, device) for rank in range(cluster.learners)]
    if not reach_each_other(devices):
        return None
    try:
        return DeviceRows.allocate(
            ("row", *layout.memory), layout.parameters, layout.centre, devices, layout.centre_memory
        )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the GPUs have no room for {cluster.learners} learners of {layout.parameters:,} parameters ({error}). "
            "Use fewer learners or a smaller model."
        ) from error


def visible() -> dict[str, str]:
    """Return variables that give numbers of devices their meaning: processes that share devices must agree on them."""
    return {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if name in os.environ}


def means_between_devices(
    cluster: Cluster, device: torch.device | None, wanted: MeansLibrary, recorded: bool, rows_there: bool = False
) -> Collectives | None:
    """Return the library by which learners take means, if not in the arena: of all, under a synchronous strategy, or of
    each node.

    Args:
        device: that learners compute on.
        recorded: is a trace taken?
        rows_there: are rows on devices, where all learners reach them?
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
