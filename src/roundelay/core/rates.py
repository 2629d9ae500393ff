"""Learning rates inside an epoch: data, so that every process computes the same rate for the same round."""

from dataclasses import dataclass
from typing import Literal

LearnersRate = Literal["auto", "as-is", "fastest", "gain", "linear"]
"""Name of a factor on the learning rate of several learners (runtime/learners_rate.py)."""


@dataclass(frozen=True)
class Warmup:
    """A factor on the learning rate that goes in a straight line from `start` to 1 while the run trains its first
    `rounds` rounds, and stays there."""

    start: float
    rounds: float
    done: int = 0  # rounds of the epochs before this one

    def factor(self, round_: int) -> float:
        """Return the factor at round `round_` of this epoch, counted from 0."""
        share = (self.done + round_) / self.rounds
        return 1.0 if share >= 1 else self.start + (1 - self.start) * share
