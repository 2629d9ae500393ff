"""A quadratic of many parameters whose gradients cost little: their noise is drawn for a thousand and repeated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roundelay.core.state import Minibatch
from roundelay.core.streams import stream
from roundelay.learner.quadratic import Quadratic, QuadraticLearner

DRAWN = 1021
"""A prime, so that no two chunks of a row have the same noise at the same places."""


class CoarseLearner(QuadraticLearner):
    """A learner on a quadratic of many parameters, whose noise is drawn for a thousand of them and repeated."""

    def _noise(self, batch: Minibatch) -> NDArray[np.float32]:
        drawn = stream(self._task.seed, "noise", batch.epoch, batch.index).standard_normal(DRAWN, dtype=np.float32)
        return np.resize(drawn, self.parameters)


@dataclass(frozen=True)
class Coarse(Quadratic):
    """The task of such a quadratic, whose gradients differ from minibatch to minibatch as those of `Quadratic` do."""

    def build(self) -> CoarseLearner:
        return CoarseLearner(self)
