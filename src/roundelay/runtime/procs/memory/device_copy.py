"""A learner's vectors on the device it computes on.

Where nobody else writes a learner's row, it need not be in the arena while the learner trains: row, momentum and
gradient stay on the device for as long as a segment lasts, and nothing is copied between two means. When the segment
ends the arena has everything again: checkpoints, evaluation and the other runtimes know no device. Where others do
write it, all rows are there for good (device_rows.py), and only the gradient and means are for this class to care for.

What a mean needs crosses to the arena and back. A gradient that goes on from there to other hosts crosses while the
rest of it is computed: what is complete is copied on a stream of its own, and a thread waits for the copies, since the
process itself is busy telling the device what to do next.

Legend: P parameters.
"""

import queue
import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from roundelay.runtime.procs.memory.pinned import pinned

GRADIENT_PIECE = 2**18
"""Elements of a gradient, at least, that cross to the arena together: 1 MiB."""


class DeviceCopy:
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

    def streamed(self, lay: Callable[[int], None]) -> "GradientStream":
        """`lay`, but it is told of what is complete in the arena, not on the device."""
        return GradientStream(self.gradient, pinned(self._gradient_home), lay)

    def reply(self, vector: Tensor) -> Tensor:
        """A mean of the arena, (P,), on the device; valid until the next."""
        return self._reply.copy_(pinned(vector))


class GradientStream:
    """A gradient on its way from the device, (P,), to `home`, from its end. To be called as `lay` is: from this element
    on it is complete on the device."""

    def __init__(self, gradient: Tensor, home: Tensor, lay: Callable[[int], None]) -> None:
        self._gradient, self._home, self._lay, self._first = gradient, home, lay, len(gradient)
        on_gpu = gradient.device.type == "cuda"
        self._stream = torch.cuda.Stream(gradient.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._copied: queue.SimpleQueue[tuple[torch.cuda.Event, int]] = queue.SimpleQueue()
        if self._stream is not None:
            threading.Thread(target=self._tell, daemon=True, name="gradient to the arena").start()

    def __call__(self, first: int) -> None:
        if not self._first or (first and self._first - first < GRADIENT_PIECE):
            return
        part, self._first = slice(first, self._first), first
        if self._stream is None:
            self._home[part].copy_(self._gradient[part])
            self._lay(first)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._gradient.device))
        with torch.cuda.stream(self._stream):
            self._home[part].copy_(self._gradient[part], non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record()
        self._copied.put((event, first))

    def _tell(self) -> None:
        first = len(self._gradient)
        while first:
            event, first = self._copied.get()
            event.synchronize()
            self._lay(first)
