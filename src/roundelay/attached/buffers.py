"""The buffers of somebody else's module.

Legend: B bytes of all buffers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError


def cache_names(module: nn.Module) -> set[str]:
    """Return names of buffers of `persistent=False`."""
    return {
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def kept_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the names and buffers that the module's own state dict has: not those of `persistent=False`, which are
    caches (positions, masks) that a module makes anew, of another size where its inputs are longer."""
    caches, kept = cache_names(module), dict[int, tuple[str, Tensor]]()
    for name, one in module.named_buffers(remove_duplicate=False):
        if name not in caches:
            kept.setdefault(id(one), (name, one))
    return list(kept.values())


class Buffers:
    """The buffers of a module (running statistics, mostly) as bytes that others can read, except caches.

    The rule: buffers are no part of the row; no strategy averages them. Each learner keeps its own while it trains. In
    the model to evaluate, buffers of floating point are the mean over living learners, others are those of the lowest
    living rank.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.bytes = self.pack().numel()

    def pack(self) -> Tensor:
        """Return all of them, (B,) uint8.

        Raises:
            UserError: they were not as large when the session began.
        """
        parts = [_bytes(buffer).cpu() for _, buffer in kept_buffers(self._module)]
        packed = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        if packed.numel() != getattr(self, "bytes", packed.numel()):
            raise UserError(
                f"the module's buffers take {packed.numel()} bytes, and took {self.bytes} when it was attached: attach "
                "a module whose buffers keep their sizes, or register caches with persistent=False."
            )
        return packed

    def unpack(self, packed: Tensor) -> None:
        """Copy (B,) back into the module."""
        offset = 0
        with torch.no_grad():
            for _, buffer in kept_buffers(self._module):
                size = buffer.numel() * buffer.element_size()
                buffer.copy_(_values(packed[offset : offset + size], buffer))
                offset += size

    def mean(self, packed: Sequence[Tensor]) -> Tensor:
        """Return the mean by the rule, of the packed buffers of the living, (B,) each, by rank."""
        means, offset = [], 0
        for _, buffer in kept_buffers(self._module):
            end = offset + buffer.numel() * buffer.element_size()
            each = [_values(one[offset:end], buffer) for one in packed]
            if buffer.is_floating_point():
                means.append(_bytes(torch.stack(each).double().mean(0).to(buffer.dtype)))
            elif buffer.is_complex():
                means.append(_bytes(torch.stack(each).to(torch.complex128).mean(0).to(buffer.dtype)))
            else:
                means.append(packed[0][offset:end].clone())
            offset = end
        return torch.cat(means) if means else torch.empty(0, dtype=torch.uint8)


def _bytes(buffer: Tensor) -> Tensor:
    flat: Any = buffer.detach().reshape(-1).clone()
    return torch.view_as_real(flat).reshape(-1).view(torch.uint8) if flat.is_complex() else flat.view(torch.uint8)


def _values(raw: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(raw.clone().view(like.real.dtype).view(-1, 2)).view(like.shape)
    return raw.clone().view(like.dtype).view(like.shape)
