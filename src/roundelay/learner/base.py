"""Learners and tasks: the seam between a strategy and the task it trains.

Legend: P parameters, B gradients computed together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics

OnReady = Callable[[int], None]
"""Called, while a gradient is computed, with the element from which on it is complete."""


class Stopped(Exception):
    """Raised when an evaluation is stopped before its end."""


class Learner(ABC):
    """Gradients of one objective. One object lives in each process; it keeps no state between calls that could matter.

    `gradient` must be a pure function of the point, the minibatch and the plan: its random numbers (dropout) come from
    a stream named by the minibatch.
    """

    parameters: int
    examples: int
    sequences: int | None = None
    """Number of training sequences, if examples are drawn as sequences; None: they are drawn one by one."""
    shards: tuple[int, ...] = ()
    """Number of training examples in every shard, -1 for a shard that is not on this host; empty: there are no shards.
    """
    common: tuple[float, ...] = ()
    """Numbers that were measured on the examples here and must be the same for all learners (`Task.begun_as`)."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the consecutive parameters in a point; empty: a point is one vector."""
    unit: str = "frames"
    """Name of the examples for people, in the plural."""
    measured: str = "cross-entropy"
    """Name of the mean loss of `evaluate`, for people."""
    right: str = "accuracy"
    """Name of the share of examples that `evaluate` counts, for people."""
    device: torch.device | None = None
    """Device of computation, if points and gradients may be there too; None: where the runtime has them."""
    stop: Callable[[], bool] | None = None
    """Function that the caller of `evaluate` may set; if it returns True during the work, `evaluate` raises `Stopped`.
    """

    @property
    def wording(self) -> dict[str, str]:
        """Fields of records that name the units counted and measured."""
        return {"examples": self.unit, "measured": self.measured, "right": self.right}

    @abstractmethod
    def initial(self) -> Tensor:
        """Return the starting point, (P,) float32; the same on every call and in every process."""

    @abstractmethod
    def gradient(
        self,
        x: Tensor,
        batch: Minibatch,
        plan: EpochPlan,
        out: Tensor,
        *,
        resident: bool = False,
        on_ready: OnReady | None = None,
    ) -> Statistics:
        """Write the mean gradient over `batch` at `x` (P,) into `out` (P,); zeros for an empty minibatch.

        Args:
            resident: `x` and `out` are on `device` already, so nothing need be copied.
            on_ready: may be called meanwhile with the element from which on `out` is final, and may be sent.
        """

    @property
    def together_pays(self) -> bool:
        """True if one call of `gradients` is faster than many of `gradient`, and no less exact."""
        return False

    def gradients(self, x: Tensor, batches: Sequence[Minibatch], plan: EpochPlan, out: Tensor) -> list[Statistics]:
        """Return `gradient` at every row of `x` (B, P), each over its own minibatch, into the rows of `out` (B, P).

        Equal to one after another up to rounding, and to the bit between two equal calls.
        """
        return [self.gradient(at, batch, plan, into) for at, batch, into in zip(x, batches, out, strict=True)]

    @abstractmethod
    def evaluate(self, x: Tensor, split: str) -> Statistics:
        """Return loss and accuracy at `x` (P,) on the examples of `split`.

        Raises:
            Stopped: `stop` returned True.
        """

    def may_stop(self) -> None:
        """Raise `Stopped` if `stop` returns True; `evaluate` calls this from time to time.

        Raises:
            Stopped: it says so.
        """
        if self.stop is not None and self.stop():
            raise Stopped


class Task(ABC):
    """A picklable description of a learner; each process builds its own."""

    @property
    def in_shards(self) -> bool:
        """True if the training examples are in shards, so that hosts may have different ones."""
        return False

    def begun_as(self, common: Sequence[float]) -> "Task":
        """Return this task with the numbers `common` in place of those that `build` would measure on its own examples.

        Raises:
            ValueError: the task has no such numbers.
        """
        raise ValueError(f"{type(self).__name__} has no numbers that `build` measures")

    @abstractmethod
    def build(self) -> Learner:
        """Construct the learner: open files, make the module."""


class TimingLearner(Learner):
    """A learner without parameters that only counts frames: with empty rows, every equation of a strategy is done at
    once."""

    def __init__(self, examples: int) -> None:
        self.parameters, self.examples = 0, examples

    def initial(self) -> Tensor:
        return torch.empty(0)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        return Statistics(batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics(1)


@dataclass(frozen=True)
class TimingOnly(Task):
    """A task with `examples` examples and no parameters, for simulations of time alone."""

    examples: int = 10_000

    def build(self) -> Learner:
        return TimingLearner(self.examples)
