"""BSP model averaging: every learner trains alone for `period` steps, then all take the mean of their models.

    x <- sum_l n_l x_l / sum_l n_l        n_l frames learner l has trained since the last mean

(Li et al. 2017, equation 1, with the weights of that paper's own code.)

Sent: one model (4 P bytes) a learner every `period` steps. Waits: all learners for the slowest, every `period` steps.
Momentum buffers stay local.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.core.bounds import Count
from roundelay.core.state import Me
from roundelay.strategies.quorate import Quorate


@dataclass(frozen=True)
class Bsp(Quorate):
    """Periodic model averaging."""

    period: Count = 5

    name: ClassVar[str] = "bsp"

    def end_block(self, me: Me, mean: Tensor) -> None:
        me.replace(mean)
