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


class Held:
    """Examples in memory, the same in all splits."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def count(self, split: str) -> int:
        return len(self.targets)

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        chosen = torch.from_numpy(numbers)
        return (self.inputs[chosen],), self.targets[chosen]

    def in_order(self, split: str, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        yield (self.inputs,), self.targets


class Blobs(Held):
    """Points around three centres."""

    def __init__(self) -> None:
        generator = stream(0, "blobs")
        y = generator.integers(0, 3, 640)
        x = (generator.standard_normal((640, 6)) + 2 * np.eye(6)[y]).astype(np.float32)
        super().__init__(torch.from_numpy(x), torch.from_numpy(y))


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
