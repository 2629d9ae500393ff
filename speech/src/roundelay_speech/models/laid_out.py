"""A window of an epoch's order in which pieces of about the same length stand side by side.

Pieces, sorted by length, are laid end to end and cut where rounds begin and end; the rounds are shuffled. A window may
begin and end within a round, which then has pieces of two lengths. Nothing is kept but the pieces: frames are numbered
when they are asked for.
"""

from typing import final

import numpy as np

from roundelay.core.block_order import Integers, expand


@final
class LaidOut:
    """An order of the frames of pieces.

    Args:
        begins, sizes: of pieces in the order in which they are laid out; all of a window's.
        at: position of the window in the epoch.
        round_: frames of a round.
        rng: shuffles the rounds.
    """

    def __init__(self, begins: Integers, sizes: Integers, at: int, round_: int, rng: np.random.Generator) -> None:
        self._begins, self._sizes, self._ends = begins, sizes, np.cumsum(sizes)
        frames = int(self._ends[-1])
        head = min(frames, -at % round_)
        full, tail = divmod(frames - head, round_)
        stretches = np.array([head, *[round_] * full, tail])  # in the order in which they are drawn
        where = rng.permutation(len(stretches))  # in which they are cut from what is laid out
        self._sources = np.zeros(len(stretches), np.int64)
        self._sources[where] = np.cumsum(stretches[where]) - stretches[where]
        self._stops = np.cumsum(stretches)

    def __getitem__(self, positions: slice, /) -> Integers:
        """Return the frames at these positions of the window."""
        at, stop = positions.start, positions.stop
        parts = [np.zeros(0, np.int64)]
        while at < stop:
            stretch = int(np.searchsorted(self._stops, at, side="right"))
            upto = min(stop, int(self._stops[stretch]))
            begin = int(self._sources[stretch])
            offset = begin - (int(self._stops[stretch - 1]) if stretch else 0)
            parts.append(self._laid(at + offset, upto + offset))
            at = upto
        return np.concatenate(parts)

    def _laid(self, start: int, stop: int) -> Integers:
        """Return frames `start` to `stop` of what is laid out."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        begins, sizes = self._begins[first : last + 1].copy(), self._sizes[first : last + 1].copy()
        skipped = start - int(self._ends[first] - self._sizes[first])
        begins[0] += skipped
        sizes[0] -= skipped
        sizes[-1] -= int(self._ends[last]) - stop
        return expand(begins, sizes)
