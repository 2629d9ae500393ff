"""Any elementwise optimizer of torch.optim as a learner's local optimizer.

A row is updated chunk by chunk, each chunk while it is in cache, so an optimizer must be elementwise: the change of a
parameter depends on that parameter and its own gradients only. Then a row cut into chunks goes where the whole row
would go. That is tried out on four numbers, not looked up in a list: so optimizers torch adds later are taken or
refused by the same rule. Refused today: those that need a closure (LBFGS), sparse gradients (SparseAdam) or matrices
(Muon, which is in muon.py), and those that scale an update by the norm of a tensor (Adafactor).

Torch makes an optimizer's state in its first step, and some of it depends on that step: Rprop's first step sizes are
the learning rate of the moment, momentum begins as a copy of the first gradient. So the first step is torch's own too,
and its state is then moved into the learner's memory. The scalar `begun` says whether that has happened.

Legend: P parameters, C elements of a chunk.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import LocalOptimizer, RowUpdate
from roundelay.core.errors import UserError

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Number = Callable[[float], Any]
"""Converts a scalar, as Roundelay keeps it, to the object that torch keeps it in."""

FIRST_MOMENTS = ("momentum_buffer", "exp_avg")
"""Names under which torch's optimizers keep running means of gradients."""
WARM_STEPS = 1000
"""Steps after which a first moment of the usual decay rates holds a constant gradient."""

CLASSES: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}


@dataclass(frozen=True)
class TorchOptimizer(LocalOptimizer):
    """`torch.optim.NAME(**options)`; upper and lower case are the same in names. The learning rate is the schedule's,
    given anew in each step.

    Raises:
        UserError: no such optimizer, it cannot walk a row chunk by chunk, or an option is unknown or out of range.
    """

    name: str
    """Name of a torch.optim optimizer."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the torch.optim optimizer."""

    imports: ClassVar[tuple[str, ...]] = ("torch._dynamo",)  # over a second, and every torch optimizer loads it

    def __post_init__(self) -> None:
        if self.name.lower() not in CLASSES:
            near = difflib.get_close_matches(self.name.lower(), fitting(), 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"optimizer.name is {self.name!r}: {hint}Choose one of {', '.join(fitting())}.")
        if reason := _reason(_maker(self.name, {})):
            raise UserError(
                f"optimizer.name is {self.name!r}: it cannot update a vector in pieces, as learners do ({reason}). "
                f"Choose one of {', '.join(fitting())}."
            )
        check_options(self.name, self.options)
        if reason := _reason(_maker(self.name, self._arguments)):
            raise UserError(f"optimizer.options: {self.name} cannot be used with {dict(self.options)} ({reason}).")

    @property
    def memory(self) -> tuple[str, ...]:
        return self._kept[0]

    @property
    def scalars(self) -> tuple[str, ...]:
        memory, numbers = self._kept
        return ("begun", *numbers) if memory or numbers else ()

    @property
    def momentum_vectors(self) -> tuple[str, ...]:
        return tuple(name for name in self.memory if name in FIRST_MOMENTS)

    def share_after_reset(self, steps: int) -> float:
        """Return the share as of `LocalOptimizer`, measured on one parameter without weight decay."""
        if not self.momentum_vectors:
            return 1.0
        if steps not in self._shares:
            arguments = {key: value for key, value in self._arguments.items() if key != "weight_decay"}
            self._shares[steps] = _share_after_reset(_maker(self.name, arguments), self.momentum_vectors, steps)
        return self._shares[steps]

    @cached_property
    def _shares(self) -> dict[int, float]:
        """Cached shares of momentum after a reset, by the number of steps."""
        return {}

    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        return TorchUpdate(_maker(self.name, self._arguments), self._kept[1], x, memory, scalars)

    @property
    def _arguments(self) -> dict[str, Any]:
        given = read_options(self.name, self.options)
        return {"foreach": False, **given} if "foreach" in _defaults(self.name) else given  # one tensor at a time

    @cached_property
    def _kept(self) -> tuple[tuple[str, ...], Mapping[str, Number]]:
        """Names of the vectors in the optimizer's state, and its scalars by name."""
        return _examine(_maker(self.name, self._arguments))

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}  # each process examines for itself


def fitting() -> list[str]:
    """Return the names of the optimizers of torch.optim that can be local optimizers."""
    return [name for name in sorted(CLASSES) if _reason(_maker(name, {})) is None]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check that the torch.optim optimizer `name` has all of `options`.

    Raises:
        UserError: it lacks an option, or one is the learning rate.
    """
    known = [option for option in _defaults(name) if option != "lr"]
    for key in options:
        if key == "lr":
            raise UserError("optimizer.options.lr: the learning rate is schedule.learning_rate; leave it out here.")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; {name} has {', '.join(known)}."
            raise UserError(f"unknown option optimizer.options.{key}{hint}")


def read_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the optimizer `name`, each value converted from YAML to the type that torch expects."""
    defaults = _defaults(name)
    return {key: _read(value, defaults.get(key)) for key, value in options.items()}


