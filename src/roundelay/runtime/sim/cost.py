"""What things cost in virtual time."""

import math
from dataclasses import dataclass

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay.runtime.base import Straggler


@dataclass(frozen=True)
class CostModel:
    """Seconds. Delay belongs to the link and to the processor, never to a strategy.

    gradient      one minibatch on one learner, where `frames_per_gradient` is None; else per so many frames, in
    proportion jitter        sigma of a log-normal factor on it with mean 1, drawn per learner and step (0: none)
    exchange      one atomic exchange of two rows; both rows are busy meanwhile and further exchanges with either queue
    up allreduce     one allreduce after its last participant arrived, for two learners; a ring allreduce moves
                  2 (L - 1) / L of the vector, so L learners pay that relative to two
    """

    gradient: float = 0.1
    frames_per_gradient: int | None = None
    jitter: float = 0.0
    exchange: float = 0.005
    allreduce: float = 0.03

    def __post_init__(self) -> None:
        for name in ("gradient", "jitter", "exchange", "allreduce"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"cost.{name} is {value}: give seconds, 0 or more.")
        if self.frames_per_gradient is not None and self.frames_per_gradient < 1:
            raise UserError(
                f"cost.frames_per_gradient is {self.frames_per_gradient}: give a number of frames, 1 or more."
            )

    def gradient_ns(self, straggler: Straggler, frames: int, seed: int, step: int) -> int:
        """One gradient of learner `straggler.rank` at its local step `step`."""
        seconds = self.gradient
        if self.frames_per_gradient is not None:
            seconds *= frames / self.frames_per_gradient
        if self.jitter:
            normal = stream(seed, "jitter", straggler.rank, step).standard_normal()
            seconds *= math.exp(self.jitter * normal - self.jitter**2 / 2)
        return nanoseconds(seconds * straggler.factor + straggler.seconds)

    def allreduce_ns(self, learners: int) -> int:
        """One allreduce among `learners`; nothing for one."""
        return nanoseconds(self.allreduce * 2 * (learners - 1) / learners)

    def exchange_ns(self) -> int:
        """One exchange."""
        return nanoseconds(self.exchange)


def nanoseconds(seconds: float) -> int:
    """Virtual time is an integer, so that sums do not depend on the order of adding."""
    return round(seconds * 1e9)
