"""Rows, versions, and a strategy's view of its learner.

Legend: P parameters of the model, L learners.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Minibatch:
    """Examples `start` to `stop` of the epoch's shuffled order. Data only: it can be recorded, sent, and drawn
    again."""

    epoch: int
    index: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """Number of examples: frames of speech here, other units of other learners."""
        return self.stop - self.start


@dataclass(frozen=True)
class Snapshot:
    """A private copy of a row: its values (P,) and the version they were read at."""

    vector: Tensor
    version: int


@dataclass(frozen=True)
class Statistics:
    """Sums over examples; they add up."""

    frames: int = 0
    loss: float = 0.0  # summed; of a classification cross-entropy in nats, even if its objective minimises another
    correct: int = 0

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(self.frames + other.frames, self.loss + other.loss, self.correct + other.correct)

    @property
    def mean_loss(self) -> float:
        """Nats per frame."""
        return self.loss / max(1, self.frames)

    @property
    def accuracy(self) -> float:
        """Share of frames right, 0 to 1."""
        return self.correct / max(1, self.frames)


@dataclass(frozen=True)
class Gradient:
    """The mean gradient (P,) over a minibatch, and the version of the row it was taken at.

    `weight` is its weight in a mean: the frames of its minibatch, or, where a user's loop computes gradients (attach),
    as many examples as the loop says, fractions included.
    """

    vector: Tensor
    version: int
    statistics: Statistics
    weight: float = 0.0


class Me(Protocol):
    """A learner as its own strategy sees it. Every method that touches the row is atomic and raises its version."""

    rank: int
    learners: int
    seed: int

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that lived when the segment began; the same for all learners."""

    @property
    def centre(self) -> int:
        """Rank that stands for the centre row in `Exchange` and `Fetch`, where the strategy has one."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the local update now."""

    @property
    def steps(self) -> int:
        """Local updates since the beginning of the run; survives checkpoints, so streams keyed by it go on."""

    @property
    def x(self) -> Tensor:
        """The row itself, (P,), to be read only, and only by strategies in which no other learner writes it."""

    @property
    def memory(self) -> Mapping[str, Tensor]:
        """The private vectors (P,) this learner's strategy and optimizer have declared, by name."""

    @property
    def minibatches_a_round(self) -> int:
        """One learner's minibatches that a round of all learners stands for: 1 where they share one
        (`training.minibatch` is the total), L where each has one of its own (attach)."""

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        """The first moments (P,) that the local optimizer keeps, by name; they may be written."""

    def reset_momentum(self) -> None:
        """Set the local optimizer's first moments to zero."""

    def share_after_reset(self, steps: int) -> float:
        """Return distance of `steps` steps after `reset_momentum`, as a share of the distance without it, under a
        constant gradient."""

    def snapshot(self) -> Snapshot:
        """Return a copy of the row. Valid until the next snapshot."""

    def step(self, gradient: Gradient) -> None:
        """Take one step of the local optimizer on the row as it is now."""

    def replace(self, vector: Tensor) -> None:
        """Overwrite the row by `vector` (P,). For synchronous strategies: no other learner may have written it
        meanwhile."""
