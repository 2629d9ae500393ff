"""The user's optimizers, stepped by the session alone.

While a session is open, `optimizer.step()` is the session's step: for the loop that keeps it, for a GradScaler, for a
framework. It takes over the step of the object, not of its class, and gives it back in the end; a learning rate
schedule made before or after wraps it as it wraps any other. A step that comes around it, by a reference taken before
or of an optimizer that is not attached, is refused by a hook on all optimizers.

With several optimizers a step is complete when all have been asked; each one's gradients are taken when it is asked.
If one is asked again before the others were asked, or the module's forward or a read of a parameter to be stepped comes
first, the step is completed without them.

Mixed precision. To a torch.amp.GradScaler the optimizer says that it handles the scale itself, by torch's own protocol
for fused optimizers: it is then asked to step also when a gradient has overflowed (`found_inf`), and unscales by
`grad_scale` if that is not done. So the session hears of a step that is to be skipped.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from types import MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from roundelay.attached.forward import left_alone, never_compiled
from roundelay.attached.parameters import ROUNDED, Parameters
from roundelay.core.errors import UserError
from roundelay.core.rates import LearnersRate

SCALING = ("grad_scale", "found_inf")
"""Attributes that a GradScaler sets on the optimizer for the time of its step."""
Ask = Callable[[int, Callable[[], Any] | None], Any]
"""Function `ask(number, closure)` that takes the step of optimizer `number`, and returns the closure's loss, if any."""


_PARAMS, _SCALING = itemgetter("params"), frozenset(SCALING)

