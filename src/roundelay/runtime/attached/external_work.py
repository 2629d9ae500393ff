"""The work of an attached learner: minibatches and gradients of somebody else's training loop.

Legend: P parameters.
"""

from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from roundelay.core.effects import Draw, Grad, GradMean
from roundelay.core.state import Gradient, Minibatch, Statistics
from roundelay.learner.base import OnReady
from roundelay.runtime.backend import LATER, Later
from roundelay.runtime.procs.backend import LearnerWork

LayOut = Callable[[], Tensor]
"""Answers with a gradient's vector, (P,)."""
GRADIENTS = (Grad, GradMean)
"""Effects that a gradient answers."""
NUMBERLESS = Minibatch(0, -1, 0, 0)
"""A minibatch of somebody else's: how many examples it has, its gradient says."""


@final
class LoopGradient(Gradient):
    """The loop's own gradient, whose vector is laid out when somebody asks for it: most strategies never do, and a copy
    costs two passes over its elements.

    Args:
        lay_out: the vector (P,), as long as the answer that this gradient was given with is under way.
    """

    def __init__(self, lay_out: LayOut, version: int, statistics: Statistics, weight: float) -> None:
        self.__dict__.update(lay_out=lay_out, version=version, statistics=statistics, weight=weight)

    def __getattr__(self, name: str) -> Any:  # of what is not there yet
        if name != "vector":
            raise AttributeError(name)
        vector = self.__dict__["lay_out"]()
        object.__setattr__(self, name, vector)
        return vector


class ExternalWork(LearnerWork):
    """Answers LATER until the loop has begun a minibatch, or has the gradient of one, (P,), which lies in `buffer` or
    can be laid out."""

    at_once = (Draw, Grad)

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._drawn: Minibatch | Later | None = LATER
        self._examples: float | None = None
        self._lay_out: LayOut | None = None
        self._last = 0.0, Statistics()  # examples of the last gradient

    @property
    def weighs_first(self) -> bool:
        return False

    def hand_out(self, batch: Minibatch | None) -> None:
        """Answer the next Draw, once."""
        self._drawn = batch

    def hand_in(self, examples: float, lay_out: LayOut | None = None) -> None:
        """Answer the next Grad, once, by the mean gradient of so many examples. `lay_out` answers with its vector (P,);
        None: it is in the buffer."""
        self._examples, self._lay_out = examples, lay_out

    def draw(self, group: tuple[int, ...]) -> Minibatch | Later | None:
        found, self._drawn = self._drawn, LATER
        return found

    def gradient(self, effect: Grad | GradMean, on_ready: OnReady | None) -> Gradient | Later:
        examples, self._examples = self._examples, None
        if examples is None:
            return LATER
        lay_out = self._lay_out or (lambda: self._buffer)
        if examples != self._last[0]:  # most steps have as many
            self._last = examples, Statistics(round(examples))
        statistics = self._last[1]
        if isinstance(effect, GradMean) and not effect.of_one:  # the others read the buffer
            return Gradient(lay_out(), effect.at.version, statistics, examples)
        return LoopGradient(lay_out, effect.at.version, statistics, examples)
