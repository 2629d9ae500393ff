"""The local optimizer: one learner's update of its own row by one gradient.

Legend: P parameters, L learners, C elements of a chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.sgd import sgd

from roundelay.algorithms.one_pass import Kernel, StepNumbers, sgd_kernel
from roundelay.core.bounds import NonNegative, ShareBelowOne
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError


class RowUpdate(ABC):
    """A local optimizer at work on one learner's row, chunk by chunk in the order of the row, or parameter by
    parameter."""

    def begin(self) -> None:  # noqa: B027 most optimizers keep nothing outside the learner's memory
        """Begin a segment: memory and scalars may have been replaced from outside."""

    @abstractmethod
    def update_(self, number: int, gradient: Tensor, rate: float) -> None:
        """Update chunk `number` of the row, or parameter `number`, in place, and its memory.

        `gradient`, of the same shape, is only read: it may be shared by several learners.
        """

    def end(self) -> None:  # noqa: B027
        """End an update of the row, after `update_` of all its chunks."""


class LocalOptimizer(ABC):
    """A frozen dataclass that is its own configuration. Its memory is vectors and scalars by name, which the runtime
    owns: so all of it is in the arena and in every checkpoint."""

    name: str
    """`sgd`, `muon`, or the name of a torch.optim optimizer."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that the first update loads; the runtime of processes loads them once for all learners."""
    by_parameters: ClassVar[bool] = False
    """True if the update of one element depends on others of the same parameter: then the optimizer is given parameters
    in their shapes, else chunks of the row."""

    @property
    @abstractmethod
    def memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) that belong to a learner besides its row; zero before the first step."""

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the numbers (a count of steps, for example) that belong to a learner; zero before the first step."""
        return ()

    @property
    def momentum_vectors(self) -> tuple[str, ...]:
        """Names, among `memory`, of running means of gradients (first moments)."""
        return ()

    def reset_momentum(self, memory: Mapping[str, Tensor]) -> None:
        """Set the first moments, in `memory` (P,) by name, to zero."""
        for name in self.momentum_vectors:
            memory[name].zero_()

    def share_after_reset(self, steps: int) -> float:
        """Return the distance that `steps` steps move under a constant gradient after the first moments were set to
        zero, as a share of the distance with the moments kept: above 0, and at most 1, its value without momentum."""
        return 1.0

    @abstractmethod
    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        """Return the update of the row whose chunks are `x`, (C,) each, or its parameters in their shapes
        (`by_parameters`), with memory by name beside each, and scalars (len(self.scalars),). All are views that go on
        belonging to the caller."""

    def attach_copying(self, x: Tensor, memory: Mapping[str, Tensor], copy: Tensor | None) -> "CopyingUpdate | None":
        """Return an update of the whole row `x` (P,) in one pass, which also leaves the row in `copy` (P,), if given;
        None if the row's device has no such pass."""
        return None


@dataclass(frozen=True)
class Sgd(LocalOptimizer):
    """Stochastic gradient descent with momentum, in torch.optim.SGD's convention (dampening 0):

        g <- g + weight_decay * x
        v <- momentum * v + g
        x <- x - rate * v                    (heavy ball)
        x <- x - rate * (g + momentum * v)   (Nesterov)

    Elementwise, so that it can walk a row chunk by chunk while the chunk is in cache.
    """

    name: Literal["sgd"] = field(default="sgd", kw_only=True)
    momentum: ShareBelowOne = 0.0
    """Momentum."""
    nesterov: bool = False
    """Nesterov's momentum instead of the heavy ball."""
    weight_decay: NonNegative = 0.0
    """L2 penalty."""

    def __post_init__(self) -> None:
        check_values(self, "optimizer")
        if self.nesterov and not self.momentum:
            raise UserError("optimizer.nesterov needs optimizer.momentum above 0.")

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    @property
    def momentum_vectors(self) -> tuple[str, ...]:
        return self.memory

    def share_after_reset(self, steps: int) -> float:
        """Return the share as of `LocalOptimizer`. Step t after the reset moves (1 - momentum^t) / (1 - momentum)
        gradients, or, under Nesterov, one step later's; with the buffer kept all move 1 / (1 - momentum). Summed over t
        = 1, ..., steps."""
        return after_reset(self.momentum, steps, ahead=self.nesterov)

    def attach(
        self, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]], scalars: NDArray[np.float64]
    ) -> RowUpdate:
        return _SgdUpdate(self, x, memory)

    def attach_copying(self, x: Tensor, memory: Mapping[str, Tensor], copy: Tensor | None) -> "CopyingUpdate | None":
        kernel, momentum = sgd_kernel(x.device), memory["momentum"] if self.momentum else None
        return None if kernel is None else CopyingUpdate(self, kernel, x, momentum, copy)

    def update_(self, x: Tensor, gradient: Tensor, memory: Mapping[str, Tensor], rate: float) -> None:
        """Update `x` (C,) in place, and `memory`; `gradient` (C,) is only read."""
        if x.device.type == "cuda":
            self.fused_update_(x, gradient, memory, rate)
            return
        if self.weight_decay:
            gradient = gradient.add(x, alpha=self.weight_decay)
        if not self.momentum:
            x.add_(gradient, alpha=-rate)
            return
        v = memory["momentum"]
        v.mul_(self.momentum).add_(gradient)
        if self.nesterov:
            x.add_(gradient.add(v, alpha=self.momentum), alpha=-rate)
        else:
            x.add_(v, alpha=-rate)

    def fused_update_(self, x: Tensor, gradient: Tensor, memory: Mapping[str, Tensor], rate: float) -> None:
        """Update `x` as `update_` does, to rounding, in one kernel: a whole row then passes through memory once."""
        sgd(
            [x],
            [gradient],
            [memory["momentum"] if self.momentum else None],
            fused=True,
            lr=rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            dampening=0.0,
            maximize=False,
        )


class _SgdUpdate(RowUpdate):
    def __init__(self, sgd: Sgd, x: Sequence[Tensor], memory: Sequence[Mapping[str, Tensor]]) -> None:
        self._sgd, self._x, self._memory = sgd, x, memory

    def update_(self, number: int, gradient: Tensor, rate: float) -> None:
        self._sgd.update_(self._x[number], gradient, self._memory[number], rate)


class CopyingUpdate:
    """An SGD update of a whole row that also leaves the new row in a copy."""

    def __init__(self, sgd: Sgd, kernel: Kernel, x: Tensor, memory: Tensor | None, copy: Tensor | None) -> None:
        self._sgd, self._kernel, self._vectors = sgd, kernel, (x, memory, copy)

    def update_(self, gradient: Tensor, rate: float) -> None:
        """Update the row (P,) in place, its memory, and the copy."""
        (x, memory, copy), sgd = self._vectors, self._sgd
        self._kernel(x, gradient, memory, copy, StepNumbers(rate, sgd.momentum, sgd.nesterov, sgd.weight_decay))


def after_reset(momentum: float, steps: int, ahead: bool = False) -> float:
    """Return the share of the distance that `steps` steps of heavy-ball momentum move under a constant gradient when
    the buffer starts at zero instead of full: the mean of 1 - momentum^t over t = 1, ..., steps, or, with Nesterov's
    look-ahead (`ahead`), over t = 2, ..., steps + 1."""
    return 1 - momentum ** (2 if ahead else 1) * (1 - momentum**steps) / (steps * (1 - momentum))
