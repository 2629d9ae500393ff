"""Rows, versions, and a strategy's view of its learner.

Legend: P parameters of the model, L learners.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Minibatch:
    """Examples `start` to `stop` of the epoch's shuffled order. Plain data, which can be recorded, sent, and drawn
    again."""

    epoch: int
    index: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """Number of examples: frames of speech, or other units."""
        return self.stop - self.start


@dataclass(frozen=True)
class Snapshot:
    """A private copy of a row: its values (P,) and the version they were read at."""

    vector: Tensor
    version: int


@dataclass(frozen=True)
class Statistics:
    """Sums of loss and correct answers over examples; those of parts add up to those of the whole."""

    frames: int = 0
    loss: float = 0.0  # summed; of a classification cross-entropy in nats, even if its objective minimises another
    correct: int = 0

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(self.frames + other.frames, self.loss + other.loss, self.correct + other.correct)

    @property
    def mean_loss(self) -> float:
        """Mean loss, nats per frame."""
        return self.loss / max(1, self.frames)

    @property
    def accuracy(self) -> float:
        """Share of frames that are right, 0 to 1."""
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
        """Ranks of all learners."""

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks of the learners that were alive when the segment began; the same for all learners."""

    @property
    def centre(self) -> int:
        """Rank of the centre row in `Exchange` and `Fetch`, if the strategy has a centre."""

    @property
    def learning_rate(self) -> float:
        """Present learning rate of the local update."""

    @property
    def steps(self) -> int:
        """Number of local updates since the beginning of the run; it survives checkpoints, so streams keyed by it go
        on."""

    @property
    def x(self) -> Tensor:
        """The row itself, (P,), to be read only, and only by strategies in which no other learner writes it."""

    @property
    def memory(self) -> Mapping[str, Tensor]:
        """The private vectors (P,) this learner's strategy and optimizer have declared, by name."""

    @property
    def minibatches_a_round(self) -> int:
        """Minibatches of one learner's size in a round of all: 1 if they share one (`training.minibatch` is the total),
        L if each has its own (attach)."""

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        """The first moments (P,) that the local optimizer keeps, by name; they may be written."""

    def reset_momentum(self) -> None:
        """Set the local optimizer's first moments to zero."""

    def share_after_reset(self, steps: int) -> float:
        """Return the distance of `steps` steps after `reset_momentum`, as a share of the distance without it, under a
        constant gradient."""

    def snapshot(self) -> Snapshot:
        """Return a copy of the row, valid until the next snapshot."""

    def step(self, gradient: Gradient) -> None:
        """Take one step of the local optimizer on the row as it is now."""

    def replace(self, vector: Tensor) -> None:
        """Overwrite the row with `vector` (P,). For synchronous strategies: no other learner may have written the row
        since."""
