"""The parameters of a module that a group of processes has sharded, as this process has them: its own parts.

Torch gathers a parameter from its parts before it is used and takes the parts as they are where they lie, so they stay
there: what the module is to show is copied into them. An optimizer steps whatever part a parameter looks at, so for
the moment of an update that is the row.

Legend: P elements of the parts of this process, T parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.parameters import Parameters
from roundelay.runtime.attached.groups import Group, is_sharded, local, look_at, sharded_like


class ShardedParameters(Parameters):
    """The parts of a module's trainable parameters that are in this process."""

    def __init__(self, module: nn.Module, rank: int) -> None:
        super().__init__(module, rank)
        self._shards = [part for part in module.modules() if hasattr(part, "reshard")]
        self.tensors = [local(p) for p in self.all]
        self.rounded = [*self.tensors]  # none is a view of a vector
        self._exact = self.alike = False
        self.count = sum(part.numel() for part in self.tensors)

    def settle(self) -> None:
        for part in self._shards:  # after a forward without a backward the root keeps what it has gathered
            part.reshard()  # type: ignore[operator]
        self.tensors = [local(p) for p in self.all]  # torch pads them at the first forward

    def show(self, views: Sequence[Tensor]) -> None:
        self.settle()
        for part, view in zip(self.tensors, views, strict=True):
            part.copy_(view)

    def shown(self, views: Sequence[Tensor]) -> list[Tensor]:
        return self.tensors

    def gradients(self, which: Sequence[int]) -> dict[int, Tensor]:
        return {number: local(gradient) for number, gradient in super().gradients(which).items()}

    def multiply_gradients(self, views: Sequence[Tensor], numbers: Sequence[int], factor: Tensor) -> None:
        for view, number in zip(views, numbers, strict=True):
            view.mul_(factor)
            gradient = self.all[number].grad
            if gradient is not None:
                local(gradient).mul_(factor)

    @contextmanager
    def updated(self, rows: Sequence[Tensor] | None, gradients: Sequence[Tensor | None]) -> Iterator[None]:
        assert rows is not None, "parts are never stepped where they are"
        own, parts = [p.grad for p in self.all], self.tensors
        for p, row, gradient in zip(self.all, rows, gradients, strict=True):
            look_at(p, row)
            p.grad = None if gradient is None else sharded_like(p, gradient)
        try:
            yield
        finally:
            lost = [gradient is not None and p.grad is None for p, gradient in zip(self.all, gradients, strict=True)]
            for p, kept, part, gone in zip(self.all, own, parts, lost, strict=True):
                look_at(p, part)
                p.grad = None if gone else kept

    def take_state(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            for p, state in optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, Tensor) and not is_sharded(value) and value.shape == local(p).shape != ():
                        state[name] = sharded_like(p, value)


def parameters_of(module: nn.Module, rank: int, group: Group | None) -> Parameters:
    """Return the trainable parameters of a module as this process has them."""
    return (Parameters if group is None or group.whole else ShardedParameters)(module, rank)
