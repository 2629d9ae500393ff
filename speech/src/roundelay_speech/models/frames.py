"""Frames with tied-state labels, cut into minibatches; and scores of whole utterances for the decoder.

Runs of labelled frames that follow each other in the store need no number for each. A labelled frame has a number: it
counts the labelled frames of the split before it, utterance by utterance.

Legend: T frames of all utterances together, B frames of a minibatch, W window, F features, S tied states, R runs, U
utterances that have labelled frames, K blocks (core/block_order.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.block_order import (
    BLOCK_SIZE,
    WINDOW_SIZE,
    Arrange,
    BlockOrder,
    Integers,
    Order,
    block_starts,
    expand,
)
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay_speech.data.joined import let_go, read_ahead
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.frontend import FrontendConfig

MANY_RUNS = 1 << 19
"""Number of runs (some 1,600 hours) from which on they are found by a guide; fewer stay in a cache."""
GUIDE_BITS, MOST_STEPS = 11, 24
"""The guide: frames between two entries, as a power of 2 (2 bytes an utterance of 10 s), and most steps from an entry.
"""


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
        """Build the runs from their first frames, utterances and ends, in blocks of about `block` frames."""
        blocks = block_starts(bounds, block)
        return cls(firsts, utterances, ends, bounds, blocks, bounds[blocks])

    @classmethod
    def find(cls, labels: NDArray[np.int32], store: FeatureStore, names: Iterable[str]) -> "LabelledRuns":
        """Find the runs of frames with labels of 0 or more in the utterances `names`; `labels` are of all frames of the
        store."""
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
        """Return the runs in utterances of these stretches (first and end place in the store), renumbered."""
        some = np.zeros(len(self.firsts), bool)
        for first, end in stretches:
            some |= (first <= self.utterances) & (self.utterances < end)
        utterances = self.utterances[some]
        ends = np.concatenate([[0], np.cumsum(np.diff(self.ends)[some])]).astype(np.int64)
        new = np.flatnonzero(np.diff(utterances, prepend=-1))
        return LabelledRuns.of(self.firsts[some], utterances, ends, np.concatenate([ends[new], ends[-1:]]))

    def joined(self) -> tuple[Integers, Integers]:
        """Join runs without gaps between them; return the stretches' first frames in the store, and ends."""
        ends = self.firsts + np.diff(self.ends)
        new = np.concatenate([[True], self.firsts[1:] != ends[:-1]])[: len(ends)]
        return self.firsts[new], ends[np.roll(new, -1)]

    @property
    def frames(self) -> int:
        """Number of labelled frames."""
        return int(self.ends[-1])

    def in_store(self, numbers: Integers) -> Integers:
        """Return the places (B,) in the store of labelled frames (B,), by number."""
        return self.locate(numbers)[0]

    def locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return the places (B,) in the store of labelled frames (B,), and of their utterances (B,)."""
        run = self._runs_of(numbers)
        return self.firsts[run] + (numbers - self.ends[run]), self.utterances[run]

    def _runs_of(self, numbers: Integers) -> Integers:
        """Return the runs (B,) of labelled frames (B,). Since a search among millions of runs waits for memory in
        nearly every step, it begins where the guide says, a few runs before the right one."""
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
        """The guide: the run of every labelled frame whose number is a multiple of 2 to the GUIDE_BITS."""
        every = np.arange(0, self.frames, 1 << GUIDE_BITS)
        return (np.searchsorted(self.ends, every, side="right") - 1).astype(np.int32)

    def numbers(self, blocks: NDArray[np.int32]) -> Integers:
        """Return the numbers of all labelled frames of `blocks`, block by block."""
        return expand(self.starts[blocks], self.starts[blocks + 1] - self.starts[blocks])

    def stretches(self, blocks: NDArray[np.int32]) -> tuple[Integers, Integers]:
        """Return the first frames in the store of `blocks`, and their ends; frames between runs are included."""
        begins = self.in_store(self.starts[blocks])
        ends = self.in_store(self.starts[blocks + 1] - 1) + 1
        return begins, ends


TRAINED = "train"
"""The split to which orders and shards apply."""
Windows = tuple[Tensor, Tensor, Tensor]
"""(windows (B, W, F), speaker mean (B, F), speaker standard deviation (B, F))."""


Split = Sequence[str] | LabelledRuns
"""Ids of the utterances of a split; or its labelled frames, if they are already found."""
OrderName = Literal["shuffle", "blocks"]
"""Orders of an epoch: all frames shuffled, which takes a number for each; or blocks (core/block_order.py)."""
COUNTED_AT_ONCE = 1 << 20
"""Frames, or utterances, that are counted at a time."""


class LabelledFrames:
    """The labelled frames of every split. Random access into the memory-mapped features: nothing is loaded before it is
    used.

    Args:
        labels: (T,) tied state of every frame in store order, -1 for none.
        splits: utterance ids by split, or their runs.
        order: kind of an epoch's order.
    """

    window = WINDOW_SIZE
    """Approximate number of frames of a window of blocks."""

    def __init__(
        self,
        store: FeatureStore,
        labels: NDArray[np.int32],
        splits: Mapping[str, Split],
        order: OrderName = "shuffle",
    ) -> None:
        if len(labels) != len(store.array):
            raise UserError(
                f"{store.folder}: {len(store.array)} frames, but the alignment has {len(labels)}: it is of other "
                "features. Were copies at other speeds or warps left out or added since? Give `roundelay features` the "
                "same --speed and --warp as then; or run `roundelay align` again, for these features."
            )
        self._store, self._labels, self._how = store, labels, order
        self._runs = {
            split: some
            if isinstance(some, LabelledRuns)
            else LabelledRuns.find(labels, store, [u for u in some if u in store])
            for split, some in splits.items()
        }

        self._all_here = self._runs.get(TRAINED)
        self._now: tuple[int, ...] = ()  # shards that are trained on; none: all that are here

    @property
    def shards(self) -> tuple[int, ...]:
        """Number of labelled frames in every shard of the training split, -1 for a missing one; empty: there are no
        shards."""
        runs = self._all_here
        if runs is None:
            return ()
        return tuple(runs.within([(one.first, one.end)]).frames if one.here else -1 for one in self._store.shards)

    def train_on(self, shards: tuple[int, ...]) -> None:
        """Train on these shards from now on; empty: on everything that is here.

        Raises:
            UserError: a shard is not here.
        """
        if shards == self._now or self._all_here is None:
            return
        stored = self._store.shards
        if absent := [number for number in shards if not stored[number].here]:
            raise UserError(
                f"{self._store.folder}: shard {absent[0]} of {len(stored)} is to be trained and is not here."
            )
        everything = {number for number, one in enumerate(stored) if one.here} == set(shards)
        stretches = [(stored[number].first, stored[number].end) for number in shards]
        self._runs[TRAINED] = self._all_here if everything or not shards else self._all_here.within(stretches)
        self._now = shards

    def count(self, split: str) -> int:
        """Return the number of labelled frames in `split`."""
        return self._runs[split].frames

    def windows(self, split: str, numbers: NDArray[np.int64], reach: int) -> Windows:
        """Return windows of `reach` frames on each side of the labelled frames `numbers` of `split`; at the edges of an
        utterance its first or last frame is repeated."""
        frames = self._runs[split].in_store(numbers)
        if self._how == "blocks":  # these lie anywhere
            read_ahead(self._store.array, np.maximum(frames - reach, 0).tolist(), (frames + reach + 1).tolist())
        return cut_windows(self._store, frames, np.arange(-reach, reach + 1))

    def label_counts(self, split: str, states: int) -> NDArray[np.int64]:
        """Count how often each tied state occurs in `split`, (S,), missing shards included."""
        counts, begins, ends = np.zeros(states, np.int64), *self._runs[split].joined()
        if split == TRAINED and any(not one.here for one in self._store.shards):  # their labels are here
            begins, ends = self._store.offsets[[self._store.shards[0].first, self._store.shards[-1].end]].reshape(2, 1)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for start in range(begin, end, COUNTED_AT_ONCE):
                some = self._labels[start : min(start + COUNTED_AT_ONCE, end)]
                counts += np.bincount(some[some >= 0], minlength=states)
        return counts

    def _in_blocks(self, plan: EpochPlan, arrange: Arrange) -> BlockOrder:
        """Return the order of the plan's epoch of training frames by blocks, which are read ahead."""
        runs, arrays = self._runs["train"], (self._store.array, self._labels)

        def ahead(blocks: NDArray[np.int32]) -> None:
            for array in arrays:
                read_ahead(array, *runs.stretches(blocks))

        def behind(blocks: NDArray[np.int32]) -> None:
            for array in arrays:
                let_go(array, *runs.stretches(blocks))

        return BlockOrder(plan, runs.starts, arrange, ahead, behind, self.window)


