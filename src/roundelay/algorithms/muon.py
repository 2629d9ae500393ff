"""Muon as a learner's local optimizer: steps along momentum whose matrices are made orthogonal (Jordan et al. 2024,
kellerjordan.github.io/posts/muon), as torch.optim.Muon has it. Of a matrix W with gradient G:

    B <- mu B + (1 - mu) G
    U  = (1 - mu) G + mu B                        Nesterov; else B
    W <- (1 - rate decay) W - rate s NS(U)        NS: five Newton-Schulz steps towards U's nearest orthogonal matrix

Where a parameter goes depends on all of its matrix, so a row is not walked chunk by chunk: it is given to the optimizer
by parameters. Every parameter with two dimensions is a matrix here, the first and the last layer's included; all others
(biases, norms, convolutions) are stepped by another optimizer, `others`.

s is 0.2 sqrt(max of the matrix's sides) unless `options.adjust_lr_fn` says otherwise: then steps are as large as Adam's
(Liu et al. 2025, arXiv 2502.16982), and one learning rate does for both.

Legend: P parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import LocalOptimizer, RowUpdate
from roundelay.algorithms.torch_optimizer import CLASSES, TorchOptimizer, TorchUpdate, check_options, read_options
from roundelay.core.bounds import Positive
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError

BUFFER = "momentum_buffer"
"""Name of B in torch's state."""
LIKE_ADAM = {"adjust_lr_fn": "match_rms_adamw"}


@dataclass(frozen=True)
class Muon(LocalOptimizer):
    """`torch.optim.Muon(**options)` for matrices, `others` at `others_rate` of the learning rate for the rest.

    Raises:
        UserError: this torch has no Muon, or an option is unknown or out of range.
    """

    name: Literal["muon"] = field(default="muon", kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `torch.optim.Muon`."""
    others: TorchOptimizer = field(default_factory=lambda: TorchOptimizer("adamw"))
    others_rate: Positive = 1.0
    """Learning rate of `others`, as a share of the schedule's."""

    imports: ClassVar[tuple[str, ...]] = TorchOptimizer.imports
    by_parameters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if "muon" not in CLASSES:
            raise UserError(f"optimizer.name is muon, which torch {torch.__version__} has not: 2.9 or newer has.")
        check_values(self, "optimizer")
        check_options("muon", self.options)
        try:
            matrix = nn.Parameter(torch.eye(2))
            matrix.grad = torch.eye(2)
            CLASSES["muon"]([matrix], **self.arguments).step()
        except Exception as error:  # torch refuses in many ways
            raise UserError(f"optimizer.options: muon cannot be used with {dict(self.options)} ({error}).") from error

    @property
    def memory(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((BUFFER, *self.others.memory)))

    @property
    def scalars(self) -> tuple[str, ...]:
        return ("begun", *self.others.scalars[1:])

    @property
    def momentum_vectors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((BUFFER, *self.others.momentum_vectors)))

    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        return _ByDimensions(self, x, memory, scalars)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `torch.optim.Muon` except the learning rate."""
        return {**LIKE_ADAM, **read_options("muon", self.options)}


class _ByDimensions(RowUpdate):
    """Muon over the matrices of a row, another optimizer over the rest."""

    def __init__(
        self, muon: Muon, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> None:
        self._updates: list[RowUpdate] = []
        self._places: dict[int, tuple[RowUpdate, int, float]] = {}
        for matrices, names, rate in ((True, (BUFFER,), 1.0), (False, muon.others.memory, muon.others_rate)):
            numbers = [number for number, part in enumerate(x) if (part.ndim == 2) == matrices]
            if numbers:
                mine = [x[number] for number in numbers]
                kept = [{name: memory[number][name] for name in names} for number in numbers]
                update = (
                    TorchUpdate(partial(CLASSES["muon"], **muon.arguments), {}, mine, kept, scalars[:1])
                    if matrices
                    else muon.others.attach(mine, kept, scalars)
                )
                self._updates.append(update)
                self._places |= {number: (update, at, rate) for at, number in enumerate(numbers)}

    def begin(self) -> None:
        for update in self._updates:
            update.begin()

    def update_(self, number: int, gradient: Tensor, rate: float) -> None:
        update, at, share = self._places[number]
        update.update_(at, gradient, share * rate)

    def end(self) -> None:
        for update in self._updates:
            update.end()
