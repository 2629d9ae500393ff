"""A learner's vectors on the device it computes on, for as long as a segment lasts.

Where nobody else writes a learner's row, it need not be in the arena while the learner trains: row, momentum and
gradient then stay on the device, an update is one kernel, and nothing is copied between two means. What a mean needs
crosses to the arena and back. When the segment ends the arena has everything again: checkpoints, evaluation and the
other runtimes know no device.

Legend: P parameters.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


class Resident:
    """Copies of (P,) vectors of the arena on `device`.

    Args:
        row, memory, gradient: the learner's own, in the arena.
    """

    def __init__(self, row: Tensor, memory: Mapping[str, Tensor], gradient: Tensor, device: torch.device) -> None:
        self._homes = [row, *memory.values()]
        self._gradient_home, self._reply = gradient, torch.empty_like(row, device=device)
        self.row = torch.empty_like(row, device=device)
        self.memory = {name: torch.empty_like(vector, device=device) for name, vector in memory.items()}
        self.gradient = torch.empty_like(gradient, device=device)

    def move_in(self) -> None:
        """A segment begins."""
        for home, here in zip(self._homes, (self.row, *self.memory.values()), strict=True):
            here.copy_(home)

    def move_out(self) -> None:
        """It ends."""
        for home, here in zip(self._homes, (self.row, *self.memory.values()), strict=True):
            home.copy_(here)

    def show_gradient(self) -> None:
        """Others are going to read it in the arena."""
        self._gradient_home.copy_(self.gradient)

    def reply(self, vector: Tensor) -> Tensor:
        """A mean from the arena, (P,), on the device; valid until the next."""
        return self._reply.copy_(vector)
