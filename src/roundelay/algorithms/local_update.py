"""The local optimizer: what one learner does to its own row with one gradient.

Legend: P parameters, C elements of a chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from roundelay.core.errors import UserError


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum, in torch.optim.SGD's convention (dampening 0):

        g <- g + weight_decay * x
        v <- momentum * v + g
        x <- x - rate * v                    (heavy ball)
        x <- x - rate * (g + momentum * v)   (Nesterov)

    Elementwise, so that it can walk a row chunk by chunk while the chunk is in cache.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise UserError(f"optimizer.momentum is {self.momentum}: choose a number from 0 up to, not including, 1.")
        if not self.weight_decay >= 0:
            raise UserError(f"optimizer.weight_decay is {self.weight_decay}: it cannot be negative.")
        if self.nesterov and not self.momentum:
            raise UserError("optimizer.nesterov needs optimizer.momentum above 0.")

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the vectors (P,) that belong to a learner besides its row."""
        return ("momentum",) if self.momentum else ()

    def update_(self, x: Tensor, gradient: Tensor, memory: Mapping[str, Tensor], rate: float) -> None:
        """Update `x` (C,) in place, and `memory`; `gradient` (C,) is only read: it may be shared by several
        learners."""
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
