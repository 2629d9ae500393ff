"""Labelled frames of a split without a number for each: runs of frames that follow each other in the store.

A labelled frame has a number: it counts the labelled frames of the split before it, utterance by utterance.

Legend: R runs, U utterances that have labelled frames, K blocks (core/block_order.py), B frames.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from roundelay.core.block_order import BLOCK_SIZE, Integers, block_starts, expand
from roundelay_speech.features.store import FeatureStore

MANY_RUNS = 1 << 19
"""From so many runs on (some 1,600 hours) they are found by a guide; fewer stay in a cache."""
GUIDE_BITS, MOST_STEPS = 11, 24
"""Frames between two entries of the guide, as a power of 2: 2 bytes an utterance of 10 s. Steps from there, at most."""


@dataclass(frozen=True, eq=False)
class LabelledRuns:
    """Runs of labelled frames of one split; arrays may be mapped from files."""

    firsts: Integers  # (R,) the first frame of every run in the store
    utterances: Integers  # (R,) the place in the store of the utterance that a run is in
    ends: Integers  # (R + 1,) number of the first labelled frame of every run, and of all
    bounds: Integers  # (U + 1,) number of the first labelled frame of every utterance that has some, and of all
    blocks: Integers  # (K + 1,) the first utterance of every block, and the number of all
    starts: Integers  # (K + 1,) number of the first labelled frame of every block, and of all

    @classmethod
    def of(
        cls, firsts: Integers, utterances: Integers, ends: Integers, bounds: Integers, block: int = BLOCK_SIZE
    ) -> "LabelledRuns":
        """Return these runs of these utterances, and their blocks of so many frames."""
        blocks = block_starts(bounds, block)
        return cls(firsts, utterances, ends, bounds, blocks, bounds[blocks])

    @classmethod
    def find(cls, labels: NDArray[np.int32], store: FeatureStore, names: Iterable[str]) -> "LabelledRuns":
        """Return the runs in these utterances whose labels, of all frames of the store, are 0 or more."""
        firsts: list[int] = []
        utterances: list[int] = []
        sizes: list[int] = []
        bounds = [0]
        for name in names:
            first, frames = store.span(name)
            inside = labels[first : first + frames] >= 0
            if inside.all():
                runs = [(0, frames)] if frames else []
            else:
                edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
                runs = list(zip(edges[::2], edges[1::2], strict=True))
            if runs:
                firsts += [first + begin for begin, _ in runs]
                utterances += [store.position(name)] * len(runs)
                sizes += [end - begin for begin, end in runs]
                bounds.append(bounds[-1] + sum(end - begin for begin, end in runs))
        ends = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))])
        return cls.of(
            np.array(firsts, np.int64),
            np.array(utterances, np.int64),
            ends.astype(np.int64),
            np.array(bounds, np.int64),
        )

    def within(self, stretches: Iterable[tuple[int, int]]) -> "LabelledRuns":
        """Return the runs in utterances at these places in the store, first and end of each stretch; numbered anew."""
        some = np.zeros(len(self.firsts), bool)
        for first, end in stretches:
            some |= (first <= self.utterances) & (self.utterances < end)
        utterances = self.utterances[some]
        ends = np.concatenate([[0], np.cumsum(np.diff(self.ends)[some])]).astype(np.int64)
        new = np.flatnonzero(np.diff(utterances, prepend=-1))
        return LabelledRuns.of(self.firsts[some], utterances, ends, np.concatenate([ends[new], ends[-1:]]))

    def joined(self) -> tuple[Integers, Integers]:
        """Return first frames in the store, and ends, of stretches of runs that follow each other without a gap."""
        ends = self.firsts + np.diff(self.ends)
        new = np.concatenate([[True], self.firsts[1:] != ends[:-1]])[: len(ends)]
        return self.firsts[new], ends[np.roll(new, -1)]

    @property
    def frames(self) -> int:
        """Labelled frames."""
        return int(self.ends[-1])

    def in_store(self, numbers: Integers) -> Integers:
        """Return frames in the store (B,) of labelled frames (B,)."""
        return self.locate(numbers)[0]

    def locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return frames in the store (B,) of labelled frames (B,), and the places there of their utterances (B,)."""
        run = self._runs_of(numbers)
        return self.firsts[run] + (numbers - self.ends[run]), self.utterances[run]

    def _runs_of(self, numbers: Integers) -> Integers:
        """Return runs (B,) of labelled frames (B,). Among millions of runs a search waits for memory in nearly every
        step: so it begins where the guide says, a few runs before the right one."""
        if len(self.firsts) < MANY_RUNS:
            return np.searchsorted(self.ends, numbers, side="right") - 1
        run: Integers = self._guide[numbers >> GUIDE_BITS].astype(np.int64)
        for _ in range(MOST_STEPS):
            behind = self.ends[run + 1] <= numbers
            if not behind.any():
                return run
            run += behind
        return np.searchsorted(self.ends, numbers, side="right") - 1

    @cached_property
    def _guide(self) -> NDArray[np.int32]:
        """The run of every labelled frame whose number is a multiple of 2 to the GUIDE_BITS."""
        every = np.arange(0, self.frames, 1 << GUIDE_BITS)
        return (np.searchsorted(self.ends, every, side="right") - 1).astype(np.int32)

    def numbers(self, blocks: NDArray[np.int32]) -> Integers:
        """Return all labelled frames of these blocks, one block after the other."""
        return expand(self.starts[blocks], self.starts[blocks + 1] - self.starts[blocks])

    def stretches(self, blocks: NDArray[np.int32]) -> tuple[Integers, Integers]:
        """Return first frames in the store of these blocks, and their ends; whatever lies between two runs is
        included."""
        begins = self.in_store(self.starts[blocks])
        ends = self.in_store(self.starts[blocks + 1] - 1) + 1
        return begins, ends
