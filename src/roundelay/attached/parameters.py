"""Somebody else's module as one flat vector, without taking it away from its optimizer.

The row is float32, whatever the module's types. A parameter of float32 is a view of the vector the module looks at.
One of bfloat16 or float16 has a rounded copy of its own, and its part of the row is the float32 master that the
optimizer updates (Micikevicius et al. 2018, "Mixed precision training", section 3.1).

Legend: P trainable parameters, T tensors they are in, p one of these.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from roundelay.attached.buffers import kept_buffers
from roundelay.attached.forward import fingerprint
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import local

ROUNDED = (torch.bfloat16, torch.float16)
"""Types of parameters that have a float32 master."""


_gradient_of, _layout_of, _DENSE = attrgetter("grad"), attrgetter("layout"), frozenset([torch.strided])

LISTED_CHARACTERS = 300_000
"""Characters of the longest list that learners show each other; a checksum stands for a longer one."""


def module_facts(module: nn.Module) -> dict[str, list[str]]:
    """Return facts that learners' modules must have in common, in words: every parameter and buffer, and the values of
    those that are not trained, which nobody averages."""
    facts: dict[str, list[str]] = {"parameter of the module": [], "values of frozen parameter": [], "buffer": []}
    for name, p in module.named_parameters():
        facts["parameter of the module"].append(f"{name} {_kind(p)}{'' if p.requires_grad else ', frozen'}")
        if not p.requires_grad:
            values = fingerprint([local(p)], None) or 0
            facts["values of frozen parameter"].append(f"{name}, checksum {values:016x}")
    facts["buffer"] = [f"{name} {_kind(buffer)}" for name, buffer in kept_buffers(module)]
    return {what: _bounded(listed) for what, listed in facts.items()}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _bounded(listed: list[str]) -> list[str]:
    if sum(map(len, listed)) <= LISTED_CHARACTERS:
        return listed
    digest = hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()
    return [f"one of {len(listed)}, of checksum {digest}"]


def device_of(module: nn.Module, rank: int) -> torch.device | None:
    """Return the device that holds the whole module; None: the memory of the host.

    Raises:
        UserError: it is on several devices, or on one that attach does not know, or has parameters without a shape.
    """
    first, where = "", torch.device("cpu")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"rank {rank}: {name} has no shape yet (LazyLinear and the like): call the module once, with inputs of "
                "the shape that they will have, and attach it then."
            )
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
            if p.dtype not in (torch.float32, *ROUNDED) or p.layout != torch.strided:
                raise UserError(
                    f"rank {rank}: parameter {name} is {p.dtype}, {p.layout}: trainable parameters must be dense, and "
                    "float32, bfloat16 or float16, for the row they are averaged in is float32."
                )
        self._rank, self.all = rank, [p for _, p in named]
        self.tensors: list[Tensor] = [*self.all]
        """(T) What holds the values in this process: the parameters, or its parts of them."""
        self.names = [name for name, _ in named]
        self.rounded: list[Tensor | None] = [None if p.dtype == torch.float32 else _contiguous(p) for p in self.all]
        """(T) What the module looks at in place of a float32 view."""
        self._exact = self.alike = all(rounded is None for rounded in self.rounded)
        self._number = {id(p): number for number, p in enumerate(self.all)}
        self.count = sum(p.numel() for p in self.all)

    def settle(self) -> None:
        """Let the module hold these parameters themselves, where a forward has put others in their place."""

    def flatten(self) -> Tensor:
        """Return a copy of all values, (P,) float32."""
        return torch.cat([p.detach().reshape(-1).float() for p in self.tensors])

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return `vector` (P,) cut into the shapes of the parameters."""
        tensors = self.tensors
        parts = torch.split(vector, [p.numel() for p in tensors])
        return [part.view(p.shape) for part, p in zip(parts, tensors, strict=True)]

    def show(self, views: Sequence[Tensor]) -> None:
        """Make the module look at `views`, which are nobody's copy where they are float32: what is written there is in
        the module. Of others it shows them rounded, as they are now."""
        for p, view, rounded in zip(self.all, views, self.rounded, strict=True):
            p.data = view if rounded is None else rounded.copy_(view)

    def shown(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Return (T) The tensors that it looks at after `show(views)`, if nobody has changed that."""
        pairs = zip(views, self.rounded, strict=True)
        return [view if rounded is None else rounded for view, rounded in pairs]

    def gradients(self, which: Sequence[int]) -> dict[int, Tensor]:
        """Return the gradients of the parameters numbered `which`, those that there are, by number. Whether all of them
        lie as views of a vector do, `alike` says afterwards.

        Raises:
            UserError: one is sparse; names its parameter.
        """
        gradients = map(_gradient_of, map(self.all.__getitem__, which))  # in every step: no loop in Python
        found = {number: gradient for number, gradient in zip(which, gradients, strict=True) if gradient is not None}
        if not _DENSE.issuperset(map(_layout_of, found.values())):
            number = next(number for number, gradient in found.items() if gradient.layout is not torch.strided)
            raise UserError(
                f"rank {self._rank}: the gradient of {self.names[number]} is sparse: use dense gradients "
                "(sparse=False), and an optimizer for them."
            )
        self.alike = self._exact and all(map(Tensor.is_contiguous, found.values()))
        return found

    def multiply_gradients(self, views: Sequence[Tensor], numbers: Sequence[int], factor: Tensor) -> None:
        """Scale `views`, taken from the gradients of the parameters so numbered, and these too, where they have the
        range of float32."""
        for view, number in zip(views, numbers, strict=True):
            view.mul_(factor)
            gradient = self.all[number].grad
            if gradient is not None and gradient.dtype != torch.float16:
                gradient.mul_(factor)

    def take_state(self, optimizer: Optimizer) -> None:
        """Give an optimizer's state, which was loaded, the form that it has beside these parameters."""

    def numbers(self, parameters: Iterable[Tensor]) -> list[int]:
        """Return numbers of these among the trainable parameters; others are left out."""
        return [number for number in map(self._number.get, map(id, parameters)) if number is not None]

    @contextmanager
    def updated(self, rows: Sequence[Tensor] | None, gradients: Sequence[Tensor | None]) -> Iterator[None]:
        """Show, for a moment, the row itself, in float32, and these gradients: an optimizer is about to step. Show
        something else afterwards; the own gradients are back then, but where the step has done away with them. Without
        `rows` the parameters, all in float32, stay where they are."""
        own = list(map(_gradient_of, self.all))
        if rows is None:
            deque(map(setattr, self.all, repeat("grad"), gradients), 0)
        else:
            for p, row, gradient in zip(self.all, rows, gradients, strict=True):
                p.grad = None
                p.data = row
                p.grad = gradient
        try:
            yield
        finally:
            lost = [gradient is not None and p.grad is None for p, gradient in zip(self.all, gradients, strict=True)]
            for p, kept, rounded, gone in zip(self.all, own, self.rounded, lost, strict=True):
                p.grad = None
                if rounded is not None:
                    p.data = rounded
                p.grad = None if gone else kept


def _contiguous(p: Tensor) -> Tensor:
    return p.detach().contiguous().clone()
