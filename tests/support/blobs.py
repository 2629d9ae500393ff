"""A small classification, for tests that need a module."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.streams import stream
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
