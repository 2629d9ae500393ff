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

from roundelay.speech.audio.activity import FRAMES_PER_SECOND, Cutting, Energies, cut, smoothed

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
        self._energies = Energies(rate)
        self._samples: list[Samples] = []
        self._level: list[npt.NDArray[np.float32]] = []
        self._frames = 0  # in `_level`
        self._first = 0  # frame of the recording with which `_level` begins
        self.samples = 0  # given so far

    def push(self, samples: Samples) -> Iterator[list[CutPiece]]:
        """The stretches that end with these samples (N,)."""
        step = self._rate * 10  # a block may be longer than a stretch
        for begin in range(0, len(samples), step):
            block = samples[begin : begin + step]
            self.samples += len(block)
            self._samples.append(block)
            self._level.append(self._energies.push(block))
            self._frames += len(self._level[-1])
            if self._frames >= self._most and (pieces := self._cut(last=False)):
                yield pieces

    def finish(self) -> list[CutPiece]:
        """The pieces that are left. A recording that fits into one is left as it is."""
        fits = self.samples <= self._cutting.longest * self._rate
        if self._first == 0 and fits:
            return [CutPiece(0.0, self._held())] if self.samples else []
        return self._cut(last=True)

    def _held(self) -> Samples:
        return np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)

    def _cut(self, *, last: bool) -> list[CutPiece]:
        samples, level = self._held(), np.concatenate(self._level)
        spans = cut(smoothed(level), self._cutting)
        kept_from = len(level)
        if not last:
            # A piece that ends where the samples do may go on, and is cut anew.
            open_end = bool(spans) and spans[-1][1] > len(level) - _SETTLED
            kept_from = spans.pop()[0] if open_end else len(level) - _SETTLED
        begin = self._at(self._first)
        pieces = []
        for first, after in spans:
            # The last samples may be fewer than a frame.
            end = len(samples) if last and after == len(level) else self._at(self._first + after) - begin
            start = self._at(self._first + first)
            pieces.append(CutPiece(start / self._rate, samples[start - begin : end].copy()))
        self._samples = [samples[self._at(self._first + kept_from) - begin :].copy()]
        self._level = [level[kept_from:]]
        self._frames = len(level) - kept_from
        self._first += kept_from
        return pieces

    def _at(self, frame: int) -> int:
        """The first sample of a frame."""
        return frame * self._rate // FRAMES_PER_SECOND
