"""The kernel of one_pass.py, in Triton. Imported only where a GPU is used."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from roundelay.algorithms.one_pass import StepNumbers

ELEMENTS = 1024
"""Elements that one program of the kernel updates."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _step(  # type: ignore[no-untyped-def]  # noqa: PLR0913  a kernel takes its numbers one by one
    x_at,
    gradient_at,
    memory_at,
    copy_at,
    size,
    rate,
    momentum,
    weight_decay,
    HEAVY: tl.constexpr,
    NESTEROV: tl.constexpr,
    COPIES: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Update the elements of one program, of vectors of `size`."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    there = at < size
    x = tl.load(x_at + at, mask=there)
    moved = tl.load(gradient_at + at, mask=there) + weight_decay * x
    if HEAVY:
        v = momentum * tl.load(memory_at + at, mask=there) + moved
        tl.store(memory_at + at, v, mask=there)
        moved = moved + momentum * v if NESTEROV else v
    x = x - rate * moved
    tl.store(x_at + at, x, mask=there)
    if COPIES:
        tl.store(copy_at + at, x, mask=there)


def step(x: Tensor, gradient: Tensor, memory: Tensor | None, copy: Tensor | None, numbers: StepNumbers) -> None:
    """Update a row by one step of SGD, and copy it, as `one_pass.Kernel` says."""
    vectors: Any = (x, gradient, x if memory is None else memory, x if copy is None else copy)
    _step[(triton.cdiv(x.numel(), ELEMENTS),)](
        *vectors,
        x.numel(),
        numbers.rate,
        numbers.momentum,
        numbers.weight_decay,
        HEAVY=memory is not None,
        NESTEROV=numbers.nesterov,
        COPIES=copy is not None,
        ELEMENTS=ELEMENTS,
    )
