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
"""Told, while a gradient is computed, from which element on it is complete."""


class Stopped(Exception):
    """An evaluation was stopped before its end."""


class Learner(ABC):
    """Gradients of one objective. One object lives in each process; it keeps no state between calls that could matter.

    `gradient` must be a pure function of the point, the minibatch and the plan: its random numbers (dropout) come from
    a stream named by the minibatch.
    """

    parameters: int
    examples: int
    sequences: int | None = None
    """Training sequences that the examples are drawn as; None: they are drawn one by one."""
    shards: tuple[int, ...] = ()
    """Training examples in every shard, -1 where a shard is not on this host; none: they are not in shards."""
    common: tuple[float, ...] = ()
    """Numbers that were measured on the examples here and must be the same for all learners (`Task.begun_as`)."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the parameters that lie one after another in a point; none: it is one vector."""
    unit: str = "frames"
    """The examples, in the plural, for people."""
    measured: str = "cross-entropy"
    """The mean loss of `evaluate`, for people."""
    right: str = "accuracy"
    """The share of examples that `evaluate` counts, for people."""
    device: torch.device | None = None
    """The device it computes on, if points and gradients may be there too; None: where the runtime has them."""
    stop: Callable[[], bool] | None = None
    """A function that the caller of `evaluate` may set: asked during the work, which ends with `Stopped` where it
    returns True."""

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
            on_ready: may be called meanwhile: from this element on, `out` is as it will be, and may be sent.
        """

    @property
    def together_pays(self) -> bool:
        """Is one call of `gradients` faster than many of `gradient`, and no less exact?"""
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
            Stopped: `stop` said so.
        """

    def may_stop(self) -> None:
        """Ask `stop`; for `evaluate`, now and then.

        Raises:
            Stopped: it says so.
        """
        if self.stop is not None and self.stop():
            raise Stopped


class Task(ABC):
    """A picklable description of a learner; each process builds its own."""

    @property
    def in_shards(self) -> bool:
        """Are the training examples in shards, so that hosts may have different ones?"""
        return False

    def begun_as(self, common: Sequence[float]) -> "Task":
        """Return the same task with these numbers in the place of those that `build` would measure here.

        Raises:
            ValueError: it has no such numbers.
        """
        raise ValueError(f"{type(self).__name__} measures nothing")

    @abstractmethod
    def build(self) -> Learner:
        """Construct the learner: open files, make the module."""


class TimingLearner(Learner):
    """Counts frames. Rows are empty, so every equation of every strategy is done at once."""

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
    """A task of so many examples and without parameters."""

    examples: int = 10_000

    def build(self) -> Learner:
        return TimingLearner(self.examples)
