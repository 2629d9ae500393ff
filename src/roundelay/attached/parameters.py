"""Somebody else's module as one flat vector, without taking it away from its optimizer.

Legend: P trainable parameters, p one of them, B bytes of all buffers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.core.errors import UserError


def device_of(module: nn.Module, rank: int) -> torch.device | None:
    """Where a module is, all of it; None: in the memory of the host.

    Raises:
        UserError: it is on several devices, or on one that attach does not know.
    """
    first, where = "", torch.device("cpu")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if first and tensor.device != where:
            raise UserError(
                f"rank {rank}: {first} is on {where} and {name} on {tensor.device}: attach takes a module that is all "
                "on one device."
            )
        first, where = first or name, tensor.device
    if where.type not in ("cpu", "cuda"):
        raise UserError(f"rank {rank}: {first} is on {where}: attach trains on CPUs and CUDA devices. Move the module.")
    return None if where.type == "cpu" else where


class Parameters:
    """The trainable parameters of a module, in `module.parameters()` order. Frozen ones stay where they are.

    Raises:
        UserError: there is none, or one that cannot be part of a row; names it.
    """

    def __init__(self, module: nn.Module, rank: int) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise UserError(f"rank {rank}: the module has no parameter that requires a gradient: nothing to train.")
        for name, p in named:
            if p.dtype != torch.float32 or p.layout != torch.strided:
                raise UserError(
                    f"rank {rank}: parameter {name} is {p.dtype}, {p.layout}: trainable parameters must be dense "
                    "float32. For less precision in forward and backward use torch.autocast."
                )
        self.all = [p for _, p in named]
        self._names = [name for name, _ in named]
        self.count = sum(p.numel() for p in self.all)
        text = repr([(name, tuple(p.shape)) for name, p in named])
        self.signature = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def flatten(self) -> Tensor:
        """A copy of all values, (P,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.all])

    def views(self, vector: Tensor) -> list[Tensor]:
        """`vector` (P,) cut into the shapes of the parameters."""
        parts = torch.split(vector, [p.numel() for p in self.all])
        return [part.view(p.shape) for part, p in zip(parts, self.all, strict=True)]

    def show(self, views: Sequence[Tensor]) -> None:
        """Make the module look at `views`, which are nobody's copy: what is written there is in the module."""
        for p, view in zip(self.all, views, strict=True):
            p.data = view

    def shows(self, views: Sequence[Tensor]) -> bool:
        """Does it look there?"""
        return all(p.data_ptr() == view.data_ptr() for p, view in zip(self.all, views, strict=True))

    def take_gradients(self, views: Sequence[Tensor]) -> None:
        """Copy the gradients into `views`; zeros where there is none.

        Raises:
            UserError: one is sparse; names its parameter.
        """
        for name, p, view in zip(self._names, self.all, views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad.layout != torch.strided:
                raise UserError(f"the gradient of {name} is sparse: use dense gradients (sparse=False).")
            else:
                view.copy_(p.grad)

    @contextmanager
    def lent(self, gradients: Sequence[Tensor]) -> Iterator[None]:
        """Other gradients, for a moment."""
        own = [p.grad for p in self.all]
        for p, gradient in zip(self.all, gradients, strict=True):
            p.grad = gradient
        try:
            yield
        finally:
            for p, kept in zip(self.all, own, strict=True):
                p.grad = kept


class Buffers:
    """The buffers of a module (running statistics, mostly) as bytes that others can read.

    The rule: buffers are no part of the row; no strategy averages them. Each learner keeps its own while it trains. In
    the model to evaluate, buffers of floating point are the mean over living learners, others are those of the lowest
    living rank.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.bytes = self.pack().numel()

    def pack(self) -> Tensor:
        """All of them, (B,) uint8.

        Raises:
            UserError: they were not as large when the session began.
        """
        parts = [_bytes(buffer).cpu() for buffer in self._module.buffers()]
        packed = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        if packed.numel() != getattr(self, "bytes", packed.numel()):
            raise UserError(
                f"the module's buffers take {packed.numel()} bytes, and took {self.bytes} when it was attached: attach "
                "a module whose buffers keep their sizes."
            )
        return packed

    def unpack(self, packed: Tensor) -> None:
        """Copy (B,) back into the module."""
        offset = 0
        with torch.no_grad():
            for buffer in self._module.buffers():
                size = buffer.numel() * buffer.element_size()
                buffer.copy_(_values(packed[offset : offset + size], buffer))
                offset += size

    def mean(self, packed: Sequence[Tensor]) -> Tensor:
        """By the rule, of what the living have packed, (B,) each, by rank."""
        means, offset = [], 0
        for buffer in self._module.buffers():
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
