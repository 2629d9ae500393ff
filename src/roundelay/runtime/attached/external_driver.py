"""A worker that nobody sends commands: gradients come from outside, from somebody else's training loop (learner.py).

Legend: P parameters.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from roundelay.core.effects import Effect
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.runtime.base import SegmentPlan
from roundelay.runtime.procs.worker import Worker
from roundelay.strategies.base import Traits

RowsAre = Literal["on the host", "on the host, the module elsewhere", "on a device of its own", "shared on devices"]
"""Where rows are, seen from a module."""
NO_PLAN = EpochPlan(0, 0, 1, 1, 0)


class ByHand(Learner, Task):
    """Gradients come from outside: they lie in the gradient buffer when they are asked for."""

    def __init__(self, parameters: int, device: torch.device | None) -> None:
        self.parameters, self.examples, self.device = parameters, 0, device

    def build(self) -> Learner:
        return self

    def initial(self) -> Tensor:
        raise NotImplementedError("the rows were written by rank 0")

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor) -> Statistics:
        return Statistics(round(batch.frames))

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        raise NotImplementedError("somebody else's loop evaluates")


class Performer(Worker):
    """Performs effects; nobody sends it commands."""

    def _copies(self, traits: Traits) -> bool:
        """Always: the loop looks at the point between steps as well."""
        return True

    def _place_for_copy(self, row: Tensor) -> Tensor:
        """Where the module is."""
        return torch.empty_like(row, device=self.learner.device or row.device)

    @property
    def where(self) -> RowsAre:
        """Its row."""
        if self.learner.device is None:
            return "on the host"
        if self._device_copy is None:
            return "on the host, the module elsewhere"
        return "shared on devices" if self.arena.on_devices and self.me.learners > 1 else "on a device of its own"

    def move_in(self) -> None:
        """The row goes to where the learner has it between meetings."""
        if self._device_copy is not None:
            self._device_copy.move_in()

    def move_out(self) -> None:
        """It goes to where others read it."""
        if self._device_copy is not None:
            self._device_copy.move_out()

    def begin(self, living: tuple[int, ...]) -> None:
        """A segment begins."""
        self._plan, self._trained = NO_PLAN, None
        self.me.begin_segment(SegmentPlan(NO_PLAN, 0.0), living, self.cluster.strategy.traits.ages)
        self.means.begin_segment()

    def perform(self, effect: Effect[Any]) -> Any:
        """Any effect but Draw."""
        return self._perform(effect)

    def settle(self) -> None:
        """The strategy has gone on."""
        self._settle()
