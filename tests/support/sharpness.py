"""Optimizers that hold an optimizer, as published ones are written, and sharpness-aware minimisation in a loop."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
RHO = 0.05


class SharpnessAware(Optimizer):
    """Foret et al. 2021, in the form that is copied most (first_step, second_step). It holds the optimizer that does
    the work as `held_as`."""

    def __init__(self, model: nn.Module, held_as: str = "base_optimizer", **options: Any) -> None:
        self.held_as = held_as
        super().__init__(model.parameters(), {})
        held = torch.optim.SGD(self.param_groups, **options)
        setattr(self, held_as, held)
        self.param_groups = held.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Move all parameters up the slope of the loss."""
        for p in self.param_groups[0]["params"]:
            self.state[p]["before"] = p.data.clone()
            p.add_(p.grad, alpha=RHO)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Move back, and step by the gradient of the point above."""
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["before"]
        getattr(self, self.held_as).step()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take both steps; needs the closure."""
        assert closure is not None, "it needs a closure"
        self.first_step()
        loss = torch.enable_grad()(closure)()
        self.second_step()
        return loss


class Lookahead(Optimizer):
    """Zhang et al. 2019: its own step steps the optimizer that it holds, and averages weights every other time. As
    timm's it has no more of an Optimizer than it needs, and its state is the other's."""

    def __init__(self, held: Optimizer) -> None:
        self._held, self.calls = held, 0
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.param_groups, self.defaults, self.state = held.param_groups, held.defaults, defaultdict(dict)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step of the optimizer that is held, then the own one."""
        self._held.step()
        self.calls += 1
        for p in (p for group in self.param_groups for p in group["params"]):
            slow = self._held.state[p].setdefault("slow", p.detach().clone())
            if self.calls % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


def move(model: nn.Module, sign: int, moves: list[Tensor], way: str) -> None:
    """Move all parameters by hand: up by `moves` (sign 1), or back (-1); `way`: by name, through .data, or exactly."""
    with torch.no_grad():
        for p, by in zip(model.parameters(), moves, strict=True):
            if way == "kept" and sign < 0:
                p.copy_(by)
                continue
            step = RHO * by
            if way == "kept":
                step = RHO * by.clone()
                by.copy_(p)
            (p.data if way == "data" else p).add_(step, alpha=sign)


def sharpness_by_hand(model: nn.Module, optimizer: Optimizer, loss: Loss, x: Tensor, y: Tensor, way: str) -> None:
    """Take one step as in a loop; `way` as in `move`: "named" and "data" return by a difference, which rounds."""
    optimizer.zero_grad()
    torch.autograd.backward(loss(model, x, y))
    moves = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    move(model, 1, moves, way)
    optimizer.zero_grad()
    torch.autograd.backward(loss(model, x, y))
    move(model, -1, moves, way)
    optimizer.step()