INNER = ("optimizer", "base_optimizer", "original_optimizer")
"""Attributes under which a wrapper has the optimizer that does its work: Accelerate's, SAM, Opacus's DPOptimizer. Any
attribute would be too many: a wrapper that moves weights after the other's step (Lookahead) is attached as a whole."""


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that does the work, of one that another has wrapped.

    Raises:
        UserError: it is no optimizer of torch's kind.
    """
    while inner := [one for name in INNER if isinstance(one := getattr(optimizer, name, None), Optimizer)]:
        optimizer = inner[0]
    kind = type(optimizer)
    if not isinstance(getattr(optimizer, "param_groups", None), list) or not callable(getattr(optimizer, "step", None)):
        raise UserError(
            f"{kind.__module__}.{kind.__qualname__} is no optimizer that attach can step: it needs `param_groups` and "
            "`step()`, as those of torch.optim have them. (Of Keras attach the model, with an optimizer of torch.optim "
            "in a loop of your own.)"
        )
    return optimizer


class Stepper:
    """One of the user's optimizers, whose `step` asks the session."""

    def __init__(self, optimizer: Optimizer, number: int, ask: Ask, rank: int) -> None:
        self.optimizer, self._number, self._ask, self._rank = optimizer, number, ask, rank
        if isinstance(optimizer, Optimizer) and "_optimizer_load_state_dict_pre_hooks" not in vars(optimizer):
            Optimizer.__setstate__(optimizer, {})  # a wrapper that has called no Optimizer.__init__
        self.inside, self._by_closure = False, False
        self.factor = 1.0
        """Factor on the learning rates of the next step."""
        self._original: Callable[..., Any] = optimizer.step
        self._before = dict(vars(optimizer))
        self._asking = _Asking(self)
        self._mine = self._replacement()
        optimizer.step = self._mine  # type: ignore[method-assign]
        vars(optimizer)["_step_supports_amp_scaling"] = True
        self._loading: dict[str, Any] = {}
        self._hooks: list[Any] = []
        if hasattr(optimizer, "register_load_state_dict_pre_hook"):  # torch's own, and others made like them
            self._hooks = [
                optimizer.register_load_state_dict_pre_hook(self._before_load),
                optimizer.register_load_state_dict_post_hook(self._after_load),
            ]
        for p, state in optimizer.state.items():
            state.update({name: value.float() for name, value in state.items() if _rounded(p, value)})

    def _replacement(self) -> MethodType:
        original, asking = self._original, self._asking

        @never_compiled
        @functools.wraps(getattr(original, "__func__", original))
        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            stepper = asking.stepper
            return original(*(() if closure is None else (closure,))) if stepper is None else stepper.asked(closure)

        return MethodType(step, self.optimizer)  # a method: schedules look for the object behind one

    def asked(self, closure: Callable[[], Any] | None) -> Any:
        """Answer the loop's call of `optimizer.step(closure)`, by asking the session."""
        vars(self.optimizer)["_opt_called"] = True
        self._by_closure = closure is not None
        return self._ask(self._number, closure)

    def called(self) -> None:
        """Mark the optimizer as stepped, for schedules, which warn when they are stepped before it."""
        vars(self.optimizer)["_opt_called"] = True

    def step(self) -> None:
        """Call the optimizer's own step."""
        has = vars(self.optimizer)
        kept = {name: has.pop(name) for name in SCALING if name in has} if not _SCALING.isdisjoint(has) else {}
        self.inside = True
        try:
            if self.factor == 1:
                self._original()
            else:
                with scaled_rates(self.optimizer, self.factor):
                    self._original()
        except (AssertionError, TypeError) as error:
            if not self._by_closure:
                raise
            raise UserError(
                f"rank {self._rank}: {type(self.optimizer).__name__}.step() fails without its closure ({error}). "
                "Attach evaluates the closure once, before the step: of an optimizer that holds another, as SAM does, "
                "attach that one."
            ) from error
        finally:
            self.inside = False
            vars(self.optimizer).update(kept)

    @property
    def overflowed(self) -> bool:
        """True if the GradScaler that asks has found an infinity or NaN among the gradients."""
        found: Tensor | None = getattr(self.optimizer, "found_inf", None)
        return found is not None and bool(found)

    @property
    def scaling(self) -> tuple[bool, Tensor | None]:
        """True if the caller is a GradScaler, which finds overflowed gradients itself; and the factor that unscales the
        gradients, None if they are unscaled already."""
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)
        factor = None if scale is None else scale.double().reciprocal().float()
        return getattr(self.optimizer, "found_inf", None) is not None, factor

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all groups of the optimizer."""
        return [*chain.from_iterable(map(_PARAMS, self.optimizer.param_groups))]

    def remove(self) -> None:
        """Give the optimizer its own `step` back, and leave nothing of the session at it."""
        self._asking.stepper = None  # for those who have wrapped it meanwhile
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
        """Keep the state of float32 masters as it was saved, where torch casts it to the type of the parameter."""
        state, self._loading = self._loading, {}
        saved = [key for group in state["param_groups"] for key in group["params"]]
        for key, p in zip(saved, self.parameters, strict=True):
            for name, value in state["state"].get(key, {}).items():
                if _rounded(p, optimizer.state[p][name]):
                    optimizer.state[p][name] = value.to(p.device, torch.float32, copy=True)


@contextmanager
def scaled_rates(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Multiply the learning rates of all groups that have one by `factor` until the end of the `with`. A rate that the
    optimizer itself sets meanwhile stays. Tensors are changed in place: a compiled step, or a captured one, reads them
    where they are."""
    numbers: list[tuple[dict[str, Any], float, Any]] = []
    tensors: dict[int, tuple[Tensor, Tensor]] = {}  # groups may have one in common
    for group in optimizer.param_groups if factor != 1 else ():
        rate = group.get("lr")
        if isinstance(rate, Tensor):
            tensors[id(rate)] = rate, rate.detach().clone()
        elif isinstance(rate, int | float):
            group["lr"] = larger = rate * factor
            numbers.append((group, larger, rate))
    with torch.no_grad():
        for rate, _ in tensors.values():
            rate.mul_(factor)
    try:
        yield
    finally:
        for group, larger, rate in numbers:
            if group["lr"] is larger:
                group["lr"] = rate
        with torch.no_grad():
            for rate, before in tensors.values():
                rate.copy_(before)


def have_rates(optimizer: Optimizer) -> bool:
    """Return True if all groups of an optimizer have a learning rate that can be scaled. Rprop's cannot: only its first
    step uses it."""
    return not isinstance(optimizer, torch.optim.Rprop) and all(
        isinstance(group.get("lr"), int | float | Tensor) for group in optimizer.param_groups
    )


def usual_rate(optimizers: Sequence[Optimizer]) -> LearnersRate:
    """Return the default treatment of learning rates: `auto`, where all can be scaled."""
    return "auto" if all(map(have_rates, optimizers)) else "as-is"


