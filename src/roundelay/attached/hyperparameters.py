"""The user's optimizers: their options by readable names, as learners compare them; the numbers among these, which
schedules change; and their momentum, about which block-wise strategies ask. The row is theirs to update.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from roundelay.algorithms.local_update import RowUpdate, after_reset
from roundelay.algorithms.torch_optimizer import FIRST_MOMENTS
from roundelay.attached.stepping import check_rates, held_by
from roundelay.core.errors import UserError
from roundelay.runtime.attached.entering import AttachTerms
from roundelay.runtime.attached.settings import SteppedByLoop
from roundelay.strategies.periodic import Periodic
from roundelay.strategies.slowmo import SlowMo

HOW = ("foreach", "fused", "capturable", "differentiable")
"""Options that say how an update is computed, not which."""
NumberPlace = tuple[int, str, int]
"""Place of a number: its parameter group among all, the option, and its place in it; -1: it is the option."""


def settings_of(optimizers: Sequence[Optimizer], module: nn.Module) -> dict[str, Any]:
    """Return the optimizers' classes and options as plain values, and the names of each group's parameters."""
    names = {id(p): name for name, p in module.named_parameters()}
    found: dict[str, Any] = {f"optimizer{_of(n, optimizers)}": type(one).__name__ for n, one in enumerate(optimizers)}
    for n, one in enumerate(optimizers):
        found[f"number of parameter groups{_of(n, optimizers)}"] = len(one.param_groups)
    for of, group in _groups(optimizers):
        options = {name: plain(value) for name, value in sorted(group.items()) if name not in ("params", *HOW)}
        found |= {f"{name}{of}": value for name, value in options.items() if value is not Ellipsis}
        found[f"parameter{of or ' of the optimizer'}"] = [
            names.get(id(p), "one of another module") for p in group["params"]
        ]
    return found | {"torch": torch.__version__.split("+")[0]}


def plain(value: Any) -> Any:
    """Return the value of an option as JSON has it; Ellipsis if it cannot be compared."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else ...
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        return ... if ... in items else str(tuple(items))
    return value if value is None or isinstance(value, bool | int | float | str) else ...


def first_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the first parameter group; NaN if there is none, as in Adafactor's relative steps."""
    rate = optimizer.param_groups[0].get("lr")
    return float(rate) if _is_number(rate) else math.nan


def _is_number(value: object) -> TypeGuard[Tensor | float]:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


def _groups(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all parameter groups of all optimizers, each with the words that name it."""
    for n, one in enumerate(optimizers):
        for g, group in enumerate(one.param_groups):
            of_group = f" of group {g}" if len(one.param_groups) > 1 else ""
            yield of_group + _of(n, optimizers), group


def _of(number: int, optimizers: Sequence[Optimizer]) -> str:
    return f" of optimizer {number}" if len(optimizers) > 1 else ""


class UsersOptimizers(SteppedByLoop):
    """The user's optimizers, which keep their state themselves, by parameter. Which numbers their groups have is
    settled when this object is made."""

    name = "the user's"
    names: Sequence[str] = ()
    rates = 0

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        places: list[tuple[str, NumberPlace]] = []
        for number, (of, group) in enumerate(_groups(optimizers)):
            for option, value in sorted(group.items()):
                if isinstance(value, list | tuple) and option != "params":
                    inside = [
                        (f"{option}[{at}]{of}", (number, option, at)) for at, one in enumerate(value) if _is_number(one)
                    ]
                    places += inside
                elif _is_number(value):
                    places.append((option + of, (number, option, -1)))
        places.sort(key=lambda one: one[1][1] != "lr")
        self.names = [name for name, _ in places]
        self._places = [place for _, place in places]
        self.rates = sum(option == "lr" for _, option, _ in self._places)

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers of all groups as they are now; NaN for an option that is gone, perhaps with its group."""
        groups = [group for _, group in _groups(self._optimizers)]
        found = []
        for number, option, at in self._places:
            value = groups[number].get(option) if number < len(groups) else None
            found.append(math.nan if value is None else float(value if at < 0 else value[at]))
        return tuple(found)

    @contextmanager
    def under(self, numbers: Sequence[float]) -> Iterator[None]:
        """Set the first of the optimizers' numbers to `numbers` during the `with`; changes made in it stay."""
        own = self.numbers()
        self._write(numbers, own)
        try:
            yield
        finally:
            now = self.numbers()
            self._write([mine if is_ == set_ else is_ for mine, is_, set_ in zip(own, now, numbers, strict=False)], now)

    def _write(self, numbers: Sequence[float], now: Sequence[float]) -> None:
        groups = [group for _, group in _groups(self._optimizers)]
        for (number, option, at), wanted, is_ in zip(self._places, numbers, now, strict=False):
            if wanted == is_ or number >= len(groups) or groups[number].get(option) is None:
                continue
            value = groups[number][option]
            if at >= 0:
                kind, items = type(value), list(value)
                items[at] = type(items[at])(wanted)
                groups[number][option] = kind(items)
            elif isinstance(value, Tensor):
                value.fill_(wanted)
            else:
                groups[number][option] = type(value)(wanted)

    @property
    def memory(self) -> tuple[str, ...]:
        return ()

    def reset_momentum(self, memory: Mapping[str, Tensor]) -> None:
        every = chain.from_iterable((one, *(held for _, held in held_by(one))) for one in self._optimizers)
        for state in chain.from_iterable(optimizer.state.values() for optimizer in every):
            for name in FIRST_MOMENTS:
                if isinstance(moment := state.get(name), Tensor):
                    moment.zero_()

    def share_after_reset(self, steps: int) -> float:
        """Return the share that `LocalOptimizer` defines, by the first parameter group's `momentum` and `nesterov`, or
        the first of its `betas`."""
        group = self._optimizers[0].param_groups[0]
        momentum = group.get("momentum") or (group.get("betas") or (0.0,))[0]
        return after_reset(float(momentum), steps, bool(group.get("nesterov", False)))

    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        return _Nothing()


class _Nothing(RowUpdate):
    """An update of single parameters that does nothing, for the session updates the row as a whole."""

    def update_(self, number: int, gradient: Tensor, rate: float) -> None: ...


def check_options(terms: AttachTerms, optimizers: Sequence[Optimizer], rank: int) -> None:
    """Refuse options of attach that these optimizers cannot follow.

    Raises:
        UserError: an optimizer cannot follow an option; names the option and what to do.
    """
    if terms.rate in ("gain", "linear"):
        check_rates(optimizers, rank)
    if isinstance(terms.strategy, Periodic) and terms.strategy.local_momentum == "average":
        raise UserError(
            f"rank {rank}: {terms.strategy.name}.local_momentum is average, which is for `roundelay train`: "
            "an optimizer's state is not shared between attached learners. Choose reset or keep."
        )
    if isinstance(terms.strategy, SlowMo) and math.isnan(first_rate(optimizers[0])):
        raise UserError(
            f"rank {rank}: {terms.strategy.name} divides by the learning rate, and "
            f"{type(optimizers[0]).__name__} has none (lr of its first parameter group): give it one, or choose "
            "another strategy."
        )
