"""The user's optimizers, stepped by the session alone.

While a session is open, `optimizer.step()` is the session's step: for the loop that keeps it, for a GradScaler, for a
framework. It takes over the step of the object, not of its class, and gives it back in the end; a learning rate
schedule made before or after wraps it as it wraps any other. A step that comes around it, by a reference taken before,
is refused by a hook of the optimizer's own.

With several optimizers a step is complete when all have been asked; each one's gradients are taken when it is asked.
One that is asked again, or a forward of the module, before the others were asked, completes the step without them.

Mixed precision. To a torch.amp.GradScaler the optimizer says that it handles the scale itself, by torch's own protocol
for fused optimizers: it is then asked to step also when a gradient has overflowed (`found_inf`), and unscales by
`grad_scale` if that is not done. So the session hears of a step that is to be skipped.
"""

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.attached.parameters import ROUNDED
from roundelay.core.errors import UserError

SCALING = ("grad_scale", "found_inf")
"""Attributes that a GradScaler sets on the optimizer for the time of its step."""
Ask = Callable[[int, Callable[[], Any] | None], Any]
"""`ask(number, closure)`: the step of the optimizer of that number; the loss, if a closure computes one."""


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that does the work, of one that a framework has wrapped (Accelerate, for example)."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


class Stepper:
    """One optimizer whose `step` asks the session."""

    def __init__(self, optimizer: Optimizer, number: int, ask: Ask, rank: int) -> None:
        self.optimizer, self._number, self._ask, self._rank = optimizer, number, ask, rank
        self._inside = False
        self._original: Callable[..., Any] = optimizer.step
        self._before = dict(vars(optimizer))
        self._asking = _Asking(self)
        self._mine = self._replacement()
        optimizer.step = self._mine  # type: ignore[method-assign]
        vars(optimizer)["_step_supports_amp_scaling"] = True
        self._loading: dict[str, Any] = {}
        self._hooks: list[Any] = []
        if hasattr(optimizer, "register_step_pre_hook"):  # torch's own have it, and whatever is made like them
            self._hooks = [
                optimizer.register_step_pre_hook(self._refuse_others),
                optimizer.register_load_state_dict_pre_hook(self._before_load),
                optimizer.register_load_state_dict_post_hook(self._after_load),
            ]
        for p, state in optimizer.state.items():
            state.update({name: value.float() for name, value in state.items() if _rounded(p, value)})

    def _replacement(self) -> MethodType:
        original, asking = self._original, self._asking

        @functools.wraps(getattr(original, "__func__", original))
        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            stepper = asking.stepper
            return original(*(() if closure is None else (closure,))) if stepper is None else stepper.asked(closure)

        return MethodType(step, self.optimizer)  # a method: schedules look for what is behind one

    def asked(self, closure: Callable[[], Any] | None) -> Any:
        """Somebody has called `optimizer.step`."""
        self.called()
        return self._ask(self._number, closure)

    def called(self) -> None:
        """Marks the optimizer as stepped, for schedules, which warn when they are stepped before it."""
        vars(self.optimizer)["_opt_called"] = True

    def step(self) -> None:
        """The optimizer's own."""
        kept = {name: vars(self.optimizer).pop(name) for name in SCALING if name in vars(self.optimizer)}
        self._inside = True
        try:
            self._original()
        finally:
            self._inside = False
            vars(self.optimizer).update(kept)

    @property
    def overflowed(self) -> bool:
        """True if the GradScaler that asks has found an infinity or NaN among the gradients."""
        found: Tensor | None = getattr(self.optimizer, "found_inf", None)
        return found is not None and bool(found)

    @property
    def unscaling(self) -> Tensor | None:
        """Factor for the gradients; None: they are unscaled already."""
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)
        return None if scale is None else scale.double().reciprocal().float()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all groups."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def remove(self) -> None:
        """The optimizer is the user's again."""
        self._asking.stepper = None  # for whoever has wrapped it meanwhile
        if vars(self.optimizer).get("step") is self._mine:
            self._restore("step")
        self._restore("_step_supports_amp_scaling")
        for hook in self._hooks:
            hook.remove()

    def _restore(self, name: str) -> None:
        vars(self.optimizer).pop(name, None)
        if name in self._before:
            vars(self.optimizer)[name] = self._before[name]

    def _before_load(self, _: Optimizer, state: dict[str, Any]) -> None:
        self._loading = state

    def _after_load(self, optimizer: Optimizer) -> None:
        """Torch casts what is remembered of a parameter to its type: that of a float32 master stays as it was saved."""
        state, self._loading = self._loading, {}
        saved = [key for group in state["param_groups"] for key in group["params"]]
        for key, p in zip(saved, self.parameters, strict=True):
            for name, value in state["state"].get(key, {}).items():
                if _rounded(p, optimizer.state[p][name]):
                    optimizer.state[p][name] = value.to(p.device, torch.float32, copy=True)

    def _refuse_others(self, *_: object) -> None:
        if not self._inside:
            raise UserError(
                f"rank {self._rank}: the step of {type(self.optimizer).__name__} was called around the session, by a "
                "reference to optimizer.step (or of its class) from before roundelay.attach: it would train a copy "
                "that nobody keeps. Attach before whatever takes it is made, or call session.step() there."
            )


class _Asking:
    """The stepper that the replaced step asks: none, once the session is closed."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper: Stepper | None = stepper


def _rounded(p: Tensor, value: object) -> bool:
    """True if this state of a parameter in 16 bits is in 16 bits too."""
    return isinstance(value, Tensor) and p.dtype in ROUNDED and value.dtype == p.dtype and value.shape == p.shape


def check_optimizers(module: nn.Module, optimizers: Sequence[Optimizer], rank: int) -> list[str]:
    """Names of trainable parameters of the module that no optimizer has.

    Raises:
        UserError: an optimizer has others' parameters, is given twice, or cannot be stepped by somebody else.
    """
    if not optimizers:
        raise UserError(f"rank {rank}: attach needs an optimizer, or a list of them.")
    known = {id(p) for p in module.parameters()}
    has: set[int] = set()
    for number, optimizer in enumerate(optimizers):
        if any(optimizer is other for other in optimizers[:number]):
            raise UserError(f"rank {rank}: the same optimizer is given twice.")
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if strangers := len(mine - known):
            raise UserError(
                f"rank {rank}: the optimizer has {strangers} parameters that are not in the module: attach the module "
                "that holds all of them, or give the others an optimizer of their own."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError(
                f"rank {rank}: LBFGS evaluates the model inside its step, which attach cannot do: choose another."
            )
        has |= mine
    return [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in has]
