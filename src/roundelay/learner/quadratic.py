"""A noisy quadratic: the objective on which every strategy's behaviour is known on paper.

    f(x) = 1/2 sum_p h_p (x_p - c_p)^2 ,   gradient over a minibatch = h (x - c) + noise * xi / sqrt(frames)

xi is standard normal, drawn from a stream named by the minibatch, so the gradient is a pure function of (x, minibatch).
Legend: P parameters, B gradients computed together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.core.streams import stream
from roundelay.learner.base import Learner, Task


class QuadraticLearner(Learner):
    """A learner of a noisy quadratic, by the equation above. The optimum c is a fixed random point; x starts at
    zero."""

    def __init__(self, task: "Quadratic") -> None:
        self.parameters, self.examples, self._task = task.parameters, task.examples, task
        low, high = task.curvature
        self._h = torch.from_numpy(np.geomspace(low, high, task.parameters, dtype=np.float32))
        self._c = torch.from_numpy(stream(task.seed, "optimum").standard_normal(task.parameters, dtype=np.float32))

    @property
    def optimum(self) -> Tensor:
        """The optimum c, (P,)."""
        return self._c

    def initial(self) -> Tensor:
        return torch.zeros(self.parameters)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        if not batch.frames:
            out.zero_()
            return Statistics()
        torch.sub(x, self._c, out=out)
        loss = 0.5 * float((self._h * out.square()).sum())
        out.mul_(self._h)
        if self._task.noise:
            out.add_(torch.from_numpy(self._noise(batch)), alpha=self._task.noise / batch.frames**0.5)
        return Statistics(batch.frames, loss * batch.frames, 0)

    @property
    def together_pays(self) -> bool:
        return self.parameters <= 4096  # beyond, a row no longer stays in cache from one operation to the next

    def gradients(self, x: Tensor, batches: Sequence[Minibatch], plan: EpochPlan, out: Tensor) -> list[Statistics]:
        """Compute all gradients elementwise, so that every row has the same bits as from `gradient`."""
        torch.sub(x, self._c, out=out)
        losses = (0.5 * (self._h * out.square()).sum(1)).tolist()
        out.mul_(self._h)
        if self._task.noise:
            noise = np.stack([self._noise(batch) for batch in batches])
            sizes = torch.tensor([self._task.noise / max(1, batch.frames) ** 0.5 for batch in batches])
            out.addcmul_(torch.from_numpy(noise), sizes[:, None])
        found = []
        for row, (batch, loss) in enumerate(zip(batches, losses, strict=True)):
            if not batch.frames:
                out[row].zero_()
            found.append(Statistics(batch.frames, loss * batch.frames, 0))
        return found

    def _noise(self, batch: Minibatch) -> NDArray[np.float32]:
        return stream(self._task.seed, "noise", batch.epoch, batch.index).standard_normal(
            self.parameters, dtype=np.float32
        )

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        self.may_stop()
        loss = 0.5 * float((self._h * (x - self._c).square()).sum())
        return Statistics(1, loss, 0)


@dataclass(frozen=True)
class Quadratic(Task):
    """The task of a noisy quadratic. `curvature`: smallest and largest h; `noise`: standard deviation of a gradient
    over one example."""

    parameters: int = 100
    examples: int = 10_000
    curvature: tuple[float, float] = (0.1, 1.0)
    noise: float = 1.0
    seed: int = 0

    def build(self) -> Learner:
        return QuadraticLearner(self)
