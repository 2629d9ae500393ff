"""Libraries of torch.distributed that take means between hosts: the store by which they begin, and what they need.

A process group needs a store by which its ends find each other. Ours (`SealedStore`) tells other hosts by the links of
the run, which know who is there: nothing listens for it, and no store of a launcher is believed. What the library then
sends by connections of its own is neither authenticated nor encrypted.
"""

from datetime import timedelta
from typing import Any, final

import torch
from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.mean_transports.agreement import CommunicatorAgreement
from roundelay.runtime.hosts.mean_transports.messages import CommunicatorTerms
from roundelay.runtime.procs.coordination.process_groups import Library


@final
class SealedStore(Store):
    """Store of one communicator; what one member sets, all have."""

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
    """
    Args:
        rank: the first of this host.

    Raises:
        UserError: this torch has not got the library, or this host not what it needs.
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
