"""A recording in pieces that are recognised one by one, in memory for twenty minutes of it, however long it is.

Pieces that are normalised together make a stretch: those of a recording, up to `STRETCH_SECONDS`. What a stretch leaves
begun goes into the next.

Legend: N samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from roundelay_speech.audio.activity import FRAMES_PER_SECOND, Activity, Cutting, cut

Samples = npt.NDArray[np.float32]

STRETCH_SECONDS = 1200.0
_SETTLED = 2 * FRAMES_PER_SECOND  # frames of silence after which a piece is over


@final
@dataclass(frozen=True, eq=False)
class CutPiece:
    """Samples (N,) that are recognised together, and where they begin in the recording (s)."""

    start: float
    samples: Samples


@final
class Stretches:
    """Cuts one channel, which comes block by block.

    Args:
        rate: of the samples, Hz.
        cutting: options.
        seconds: of a stretch, at most about; longer than two pieces.
    """

    def __init__(self, rate: int, cutting: Cutting, seconds: float = STRETCH_SECONDS) -> None:
        self._rate, self._cutting = rate, cutting
        self._most = max(round(seconds * FRAMES_PER_SECOND), round(2 * cutting.longest * FRAMES_PER_SECOND) + _SETTLED)
        self._activity = Activity(rate, cutting.detector)
        self._samples: list[Samples] = []  # from the first frame on that is remembered
        self.samples = 0  # given so far

    def push(self, samples: Samples) -> Iterator[list[CutPiece]]:
        """Yield the stretches that end with these samples (N,)."""
        step = self._rate * 10  # a block may be longer than a stretch
        for begin in range(0, len(samples), step):
            block = samples[begin : begin + step]
            self.samples += len(block)
            self._samples.append(block)
            self._activity.push(block)
            if len(self._activity) >= self._most and (pieces := self._cut(last=False)):
                yield pieces

    def finish(self) -> list[CutPiece]:
        """Return the pieces that are left. A short recording in which anybody speaks is left as it is."""
        short = self.samples <= min(self._cutting.whole, self._cutting.longest) * self._rate
        if self._activity.first > 0 or not short:
            return self._cut(last=True)
        return [CutPiece(0.0, self._held())] if self._activity.anybody() else []

    def _held(self) -> Samples:
        return np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)

    def _cut(self, *, last: bool) -> list[CutPiece]:
        samples, level, earlier = self._held(), self._activity.level, self._activity.first
        spans = cut(level, self._cutting, self._activity.spans())
        kept_from = len(level)
        if not last:
            # A piece that ends where the samples do may go on, and is cut anew.
            open_end = bool(spans) and spans[-1][1] > len(level) - _SETTLED
            kept_from = spans.pop()[0] if open_end else len(level) - _SETTLED
        begin = self._at(earlier)
        pieces = []
        for first, after in spans:
            # The last samples may be fewer than a frame.
            end = len(samples) if last and after == len(level) else self._at(earlier + after) - begin
            start = self._at(earlier + first)
            pieces.append(CutPiece(start / self._rate, samples[start - begin : end].copy()))
        self._samples = [samples[self._at(earlier + kept_from) - begin :].copy()]
        self._activity.forget(kept_from)
        return pieces

    def _at(self, frame: int) -> int:
        """Return the first sample of a frame."""
        return frame * self._rate // FRAMES_PER_SECOND
