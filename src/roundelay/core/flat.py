"""A module as one flat vector, and the grid of chunks all vector arithmetic walks over.

Legend: P parameters of the model.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 65_536
"""Elements per chunk: 256 KiB of float32. Two operands and a scratch stay in a core's cache, so a fused update or a
pair average runs at cache speed instead of memory speed. All runtimes walk the same grid, so that a kernel that rounds
the tail of a vector differently rounds the same elements everywhere."""


@dataclass(frozen=True)
class VectorFragment:
    """Part number `number` (from 0) of `of` consecutive, nearly equal parts of a vector."""

    number: int = 0
    of: int = 1

    def within(self, size: int) -> slice:
        """Return the slice of this fragment in a vector of `size` elements; it is empty if there are fewer elements
        than parts."""
        return slice(size * self.number // self.of, size * (self.number + 1) // self.of)


WHOLE = VectorFragment()
"""The fragment that is the whole vector."""


def chunks(size: int, part: int = 0, parts: int = 1) -> Iterator[slice]:
    """Yield the chunks of a vector of `size` elements that fall to `part` of `parts` (contiguous runs of whole
    chunks)."""
    count = -(-size // CHUNK)
    for number in range(count * part // parts, count * (part + 1) // parts):
        yield slice(number * CHUNK, min(size, (number + 1) * CHUNK))


def slices(vector: Tensor) -> list[Tensor]:
    """Return views of a vector's chunks; on an accelerator the whole vector is one chunk, since launching a kernel
    there costs more than a cache saves."""
    if vector.device.type != "cpu" or 0 < vector.numel() <= CHUNK:  # views of short ones are most of a small step
        return [vector]
    return [vector[part] for part in chunks(vector.numel())]


def parameter_count(module: nn.Module) -> int:
    """Return P, the number of trainable parameters of `module`."""
    return sum(p.numel() for p in module.parameters())


def flatten(module: nn.Module) -> Tensor:
    """Return a copy of all parameters as one (P,) float32 vector, in `module.parameters()` order."""
    with torch.no_grad():
        return torch.cat([p.detach().reshape(-1).float() for p in module.parameters()])


def pieces(module: nn.Module, vector: Tensor) -> list[Tensor]:
    """Return views of `vector` (P,), one with the shape of each parameter."""
    return shaped(vector, [p.shape for p in module.parameters()])


def shaped(vector: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return consecutive views of `vector` (P,), one of each shape."""
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != vector.numel():
        raise ValueError(f"the parameters have {sum(sizes)} elements, the vector {vector.numel()}")
    return [part.view(*shape) for part, shape in zip(torch.split(vector, sizes), shapes, strict=True)]


def bind(module: nn.Module, x: Tensor) -> None:
    """Make the module's parameters views of `x` (P,): writing `x` changes the module."""
    for p, piece in zip(module.parameters(), pieces(module, x), strict=True):
        p.data = piece


def load(module: nn.Module, x: Tensor) -> None:
    """Copy `x` (P,) into the module's parameters."""
    offset = 0
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(x[offset : offset + p.numel()].view(p.shape))
            offset += p.numel()
