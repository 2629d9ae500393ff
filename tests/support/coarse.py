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
    """See the module's sentence."""

    def _noise(self, batch: Minibatch) -> NDArray[np.float32]:
        drawn = stream(self._task.seed, "noise", batch.epoch, batch.index).standard_normal(DRAWN, dtype=np.float32)
        return np.resize(drawn, self.parameters)


@dataclass(frozen=True)
class Coarse(Quadratic):
    """As `Quadratic`, and as different from minibatch to minibatch."""

    def build(self) -> CoarseLearner:
        return CoarseLearner(self)