class FrameExamples(LabelledFrames):
    """Examples that are single labelled frames of any utterance."""

    sequences = None

    def __init__(
        self,
        store: FeatureStore,
        labels: NDArray[np.int32],
        splits: Mapping[str, Split],
        frontend: FrontendConfig,
        order: OrderName = "shuffle",
    ) -> None:
        super().__init__(store, labels, splits, order)
        self._reach = np.arange(-frontend.reach, frontend.reach + 1)

    def order(self, plan: EpochPlan) -> Order:
        """Return the training frames in the order of the plan's epoch."""
        self.train_on(plan.shards)
        return plan.order() if self._how == "shuffle" else self._in_blocks(plan, self._shuffled)

    def _shuffled(self, rng: np.random.Generator, blocks: NDArray[np.int32], *_: object, **__: object) -> Integers:
        """Return all frames of `blocks`, shuffled."""
        return rng.permutation(self._runs["train"].numbers(blocks))

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Windows, Tensor]:
        """Return the windows and labels (B,) of the labelled frames `numbers` of `split`."""
        frames, utterance = self._runs[split].locate(numbers)
        windows = cut_windows(self._store, frames, self._reach, utterance)
        return windows, torch.from_numpy(self._labels[frames].astype(np.int64))

    def in_order(self, split: str, size: int) -> Iterator[tuple[Windows, Tensor]]:
        """Yield all of `split`, `size` frames at a time."""
        for start in range(0, self.count(split), size):
            yield self.batch(split, np.arange(start, min(start + size, self.count(split))))