def check_rates(optimizers: Sequence[Optimizer], rank: int) -> None:
    """Check that learning rates can be scaled.

    Raises:
        UserError: a group has no learning rate that can be scaled; names the optimizer.
    """
    for optimizer in optimizers:
        if not have_rates(optimizer):
            raise UserError(
                f"rank {rank}: {type(optimizer).__name__} has a group whose lr is no number, or is of its first step "
                "only, so nothing is there that rate='gain' or 'linear' could make larger: attach with rate='as-is'."
            )


@final
class OtherOptimizers:
    """A hook on all optimizers that refuses steps of attached parameters from outside the session, until removed."""

    def __init__(self, steppers: Sequence[Stepper], parameters: Parameters, rank: int) -> None:
        self._steppers, self._mine, self._rank = steppers, {id(p) for p in parameters.all}, rank
        mine = weakref.ref(self)  # torch holds the hook for ever

        @left_alone
        def refuse(optimizer: Optimizer, *_: object) -> None:
            if not torch.compiler.is_compiling() and (others := mine()) is not None:
                others.check(optimizer)

        self._hook = register_optimizer_step_pre_hook(refuse)

    def remove(self) -> None:
        """Take the hook off."""
        self._hook.remove()

    def check(self, optimizer: Optimizer) -> None:
        """Check an optimizer that is about to step.

        Raises:
            UserError: the optimizer would change attached parameters beside the session; names it.
        """
        for stepper in self._steppers:
            if stepper.inside:
                return
        attached, kind = [stepper.optimizer for stepper in self._steppers], type(optimizer).__name__
        if any(optimizer is one for one in attached):
            raise UserError(
                f"rank {self._rank}: the step of {kind} was called around the session, by a reference to "
                "optimizer.step (or of its class) from before roundelay.attach: it would train a copy that is "
                "thrown away. Attach before anything that takes it is made, or call session.step() there."
            )
        theirs = [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._mine]
        if all(p.grad is None for p in theirs) or any(one in attached for _, one in held_by(optimizer)):
            return  # it changes nothing, or it is one that has an attached optimizer to do it
        held = [(type(one).__name__, path) for one in attached for path, other in held_by(one) if other is optimizer]
        raise UserError(
            f"rank {self._rank}: {kind}, which is not attached, steps {len(theirs)} parameters of the attached module: "
            + (
                f"{held[0][0]} holds it as `{held[0][1]}`, and steps it outside of its own step(). Attach that one: "
                f"roundelay.attach(module, optimizer.{held[0][1]})."
                if held
                else "the other learners would not hear of it. Give it to attach as well, "
                "roundelay.attach(module, [first, second]), or call session.close() before."
            )
        )


def held_by(holder: object) -> Iterator[tuple[str, Optimizer]]:
    """Yield the optimizers that `holder` holds, and those that these hold, each with its place: `base`, `inner.base` or
    `parts[0]`."""
    named = [(name, value) for name, value in vars(holder).items() if name not in ("param_groups", "state")]
    named += [(f"{name}[{n}]", one) for name, value in named if isinstance(value, list) for n, one in enumerate(value)]
    for name, value in named:
        if isinstance(value, Optimizer) and value is not holder:
            yield name, value
            yield from ((f"{name}.{path}", one) for path, one in held_by(value))


class _Asking:
    """A reference to the stepper that the replaced `step` asks; None once the session is closed."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper: Stepper | None = stepper


def _rounded(p: Tensor, value: object) -> bool:
    """Return True if both the parameter `p` and this value of its state are in 16 bits."""
    return isinstance(value, Tensor) and p.dtype in ROUNDED and value.dtype == p.dtype and value.shape == p.shape


def check_optimizers(module: nn.Module, optimizers: Sequence[Optimizer], rank: int) -> list[str]:
    """Return names of trainable parameters of the module that no optimizer has.

    Raises:
        UserError: an optimizer has others' parameters, is given twice, or cannot be stepped from outside.
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
        if isinstance(optimizer, torch.optim.LBFGS) or _needs_closure(optimizer):
            raise UserError(
                f"rank {rank}: {type(optimizer).__name__} evaluates the model inside its step, by a closure that it "
                "cannot do without, which attach cannot do: choose another optimizer."
            )
        has |= mine
    return [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in has]


def _needs_closure(optimizer: Optimizer) -> bool:
    """Return True if the optimizer's `step` has an argument without a default."""
    _, *needed = inspect.signature(type(optimizer).step).parameters.values()  # not of a schedule's wrapper
    return any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed)
