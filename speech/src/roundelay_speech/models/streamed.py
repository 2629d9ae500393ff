"""Scores of an utterance that is still being said: as frames come, each evaluated once.

A network that sees a bounded number of frames after each one needs no end of the utterance. It is given frames as they
come, in parts of any size, and gives the scores that it gives for all of them at once, to rounding.

Legend: T frames that come, B rows of scores, F stored features, S tied states or units, R frames of features that the
network's first layer looks at on each side.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Streamed(ABC):
    """Evaluates one utterance; for one use.

    Args:
        reach: R.
        chunk: frames that are evaluated together; scores of the first of them wait for the last.
        columns: S.
    """

    def __init__(self, reach: int, chunk: int, columns: int) -> None:
        self._reach, self._chunk, self._columns = reach, chunk, columns
        self._held: Tensor | None = None  # (R + frames that wait + R that are known, F)

    @property
    def delay(self) -> int:
        """Frames that must have come before the first of a chunk has scores: the chunk, and its right context."""
        return self._chunk + self._reach

    def push(self, features: Tensor, *, last: bool = False) -> Tensor:
        """Return scores (B, S) that frames (T, F), after all that came before, decide.

        Args:
            last: nothing follows: frames that wait for others are evaluated without them.
        """
        if self._held is None:
            if not len(features):
                return torch.zeros((0, self._columns))
            self._held = features[:1].expand(self._reach, -1)
        held = torch.cat([self._held, features])
        if last:
            held = torch.cat([held, held[-1:].expand(self._reach, -1)])
        waiting = len(held) - 2 * self._reach
        ready = max(0, waiting if last else waiting // self._chunk * self._chunk)
        self._held = held[ready:]
        if not ready:
            return torch.zeros((0, self._columns))
        with torch.inference_mode():
            return self._scores(held[: ready + 2 * self._reach])

    @abstractmethod
    def _scores(self, features: Tensor) -> Tensor:
        """Return scores (B, S) of the frames in the middle of these (R + T + R, F): whole chunks, the very last one
        excepted."""