class TorchUpdate(RowUpdate):
    """An update by one torch optimizer over all chunks of a row, or over all parameters given, one at a time."""

    def __init__(
        self,
        make: Make,
        numbers: Mapping[str, Number],
        x: Sequence[Tensor],
        memory: Sequence[Mapping[str, Tensor]],
        scalars: NDArray[np.float64],
    ) -> None:
        self._make, self._numbers, self._memory, self._scalars = make, numbers, memory, scalars
        self._parameters = [nn.Parameter(part) for part in x]  # views: a step changes the row
        self._optimizer: torch.optim.Optimizer

    def begin(self) -> None:
        self._optimizer = self._make(self._parameters)
        if not (len(self._scalars) and self._scalars[0]):
            return
        for parameter, memory in zip(self._parameters, self._memory, strict=True):
            numbers = zip(self._numbers.items(), self._scalars[1:], strict=True)
            self._optimizer.state[parameter] = {
                **memory,
                **{name: number(float(kept)) for (name, number), kept in numbers},
            }

    def update_(self, number: int, gradient: Tensor, rate: float) -> None:
        parameter, group = self._parameters[number], self._optimizer.param_groups[0]
        group["params"], group["lr"], parameter.grad = [parameter], rate, gradient
        self._optimizer.step()
        parameter.grad = None
        state = self._optimizer.state[parameter]
        for name, kept in self._memory[number].items():
            if state[name] is not kept:  # made in the first step
                kept.copy_(state[name])
                state[name] = kept

    def end(self) -> None:
        """Copy the optimizer's scalars from one chunk: every chunk has its own, all equal."""
        if len(self._scalars):
            state = self._optimizer.state[self._parameters[-1]]
            self._scalars[1:] = [float(state[name]) for name in self._numbers]
            self._scalars[0] = 1


def _maker(name: str, arguments: Mapping[str, Any]) -> Make:
    cls = CLASSES[name.lower()]
    return lambda parameters: cls(parameters, **arguments)


def _defaults(name: str) -> dict[str, Any]:
    """Return the options of the torch.optim optimizer `name`, with their defaults."""
    parameters = inspect.signature(CLASSES[name.lower()]).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "params"}


def _read(value: object, default: object) -> Any:
    """Convert a value as YAML gives it to the type torch expects: tuples for lists, and 1e-3 is a number."""
    if isinstance(value, list | tuple):
        return tuple(_read(item, 0.0) for item in value)
    if isinstance(value, str) and isinstance(default, int | float):
        try:
            return float(value)
        except ValueError:
            return value
    return value


# Trying out -----------------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """An optimizer cannot be a local one; the message says why."""


def _reason(make: Make) -> str | None:
    try:
        _examine(make)
    except Exception as error:  # torch refuses in many ways
        return f"{error}".rstrip(".") or type(error).__name__
    return None


def _examine(make: Make) -> tuple[tuple[str, ...], Mapping[str, Number]]:
    """Return the names of an optimizer's vectors, and its scalars by name, found by three steps on four numbers.

    Raises:
        _Unfit: half of the numbers go elsewhere without the other half, or the state is neither.
    """
    x = torch.tensor([0.5, -0.25, 2.0, -4.0])  # halves whose norms differ, in x and in gradients
    gradients = [torch.tensor([0.001, 0.002, 5.0, -3.0]) * factor for factor in (1.0, 0.5, -0.25)]
    whole, state = _dry_run(make, x, gradients)
    for half in (slice(0, 2), slice(2, 4)):
        if not torch.allclose(whole[half], _dry_run(make, x[half], [g[half] for g in gradients])[0], rtol=1e-4):
            raise _Unfit("its update of one parameter depends on the others")
    vectors, numbers = [], {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == x.shape and value.dtype == x.dtype:
            vectors.append(name)
        elif isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
            numbers[name] = _tensor_like(value)
        elif isinstance(value, bool | int | float):
            numbers[name] = type(value)
        elif value is not None:  # None stands for nothing
            raise _Unfit(f"its state {name!r} is neither a number nor as long as the vector")
    return tuple(vectors), numbers


def _share_after_reset(make: Make, moments: Sequence[str], steps: int) -> float:
    """Return the distance that `steps` steps move after the first moments were set to zero, as a share of the distance
    with the moments kept."""
    gone = []
    for reset in (True, False):
        parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = make([parameter])
        optimizer.param_groups[0]["lr"] = 1e-3
        parameter.grad = torch.ones_like(parameter)
        for _ in range(WARM_STEPS):
            optimizer.step()
        if reset:
            for name in moments:
                optimizer.state[parameter][name].zero_()
        start = parameter.item()
        for _ in range(steps):
            optimizer.step()
        gone.append(parameter.item() - start)
    return gone[0] / gone[1]


def _dry_run(make: Make, x: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, dict[str, Any]]:
    parameter = nn.Parameter(x.clone())
    optimizer = make([parameter])
    optimizer.param_groups[0]["lr"] = 0.1
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach(), dict(optimizer.state[parameter])


def _tensor_like(example: Tensor) -> Number:
    return lambda value: torch.full_like(example, value)
