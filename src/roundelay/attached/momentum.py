"""The user's optimizers as a strategy sees them: the row is theirs to update; what a block-wise strategy asks about is
their momentum, and what other learners see: their numbers."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from roundelay.algorithms.local_update import RowUpdate, after_reset
from roundelay.algorithms.torch_optimizer import FIRST_MOMENTS
from roundelay.attached.hyperparameters import GroupNumbers
from roundelay.runtime.attached.settings import SteppedByLoop


class UsersOptimizers(SteppedByLoop):
    """Optimizers that keep their state themselves, by parameter."""

    name = "the user's"

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers, self._numbers = optimizers, GroupNumbers(optimizers)

    @property
    def names(self) -> Sequence[str]:
        return self._numbers.names

    @property
    def rates(self) -> int:
        return self._numbers.rates

    def numbers(self) -> tuple[float, ...]:
        return self._numbers.read()

    def under(self, numbers: Sequence[float]) -> AbstractContextManager[None]:
        return self._numbers.under(numbers)

    @property
    def memory(self) -> tuple[str, ...]:
        return ()

    def reset_momentum(self, memory: Mapping[str, Tensor]) -> None:
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for name in FIRST_MOMENTS:
                    if isinstance(moment := state.get(name), Tensor):
                        moment.zero_()

    def share_after_reset(self, steps: int) -> float:
        """Share of momentum by the options of the first parameter group: `momentum` and `nesterov`, or the first of
        `betas`."""
        group = self._optimizers[0].param_groups[0]
        momentum = group.get("momentum") or (group.get("betas") or (0.0,))[0]
        return after_reset(float(momentum), steps, bool(group.get("nesterov", False)))

    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        return _Nothing()


class _Nothing(RowUpdate):
    """The session updates the row as a whole."""

    def update_(self, number: int, gradient: Tensor, rate: float) -> None: ...
