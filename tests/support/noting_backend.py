"""A backend that only takes notes, on a clock that is turned by hand."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Gather, Grad, GradMean, Mean, Mix, Reach
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, ClockedBackend, Later
from roundelay.runtime.base import Counts, SegmentPlan
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.rows import Deferred, Lock, Row, reach
from roundelay.runtime.trace import Kind

P = 4
VECTOR = torch.ones(P)
BATCH = Minibatch(0, 0, 0, 8)
PLAN = SegmentPlan(EpochPlan(0, 240, 24, 3, 0), 0.5)


class HandLock(Lock):
    """A lock that a test may hold in the place of another learner."""

    taken = False

    def acquire(self) -> None:
        assert self.try_acquire()

    def try_acquire(self) -> bool:
        if self.taken:
            return False
        self.taken = True
        return True

    def release(self) -> None:
        self.taken = False


class Notes(ClockedBackend):
    """Backend of learner 0 of three, which notes what it is asked for. A primitive takes one second, a gradient
    four."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.clock = 0.0
        self.dead: set[int] = set()
        self.ready = True  # does it answer draws and gradients?
        self.lost = False  # does a mean fail?
        self.counts_what_comes = True  # to a gathering
        versions = np.zeros(3, np.int64)
        self.rows = [Row(rank, torch.full((P,), float(rank)), versions, HandLock(), trace=self) for rank in range(3)]
        self.counts = Counts.zeros(3)
        self.deferred = Deferred()
        self.me = LearnerState(
            LearnerPlace(0, 3, 0),
            LearnerVectors(self.rows[0], torch.zeros(P), torch.empty(P), {}),
            Sgd(),
            LearnerTables(np.zeros(3, np.int64), self.counts, np.zeros(0)),
            deferred=self.deferred,
        )
        self.me.begin_segment(PLAN, (0, 1, 2), "row")

    def said(self, what: str, seconds: float = 1.0) -> None:
        """Note that `what` was asked for, and advance the clock by `seconds`."""
        self.log.append(what)
        self.clock += seconds

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        if kind in (Kind.GONE, Kind.DRAW, Kind.GRAD):
            self.log.append(f"note {kind.name.lower()}")

    def now(self) -> float:
        return self.clock

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        if not self.ready:
            return LATER
        self.said("draw")
        return BATCH

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        if not self.ready:
            return LATER
        self.said("gradient", 4.0)
        return Gradient(VECTOR, effect.at.version, Statistics(8, 2.0), 8.0)

    def settle(self, statistics: Statistics) -> None:
        self.log.append(f"settle {statistics.frames}")

    def publish(self, effect: Mean | Mix) -> Any:
        self.said("publish")
        return effect.vector.clone()

    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> Any:
        self.said(f"publish gradient of weight {gradient.weight:g}")
        return gradient.vector

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor | Later:
        self.said("collect")
        if self.lost:
            raise LookupError("a member is lost")
        found: Tensor = published
        return found

    def admits(self, effect: Gather) -> bool | Later:
        self.said("admits")
        return self.counts_what_comes

    def closes(self, effect: Gather) -> bool | Later:
        self.said("closes")
        return True

    def closed(self, effect: Gather) -> Later | None:
        self.log.append("closed")
        return None

    def lives(self, peer: int) -> bool:
        return peer not in self.dead

    def reach(self, effect: Reach) -> int | Later | None:
        self.said(f"{type(effect).__name__.lower()} {effect.peer}")
        return reach(self.rows[0], self.rows[effect.peer], effect)

    def deferrable(self, peer: int) -> Row | None:
        return self.rows[peer]
