"""Host memory that GPUs read and write by themselves: copies from and to it make no detour through another buffer."""

import torch
from torch import Tensor

_TRIED: set[int] = set()


def pinned(vector: Tensor) -> Tensor:
    """The same `vector`, its pages registered with CUDA where this process uses it; for as long as the process lives.

    Where the driver refuses, copies are slower, and nothing else happens.
    """
    at = vector.data_ptr()
    if vector.device.type == "cpu" and _in_use() and at not in _TRIED:
        _TRIED.add(at)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(at, vector.numel() * vector.element_size(), 0)):
            _forget_error()
    return vector


def _in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """CUDA keeps the last error for whoever asks next, who would take it for one of his own."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return
