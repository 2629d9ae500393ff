"""A learner's coroutine while it runs, and who replies are for."""

from collections.abc import Callable
from typing import Any

from roundelay.core.effects import Effect, Handle
from roundelay.core.state import Gradient, Minibatch
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.sim.timed import TimedLearner


class LearnerCoroutine:
    """One learner's coroutine in one segment: `send` goes on with it, `claims` are the minibatches it works on."""

    __slots__ = ("claims", "gone", "me", "rank", "send")

    def __init__(self, me: LearnerState | TimedLearner, send: Callable[[Any], Effect[Any]]) -> None:
        self.me, self.rank, self.send = me, me.rank, send
        self.claims: list[Minibatch] = []
        self.gone = False


class InForeground(Handle[Any]):
    """Begun, but done by the learner itself: `holds` waits for its end now; a mean costs `cost_ns` when waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: LearnerCoroutine | None = None
        self.cost_ns = 0


To = LearnerCoroutine | Handle[Any]
"""The receiver of a reply: a learner that waits, or the handle of what it has begun."""

Meeting = tuple[LearnerCoroutine, To, Gradient | None, Minibatch | None]
"""A learner that has come to a mean; for a GradMean also its own gradient, and the minibatch it is over."""