def cut_windows(
    store: FeatureStore, frames: NDArray[np.int64], reach: NDArray[np.int64], utterance: Integers | None = None
) -> Windows:
    """Return windows of `frames` (B,) at the neighbouring offsets `reach` (W,), kept inside each frame's own
    `utterance` (B,), which is found if not given."""
    if utterance is None:
        utterance = np.searchsorted(store.offsets, frames, side="right") - 1
    first, last = store.offsets[utterance], store.offsets[utterance + 1] - 1
    inside = (frames + reach[0] >= first) & (frames + reach[-1] <= last)
    # Nearly all windows lie in one piece, and are copied as one. In the place of the others one of these is copied, and
    # overwritten: around an edge there are frames of elsewhere, which were not asked of the disk.
    if inside.any():
        begins = np.where(inside, frames, frames[inside.argmax()]) + reach[0]
        window = _stretches(store.array, len(reach))[begins]
    else:
        window = np.empty((len(frames), len(reach), store.array.shape[1]), np.float32)
    at_edge = np.flatnonzero(~inside)
    wanted = frames[at_edge, None] + reach
    window[at_edge] = store.array[np.clip(wanted, first[at_edge, None], last[at_edge, None])]
    speaker = store.speaker_indices[utterance]
    return (
        torch.from_numpy(window),
        torch.from_numpy(store.speakers.mean[speaker]),
        torch.from_numpy(store.speakers.std[speaker]),
    )


def _stretches(array: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Return views of all stretches of `frames` frames in `array` (T, F), by their first frame: (T - frames + 1,
    frames, F)."""
    step, feature = array.strides
    shape = (max(0, len(array) - frames + 1), frames, array.shape[1])
    return np.lib.stride_tricks.as_strided(array, shape, (step, step, feature), writeable=False)


def log_prior(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the log prior (S,): log relative frequencies of tied states in the training alignment, each counted once
    more."""
    smooth = counts + 1.0
    prior: NDArray[np.float32] = np.log(smooth / smooth.sum()).astype(np.float32)
    return prior


class Network(Protocol):
    """A network that gives scores of tied states."""

    def whole(self, store: FeatureStore, utterance: str) -> tuple[Tensor, ...]:
        """Return the inputs for every frame of an utterance."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return scores (frames, S)."""


def log_likelihoods(
    network: Network, store: FeatureStore, utterance: str, prior: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return scaled likelihoods log p(x_t | s) = log p(s | x_t) - log p(s) + constant, (frames, S), of one
    utterance."""
    with torch.inference_mode():
        return scaled(network(*network.whole(store, utterance)), prior)


def scaled(scores: Tensor, prior: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-likelihoods (B, S), up to a constant for each row, from a network's scores (B, S)."""
    posterior: NDArray[np.float32] = torch.log_softmax(scores.float(), 1).cpu().numpy()
    likelihoods: NDArray[np.float32] = np.ascontiguousarray(posterior - prior)
    return likelihoods
