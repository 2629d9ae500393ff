"""Orders of an epoch that cost no memory: blocks are shuffled, and window by window the examples in them.

Examples that lie together in storage make a block (about `BLOCK_SIZE` of them), in which nothing is drawn apart. An
epoch shuffles the blocks and takes them in windows of about `WINDOW_SIZE` examples; each window is arranged by itself
when it is reached. So a learner holds one number a block and two windows, and knows a window ahead what it reads next:
blocks are read whole, and ahead.

Everything is a function of plan and blocks. So an epoch can be gone on with at any round, by any number of learners,
and all of them agree without a word.

Legend: K blocks, B examples of a stretch.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.epochs import EpochPlan
from roundelay.core.streams import stream

BLOCK_SIZE = 1_024
"""Examples of a block, about: 160 kB of 40 filterbanks, as much as a disk reads well at once."""
WINDOW_SIZE = 1 << 20
"""Examples of a window, about: some 1,000 blocks, 168 MB of 40 filterbanks, 3 hours of speech."""
ROUNDS_OF_WINDOW = 8
"""Rounds of a window, at least: very large minibatches want larger windows."""
READ_AHEAD_RATIO = 1.25
"""Share of the next window that is asked of the disk, to the share of the present one that is used up."""

Integers = NDArray[np.int64]


class Order(Protocol):
    """A sequence of example numbers by position in an epoch, such as an array."""

    def __getitem__(self, positions: slice, /) -> Integers:
        """Return the examples at these positions, both ends given."""


class Arrange(Protocol):
    """Orders the examples of a window."""

    def __call__(self, rng: np.random.Generator, blocks: NDArray[np.int32], at: int, plan: EpochPlan) -> Order:
        """Return the order of all examples in these `blocks` (K,); the window begins at position `at` of the plan's
        epoch."""


Tell = Callable[[NDArray[np.int32]], None]
"""Called with the numbers of blocks, (K,)."""


def _nothing(_: NDArray[np.int32]) -> None:
    pass


@final
class BlockOrder:
    """The order of the examples of an epoch, shuffled by blocks and by windows of blocks.

    Args:
        starts: (K + 1,) the first example of every block, and the end of the last.
        arrange: orders the examples of a window.
        ahead: called with blocks that will be read soon.
        behind: called with blocks that will not be read again.
        window: examples of a window, about; large rounds make it larger.

    Raises:
        ValueError: the plan has another number of examples than the blocks.
    """

    def __init__(
        self,
        plan: EpochPlan,
        starts: Integers,
        arrange: Arrange,
        ahead: Tell = _nothing,
        behind: Tell = _nothing,
        window: int = WINDOW_SIZE,
    ) -> None:
        if plan.examples != starts[-1]:
            raise ValueError(f"{plan.examples} examples, but the blocks have {starts[-1]}")
        self._plan, self._starts, self._arrange, self._ahead, self._behind = plan, starts, arrange, ahead, behind
        self._blocks = np.arange(len(starts) - 1, dtype=np.int32)
        stream(plan.seed, "blocks", plan.epoch).shuffle(self._blocks)
        ends = np.cumsum(np.diff(starts)[self._blocks])
        self._window = window
        windows = max(1, plan.examples // max(window, ROUNDS_OF_WINDOW * plan.minibatch))
        inner = np.searchsorted(ends, np.arange(1, windows) * plan.examples // windows) + 1
        self._bounds = np.unique(np.concatenate([[0], inner, [len(ends)]]))  # of windows, among the shuffled blocks
        self._positions = np.concatenate([[0], ends[self._bounds[1:] - 1]])
        self._arranged: dict[int, Order] = {}  # the last two windows asked for
        self._told, self._told_of_next_epoch = 0, False  # so many of the shuffled blocks; the next epoch's first window

    @property
    def windows(self) -> int:
        """Number of windows of the epoch."""
        return len(self._bounds) - 1

    def blocks(self, window: int) -> NDArray[np.int32]:
        """Return the numbers of the blocks of a window, (K,)."""
        return self._blocks[self._bounds[window] : self._bounds[window + 1]]

    def __getitem__(self, positions: slice, /) -> Integers:
        """Return the examples (B,) at these positions."""
        at, stop = positions.start, positions.stop
        parts = []
        while at < stop:
            window = int(np.searchsorted(self._positions, at, side="right")) - 1
            first, end = int(self._positions[window]), int(self._positions[window + 1])
            upto = min(stop, end)
            self._look_ahead(window, (upto - first) / (end - first))
            parts.append(self._order_of(window)[at - first : upto - first])
            at = upto
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.int64)])

    def _order_of(self, window: int) -> Order:
        """Return the order of the examples of a window. The last two orders are kept: minibatches near a boundary are
        drawn from both by turns."""
        if window not in self._arranged:
            for past in self._arranged:
                self._behind(self.blocks(past))
            if len(self._arranged) > 1:
                del self._arranged[min(self._arranged)]
            self._ahead(self.blocks(window))  # again: blocks read and not used may have been dropped meanwhile
            rng = stream(self._plan.seed, "window", self._plan.epoch, window)
            at = int(self._positions[window])
            self._arranged[window] = self._arrange(rng, self.blocks(window), at, self._plan)
        return self._arranged[window]

    def _look_ahead(self, window: int, share: float) -> None:
        """Call `ahead` with blocks: all of this window and, by the `share` of it that is used up, those of the next."""
        begin, end = int(self._bounds[window]), int(self._bounds[window + 1])
        self._tell(begin, end)
        if window + 1 < self.windows:
            self._tell(end, end + int(min(1.0, READ_AHEAD_RATIO * share) * int(self._bounds[window + 2] - end)))
        elif share >= 0.5 and not self._told_of_next_epoch:
            self._told_of_next_epoch = True
            following = dataclasses.replace(self._plan, epoch=self._plan.epoch + 1)
            self._ahead(BlockOrder(following, self._starts, self._arrange, window=self._window).blocks(0))

    def _tell(self, begin: int, end: int) -> None:
        begin = max(begin, self._told)
        if begin < end:
            self._ahead(self._blocks[begin:end])
            self._told = end


def block_starts(ends: Integers, block: int = BLOCK_SIZE) -> Integers:
    """Cut stretches of examples into blocks without dividing any. Return the number of each block's first stretch, and
    of all, (K + 1,).

    Args:
        ends: (U + 1,) beginnings of the stretches, and the end of the last.
        block: examples of a block, about.
    """
    at_least = np.arange(block, max(int(ends[-1]) - block // 2, block), block)
    return np.unique(np.concatenate([[0], np.searchsorted(ends, at_least), [len(ends) - 1]]))


def expand(begins: Integers, sizes: Integers) -> Integers:
    """Return all numbers of stretches that have these beginnings and sizes, stretch by stretch: begin, begin +
    1, ..."""
    return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
