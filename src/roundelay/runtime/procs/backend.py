"""The backend of learners that share an arena: the engine's requests, done in shared memory.

Minibatches and gradients come from the learner's work: its share of a plan (`worker.py`), or another training loop
(`external_work.py`).

Legend: P parameters.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from roundelay.core.cores import coreless_seconds
from roundelay.core.effects import Effect, Gather, Grad, GradMean, Mean, Mix, Reach
from roundelay.core.flat import WHOLE
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import ClockedBackend, Later
from roundelay.runtime.coding import arrived
from roundelay.runtime.procs.coordination import queue
from roundelay.runtime.procs.coordination.activity import number_of
from roundelay.runtime.procs.coordination.gatherings import Attendee, Next
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.vectors import ArenaAccess, Vectors
from roundelay.runtime.rows import Row, reach

CORELESS_SECONDS = 0.1
"""Interval between looks for time without a core."""


class LearnerWork(ABC):
    """One learner's minibatches, and gradients over them."""

    at_once: tuple[type[Effect[Any]], ...] = ()
    """Effects whose replies take no time, or come LATER: no table shows a learner in them."""

    @abstractmethod
    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        """Return the learner's next minibatch, as `Backend.draw` does."""

    @abstractmethod
    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        """Return the learner's gradient over the minibatch drawn last, as `Backend.gradient` does."""

    @property
    def weighs_first(self) -> bool:
        """True if the weight of a gradient is known before the gradient is computed."""
        return True


class ArenaBackend(ClockedBackend):
    """Performs the requests of one learner's engine.

    Args:
        vectors: row, memory and gradient buffer of the learner.
        means: the learner's part in means with others.
    """

    def __init__(self, access: ArenaAccess, vectors: Vectors, means: Means, work: LearnerWork) -> None:
        self._arena, self._rank, self._rows = access.arena, access.rank, access.rows
        self._vectors, self._means, self._work = vectors, means, work
        self._alive, self._doing = access.arena.liveness.alive, access.arena.activity.doing
        self._centre, self._patience = access.arena.layout.learners, access.patience
        self._attendee, self._at_once = Attendee(access.arena, access.rank), work.at_once
        self._coreless = self._next_look = 0.0

    now = staticmethod(time.monotonic)

    def entered(self, effect: Effect[Any], at: float) -> None:
        if not isinstance(effect, self._at_once):
            self._doing[:, self._rank] = *number_of(effect), int(1000 * at)

    def left(self) -> None:
        self._doing[0, self._rank] = 0

    # Minibatches and gradients ----------------------------------------------------------------------------------------

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        return self._work.draw(group)

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        return self._work.gradient(effect, on_ready)

    def settle(self, statistics: Statistics) -> None:
        queue.settle(self._arena, self._rank, statistics)
        if (now := self.now()) >= self._next_look:
            before, self._coreless, self._next_look = self._coreless, coreless_seconds(), now + CORELESS_SECONDS
            self._arena.counts.coreless_s[self._rank] += self._coreless - before

    # Means ------------------------------------------------------------------------------------------------------------

    def announce(self, effect: GradMean) -> OnReady | None:
        """Announce a mean over several hosts or between devices, which begins while the gradient is computed. The mean
        of a gradient that is coded, or whose weight is not known yet, begins when the whole gradient is there."""
        if not effect.codec.exact or not self._work.weighs_first:
            return None
        on_ready = self._means.announce_gradient(float(effect.batch.frames), effect.group, effect.at.vector)
        return None if on_ready is None else self._vectors.streamed(on_ready)

    def publish_gradient(self, effect: GradMean, gradient: Gradient, on_ready: OnReady | None) -> None:
        if on_ready is not None:
            on_ready(0)
            return
        if not effect.codec.exact:
            vector = arrived(effect.codec, gradient.vector, gradient.weight, self._vectors.memory)
            self._means.publish(vector, gradient.weight, effect.group, codec=effect.codec)
            return
        self._vectors.show_gradient()
        self._means.publish_gradient(gradient.weight, effect.group)

    def publish(self, effect: Mean | Mix) -> None:
        codec, weight, fragment = effect.codec, 1.0, WHOLE
        if isinstance(effect, Mean):
            weight, fragment = effect.weight, effect.fragment
        vector = arrived(codec, effect.vector, weight, self._vectors.memory, fragment)
        if isinstance(effect, Mean):
            self._means.publish(vector, weight, effect.group, codec=codec)
        else:
            self._means.publish(vector, weight, readers=effect.readers, codec=codec)

    def collect(self, effect: Mean | Mix | GradMean, published: Any) -> Tensor:
        if isinstance(effect, Mix):
            return self._vectors.reply(self._means.collect_neighbours(effect.weights))
        elements = len(effect.vector) if isinstance(effect, Mean) else None
        return self._vectors.reply(self._means.collect(effect.group), elements)

    # Gatherings -------------------------------------------------------------------------------------------------------

    def begin_segment(self, opens: bool = False) -> None:
        """Begin a segment at the model of the last gathering; with `opens`, where no parent does, open a gathering."""
        self._attendee.begin(opens)
        self._coreless = coreless_seconds()

    def admits(self, effect: Gather) -> bool:
        return self._attendee.admits(effect)

    def closes(self, effect: Gather) -> bool:
        here, found = self._attendee, Next.WAIT

        def over() -> bool:
            nonlocal found
            found = here.next(effect)
            return found is not Next.WAIT

        if here.arrives(effect):
            self._patience.until(over, "others to come to a gathering", missing=here.absent)
        return found is Next.CLOSE

    def closed(self, effect: Gather) -> None:
        self._attendee.closed()

    # Rows -------------------------------------------------------------------------------------------------------------

    def lives(self, peer: int) -> bool:
        return peer == self._centre or bool(self._alive[peer])

    def reach(self, effect: Reach) -> int | None:
        return reach(self._vectors.row, self._rows[effect.peer], effect)

    def deferrable(self, peer: int) -> Row | None:
        return self._rows[peer]
