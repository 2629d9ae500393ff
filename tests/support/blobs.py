"""A small classification, for tests that need a module. Learner processes load this file, and not the test's."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.streams import stream
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import Inputs


class Blobs:
    """Points around three centres."""

    def __init__(self) -> None:
        generator = stream(0, "blobs")
        self._y = generator.integers(0, 3, 640)
        self._x = (generator.standard_normal((640, 6)) + 2 * np.eye(6)[self._y]).astype(np.float32)

    def count(self, split: str) -> int:
        return 640

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        return (torch.from_numpy(self._x[numbers]),), torch.from_numpy(self._y[numbers])

    def in_order(self, split: str, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        yield self.batch(split, np.arange(640))


@dataclass(frozen=True)
class BlobTask(Task):
    """A network of two layers.

    Attributes:
        device: that learners compute on. With one, rows may leave the arena while they train, the processor too.
        dropout: gradients are pure functions of the minibatch only if it is; its numbers differ between devices.
        width: of the layer between.
    """

    device: str | None = None
    dropout: float = 0.3
    width: int = 16

    def build(self) -> Learner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = nn.Linear(6, self.width), nn.Tanh(), nn.Dropout(self.dropout), nn.Linear(self.width, 3)
        return ModuleLearner(nn.Sequential(*layers), Blobs(), device=torch.device(self.device) if self.device else None)


@dataclass(frozen=True)
class Wide(Task):
    """Trains 988,403 parameters on a classification that needs none of them."""

    def build(self) -> Learner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(
                nn.Linear(6, 700),
                nn.ReLU(),
                nn.Linear(700, 700),
                nn.ReLU(),
                nn.Linear(700, 700),
                nn.ReLU(),
                nn.Linear(700, 3),
            )
        return ModuleLearner(module, Blobs())
