"""An SGD step and a copy of its result as one kernel on a GPU: the row, its momentum and the gradient are read
once, the row, its momentum and the copy written once.

Torch's own kernel and a copy behind it would read the row a second time. Triton, which comes with torch for CUDA,
compiles the kernel when it is first used and keeps it on disk; where it is missing, or finds no C compiler, nothing
here is used.

Legend: P parameters.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

log = logging.getLogger("roundelay")


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of one step of `algorithms.local_update.Sgd`: rate, momentum, weight decay, and the kind of
    momentum."""

    rate: float
    momentum: float
    nesterov: bool
    weight_decay: float


Kernel = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, StepNumbers], None]
"""`kernel(x, gradient, memory, copy, numbers)`, vectors of (P,) on one GPU: updates `x` and the momentum `memory`, if
there is one, and leaves `x` in `copy`, if there is one."""


def sgd_kernel(device: torch.device) -> Kernel | None:
    """Return the kernel of an SGD step if it runs on `device`; else None."""
    return _tried(device) if device.type == "cuda" else None


@cache
def _tried(device: torch.device) -> Kernel | None:
    try:
        from roundelay.algorithms.one_pass_kernel import step  # noqa: PLC0415  Triton comes with torch for CUDA

        x, gradient, memory, copy = (torch.ones(16, device=device) for _ in range(4))
        step(x, gradient, memory, copy, StepNumbers(0.5, 0.5, False, 0.0))
        works = bool((copy == 0.25).all())
    except Exception as error:  # a compiler fails in many ways
        log.warning("updates on GPUs take another pass over the row: Triton does not run here (%s).", error)
        return None
    return step if works else None
