"""A learner's vectors on the device it computes on.

Where nobody else writes a learner's row, it need not be in the arena while the learner trains: row, momentum and
gradient stay on the device for as long as a segment lasts, and nothing is copied between two means. When the segment
ends the arena has everything again: checkpoints, evaluation and the other runtimes know no device. Where others do
write it, all rows are there for good (device_rows.py), and only the gradient and means are for this class to care for.

What a mean needs crosses to the arena and back.

Legend: P parameters.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from roundelay.runtime.procs.pinned import pinned


class Resident:
    """(P,) vectors on `device`.

    Args:
        row, memory, gradient: the learner's own, as the arena has them.
        there: row and memory are on the device already, and stay; otherwise these are copies.
    """

    def __init__(
        self, row: Tensor, memory: Mapping[str, Tensor], gradient: Tensor, device: torch.device, there: bool
    ) -> None:
        self._gradient_home, self._reply = gradient, torch.empty_like(gradient, device=device)
        self.gradient = torch.empty_like(gradient, device=device)
        homes = {"row": row, **memory}
        here = homes if there else {name: torch.empty_like(home, device=device) for name, home in homes.items()}
        self._moving = [] if there else [(homes[name], here[name]) for name in homes]
        self.row, self.memory = here["row"], {name: here[name] for name in memory}

    def move_in(self) -> None:
        """A segment begins."""
        for home, here in self._moving:
            here.copy_(home)

    def move_out(self) -> None:
        """It ends."""
        for home, here in self._moving:
            home.copy_(here)

    def show_gradient(self) -> None:
        """Others are going to read it in the arena."""
        pinned(self._gradient_home).copy_(self.gradient)

    def reply(self, vector: Tensor) -> Tensor:
        """A mean of the arena, (P,), on the device; valid until the next."""
        return self._reply.copy_(pinned(vector))
