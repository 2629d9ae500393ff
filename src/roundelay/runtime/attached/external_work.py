"""The work of an attached learner: minibatches and gradients of somebody else's training loop.

Legend: P parameters.
"""

from torch import Tensor

from roundelay.core.effects import Grad, GradMean
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, Later
from roundelay.runtime.procs.backend import LearnerWork

NUMBERLESS = Minibatch(0, -1, 0, 0)
"""A minibatch of somebody else's: how many examples it has, its gradient says."""


class ExternalWork(LearnerWork):
    """Answers LATER until the loop has begun a minibatch, or has the gradient of one in `buffer` (P,)."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._drawn: Minibatch | Later | None = LATER
        self._examples: float | None = None

    @property
    def weighs_first(self) -> bool:
        return False

    def hand_out(self, batch: Minibatch | None) -> None:
        """The answer to the next Draw, once."""
        self._drawn = batch

    def hand_in(self, examples: float) -> None:
        """The answer to the next Grad, once: the buffer holds the mean gradient of so many examples."""
        self._examples = examples

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        found, self._drawn = self._drawn, LATER
        return found

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        examples, self._examples = self._examples, None
        if examples is None:
            return LATER
        return Gradient(self._buffer, effect.at.version, Statistics(round(examples)), examples)
