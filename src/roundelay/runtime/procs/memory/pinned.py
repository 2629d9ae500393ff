"""Host memory that GPUs read and write by themselves: copies from and to it make no detour through another buffer."""

import torch
from torch import Tensor

_TRIED: dict[int, bool] = {}
"""By address: did the driver take it?"""


def pinned(vector: Tensor) -> Tensor:
    """Return the same `vector`, its pages registered with CUDA where this process uses it; until `unpin`.

    Where the driver refuses, copies are slower, and nothing else happens.
    """
    at = vector.data_ptr()
    if vector.device.type == "cpu" and _in_use() and at not in _TRIED:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        _TRIED[at] = not int(runtime.cudaHostRegister(at, vector.numel() * vector.element_size(), 0))
        if not _TRIED[at]:
            _forget_error()
    return vector


def unpin(first: int, size: int) -> None:
    """Unregister memory of `size` bytes at address `first`, which is about to be unmapped. The driver goes on copying
    to the pages it knows, whatever is mapped at that address afterwards."""
    for at in [at for at in _TRIED if first <= at < first + size]:
        if _TRIED.pop(at) and _in_use() and int(torch.cuda.cudart().cudaHostUnregister(at)):  # type: ignore[no-untyped-call]
            _forget_error()


def _in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """Clear the last error that CUDA keeps for the next who asks, who would take it for one of its own."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return
