"""Labelled frames as sequences, for recurrent and attending networks, counted in frames all the same.

A minibatch of every model is a run of the epoch's frames, `start` to `stop`: so a gradient weighs its number of
labelled frames, and every minibatch has exactly as many as the plan says. For a sequence model the epoch's order is
made of *pieces*: whole utterances, or chunks of one. Pieces of about the same length are laid end to end, cut into
rounds of equally many frames, and the rounds are shuffled. So a minibatch holds pieces of about one length, and at each
end one that may be cut; the network sees `left` and `right` frames of context beyond a cut, which do not count.

Nothing is carried from one minibatch to the next: a gradient stays a pure function of the point and the minibatch.

A window of an epoch's order in which pieces of about the same length stand side by side.

Pieces, sorted by length, are laid end to end and cut where rounds begin and end; the rounds are shuffled. A window may
begin and end within a round, which then has pieces of two lengths. Nothing is kept but the pieces: frames are numbered
when they are asked for.

Of whole utterances, whose labels have no times, an example is an utterance. A minibatch holds utterances of about the
same length, none of them cut: an epoch's order is all utterances by length, give or take some jitter, cut into rounds,
and the rounds shuffled.

Legend: N sequences of a minibatch, T frames of its longest, B labelled frames in it, F stored features, R frames of
features the network needs on each side of a frame, U utterances of a split, L labels of the longest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.block_order import Integers, Order, expand
from roundelay.core.epochs import EpochPlan
from roundelay.core.streams import stream
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.frames import (
    COUNTED_AT_ONCE,
    LabelledFrames,
    LabelledRuns,
    OrderName,
    Split,
    Windows,
    cut_windows,
)


@final
class LaidOut:
    """An order of frames by pieces of utterances, within a window of an epoch.

    Args:
        begins, sizes: first frames and sizes of all pieces of a window, in the order in which they are laid out.
        at: position of the window in the epoch.
        round_: number of frames of a round.
        rng: shuffles the rounds.
    """

    def __init__(self, begins: Integers, sizes: Integers, at: int, round_: int, rng: np.random.Generator) -> None:
        self._begins, self._sizes, self._ends = begins, sizes, np.cumsum(sizes)
        frames = int(self._ends[-1])
        head = min(frames, -at % round_)
        full, tail = divmod(frames - head, round_)
        stretches = np.array([head, *[round_] * full, tail])  # in the order in which they are drawn
        where = rng.permutation(len(stretches))  # in which they are cut from the frames laid out
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
        """Return frames `start` to `stop` of the laid-out order."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        begins, sizes = self._begins[first : last + 1].copy(), self._sizes[first : last + 1].copy()
        skipped = start - int(self._ends[first] - self._sizes[first])
        begins[0] += skipped
        sizes[0] -= skipped
        sizes[-1] -= int(self._ends[last]) - stop
        return expand(begins, sizes)


Sequences = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""(features (N, T + 2 R, F), speaker mean (N, F), speaker standard deviation (N, F), lengths (N,), index (B,)).

Row n of the features begins R frames before the sequence; `index` says which of the N x T frames, rows first, count."""

JITTER = 0.05
"""Share of the mean length by which lengths are varied at random before pieces are sorted by them, anew in every epoch.
"""


@dataclass(frozen=True)
class Pieces:
    """A way to cut utterances into pieces.

    chunk   frames that count in a piece, about (an utterance is cut evenly); None: all of the utterance
    left, right   frames of context the network sees beyond a cut; never beyond the utterance
    fill    True if the left context is always complete: an utterance's first frame is repeated before it
    """

    chunk: int | None = None
    left: int = 0
    right: int = 0
    fill: bool = False

    @property
    def at_test(self) -> "Pieces":
        """The cut for evaluation and recognition.

        Whole utterances in one pass, where training cuts none or the network only looks back (`fill`). Else windows as
        long as in training that overlap, so that at least a third of a window lies on either side of the frames that
        count.
        """
        if self.chunk is None or self.fill:
            return Pieces(None, self.left, self.right, self.fill)
        window = self.left + self.chunk + self.right
        side = max(self.left, self.right, window // 3)
        return Pieces(max(1, window - 2 * side), side, side)

    def cut(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first frames of the pieces of utterances with `sizes` (U,) frames, numbered through all
        utterances, and the end of the last piece."""
        ends = np.cumsum(sizes)
        begins, _ = self.cut_at(ends - sizes, sizes)
        return np.concatenate([begins, ends[-1:]]) if len(ends) else np.zeros(1, np.int64)

    def cut_at(self, begins: Integers, sizes: Integers) -> tuple[Integers, Integers]:
        """Return the first frames and sizes of the pieces of utterances that begin at `begins` (U,) and have `sizes`
        (U,)."""
        parts = self.parts(sizes)
        utterance = np.repeat(np.arange(len(sizes)), parts)
        part = np.arange(len(utterance)) - np.repeat(np.cumsum(parts) - parts, parts)
        cuts = [sizes[utterance] * number // parts[utterance] for number in (part, part + 1)]
        return begins[utterance] + cuts[0], cuts[1] - cuts[0]

    def parts(self, sizes: Integers) -> Integers:
        """Return the number of pieces (U,) into which utterances of `sizes` (U,) frames are cut."""
        if self.chunk is None:
            return np.ones(len(sizes), np.int64)
        return np.maximum(1, np.rint(sizes / self.chunk)).astype(np.int64)


def lay_out(pieces: NDArray[np.int64], plan: EpochPlan) -> NDArray[np.int64]:
    """Return the order (frames,) of an epoch: pieces, given by their beginnings and the last one's end, sorted by
    length, cut into rounds of `plan.minibatch` frames, and the rounds shuffled. The last round, which may be smaller,
    holds pieces of any one length."""
    rng = stream(plan.seed, "order", plan.epoch)
    pieces = np.unique(np.minimum(pieces, plan.examples))  # a plan may want the first ones only
    sizes = np.diff(pieces)
    order = by_length(sizes, rng)
    return shuffled_rounds(expand(pieces[:-1][order], sizes[order]), plan, rng)


def shuffled_rounds(laid: Integers, plan: EpochPlan, rng: np.random.Generator) -> Integers:
    """Cut the examples `laid` (plan.examples,) into rounds, and shuffle these; the last round, which may be smaller, is
    cut out anywhere."""
    short = plan.examples - (plan.rounds - 1) * plan.minibatch
    at = int(rng.integers(plan.rounds)) * plan.minibatch
    rest = np.concatenate([laid[:at], laid[at + short :]])
    full = rest.reshape(plan.rounds - 1, plan.minibatch)[rng.permutation(plan.rounds - 1)]
    return np.concatenate([full.ravel(), laid[at : at + short]])


def by_length(sizes: Integers, rng: np.random.Generator) -> Integers:
    """Return the order of pieces of `sizes` by approximate length."""
    return np.argsort(sizes + rng.uniform(-JITTER, JITTER, len(sizes)) * (10 + sizes.mean()), kind="stable")


class SequenceExamples(LabelledFrames):
    """Examples that are labelled frames in pieces of utterances, by split.

    Args:
        reach: R, frames of features needed on each side of a frame.
        pieces: how training utterances are cut; held-out ones are cut as `pieces.at_test`.
    """

    def __init__(
        self,
        store: FeatureStore,
        labels: NDArray[np.int32],
        splits: Mapping[str, Split],
        reach: int,
        pieces: Pieces,
        order: OrderName = "shuffle",
    ) -> None:
        super().__init__(store, labels, splits, order)
        self._reach = reach
        self._pieces = pieces

    @property
    def sequences(self) -> int:
        """Number of pieces of all training utterances."""
        bounds = self._runs["train"].bounds
        some = (np.diff(bounds[at : at + COUNTED_AT_ONCE + 1]) for at in range(0, len(bounds) - 1, COUNTED_AT_ONCE))
        return sum(int(self._pieces.parts(sizes).sum()) for sizes in some)

    def order(self, plan: EpochPlan) -> Order:
        """Return the training frames in the order of the plan's epoch."""
        self.train_on(plan.shards)
        if self._how == "blocks":
            return self._in_blocks(plan, self._laid_out)
        return lay_out(self._pieces.cut(np.diff(self._runs["train"].bounds)), plan)

    def _laid_out(self, rng: np.random.Generator, blocks: NDArray[np.int32], at: int, plan: EpochPlan) -> LaidOut:
        """Order the pieces of `blocks` by length, in shuffled rounds."""
        runs = self._runs["train"]
        utterances = expand(runs.blocks[blocks], runs.blocks[blocks + 1] - runs.blocks[blocks])
        begins = runs.bounds[utterances]
        begins, sizes = self._pieces.cut_at(begins, runs.bounds[utterances + 1] - begins)
        order = by_length(sizes, rng)
        return LaidOut(begins[order], sizes[order], at, plan.minibatch, rng)

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Sequences, Tensor]:
        """Return the sequences with the labelled frames `numbers` of `split`, and their labels (B,). Frames of one
        piece whose numbers follow each other make one sequence."""
        return self._batch(split, numbers, self._pieces)

    def in_order(self, split: str, size: int) -> Iterator[tuple[Sequences, Tensor]]:
        """Yield all of `split`, pieces of about the same length together, `size` frames at a time or one piece."""
        pieces = self._pieces.at_test
        begins = pieces.cut(np.diff(self._runs[split].bounds))
        sizes = np.diff(begins)
        order = np.argsort(sizes, kind="stable")
        group: list[int] = []
        for piece in [*order.tolist(), -1]:
            if group and (piece < 0 or sizes[group].sum() + sizes[piece] > size):
                yield self._batch(split, expand(begins[group], sizes[group]), pieces)
                group = []
            group.append(piece)

    def _batch(self, split: str, numbers: NDArray[np.int64], pieces: Pieces) -> tuple[Sequences, Tensor]:
        runs = self._runs[split]
        frames = runs.in_store(numbers)
        utterance, part = _piece_of(numbers, runs, pieces)
        new = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(utterance) != 0) | (np.diff(part) != 0)) + 1
        row = np.zeros(len(numbers), np.int64)
        row[new] = 1
        first, last = np.concatenate([[0], new]), np.concatenate([new, [len(numbers)]]) - 1
        inputs = cut_sequences(
            self._store, frames[first], frames[last] + 1, pieces, self._reach, frames, np.cumsum(row)
        )
        return inputs, torch.from_numpy(self._labels[frames].astype(np.int64))


def _piece_of(numbers: Integers, runs: LabelledRuns, pieces: Pieces) -> tuple[Integers, Integers]:
    """Return the utterance, and the piece in it, of labelled frames (B,): the largest p with size * p // parts <= place
    in the utterance."""
    utterance = np.searchsorted(runs.bounds, numbers, side="right") - 1
    begin = runs.bounds[utterance]
    size = runs.bounds[utterance + 1] - begin
    return utterance, ((numbers - begin + 1) * pieces.parts(size) - 1) // size


def cut_sequences(
    store: FeatureStore,
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    pieces: Pieces,
    reach: int,
    frames: NDArray[np.int64],
    row: NDArray[np.int64],
) -> Sequences:
    """Return sequences that hold the frames `start` (N,) to `stop` (N,) of the store, each inside one utterance, with
    the context of `pieces`. Those that count are `frames` (B,), in the sequences `row` (B,)."""
    utterance = np.searchsorted(store.offsets, start, side="right") - 1
    first, end = store.offsets[utterance], store.offsets[utterance + 1]
    begin = start - pieces.left if pieces.fill else np.maximum(start - pieces.left, first)
    lengths = np.minimum(stop + pieces.right, end) - begin
    longest = int(lengths.max())
    wanted = begin[:, None] + np.arange(-reach, longest + reach)
    features = np.take(store.array, np.clip(wanted, first[:, None], end[:, None] - 1), axis=0)
    speaker = store.speaker_indices[utterance]
    return (
        torch.from_numpy(features),
        torch.from_numpy(store.speakers.mean[speaker]),
        torch.from_numpy(store.speakers.std[speaker]),
        torch.from_numpy(lengths),
        torch.from_numpy(row * longest + frames - begin[row]),
    )


def whole_utterance(store: FeatureStore, utterance: str, pieces: Pieces, reach: int) -> Sequences:
    """Return every frame of an utterance, cut as `pieces` says."""
    first, size = store.span(utterance)
    begins = pieces.cut(np.array([size]))
    row = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    return cut_sequences(store, first + begins[:-1], first + begins[1:], pieces, reach, first + np.arange(size), row)


@dataclass(frozen=True, eq=False)
class LabelledUtterances:
    """The utterances of a split and their labels."""

    positions: Integers  # (U,) their places in the store
    labels: Integers  # of all, one utterance after the other; 1 or more each
    bounds: Integers  # (U + 1,) first label of every utterance, and the number of all


def labelled(
    splits: Mapping[str, Sequence[Utterance]],
    store: FeatureStore,
    subsampling: int,
    labels_of: Callable[[Utterance, int], Sequence[int] | str],
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split with their labels, and the utterances left out, with reasons.

    Args:
        subsampling: number of frames for one row of scores.
        labels_of: returns the labels of an utterance with a number of rows of scores, or the reason to leave it out.
    """
    found, left_out = {}, []
    for split, utterances in splits.items():
        kept, labels = [], []
        for utterance in utterances:
            rows = int(rows_of_scores(np.array(store.frames(utterance.id)), subsampling))
            own = labels_of(utterance, rows)
            if isinstance(own, str):
                left_out.append(LeftOut(utterance.id, f"{utterance.id}: {own}"))
            else:
                kept.append(store.position(utterance.id))
                labels.append(own)
        bounds = np.cumsum([0, *map(len, labels)])
        flat = np.array([label for row in labels for label in row], np.int64)
        found[split] = LabelledUtterances(np.array(kept, np.int64), flat, bounds.astype(np.int64))
    return found, left_out


class UtteranceExamples:
    """Examples that are whole labelled utterances, by split.

    Args:
        reach: frames of features needed on each side of an utterance's.
        subsampling: number of frames for one row of scores.
    """

    def __init__(
        self, store: FeatureStore, splits: Mapping[str, LabelledUtterances], reach: int, subsampling: int
    ) -> None:
        self._store, self._splits = store, splits
        self._reach, self._subsampling = reach, subsampling

    def count(self, split: str) -> int:
        """Return the number of utterances in `split`."""
        return len(self._splits[split].positions)

    @property
    def sequences(self) -> int:
        """Number of training utterances."""
        return self.count("train")

    def _sizes(self, split: str) -> Integers:
        """Return the number of frames (U,) of each utterance of `split`."""
        positions = self._splits[split].positions
        sizes: Integers = self._store.offsets[positions + 1] - self._store.offsets[positions]
        return sizes

    def frames(self, split: str) -> int:
        """Return the number of frames in `split`."""
        return int(self._sizes(split).sum())

    def windows(self, split: str, numbers: NDArray[np.int64], reach: int) -> Windows:
        """Return windows of `reach` frames on each side of the frames `numbers` of `split`, counted utterance by
        utterance; at the edges of an utterance its first or last frame is repeated."""
        ends = np.cumsum(self._sizes(split))
        utterance = np.searchsorted(ends, numbers, side="right")
        end = self._store.offsets[self._splits[split].positions[utterance] + 1]
        return cut_windows(self._store, end - (ends[utterance] - numbers), np.arange(-reach, reach + 1))

    def order(self, plan: EpochPlan) -> Integers:
        """Return training utterances (plan.examples,) in the order of the plan's epoch."""
        rng = stream(plan.seed, "order", plan.epoch)
        return shuffled_rounds(by_length(self._sizes("train")[: plan.examples], rng), plan, rng)

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Sequences, Tensor]:
        """Return the features of the utterances `numbers` of `split`, and targets (N, 1 + L): the number of rows of
        scores of each, then its labels, -1 behind the last."""
        some = self._splits[split]
        inputs, rows = whole_utterances(self._store, some.positions[numbers], self._reach, self._subsampling)
        first, number = some.bounds[numbers], some.bounds[numbers + 1] - some.bounds[numbers]
        targets = np.full((len(numbers), 1 + int(number.max())), -1, np.int64)
        targets[:, 0] = rows
        for n, (begin, size) in enumerate(zip(first, number, strict=True)):
            targets[n, 1 : 1 + size] = some.labels[begin : begin + size]
        return inputs, torch.from_numpy(targets)

    def in_order(self, split: str, size: int) -> Iterator[tuple[Sequences, Tensor]]:
        """Yield all of `split`, utterances of about the same length together, `size` frames at a time or one
        utterance."""
        sizes = self._sizes(split)
        group: list[int] = []
        for utterance in np.argsort(sizes, kind="stable").tolist():
            if group and sizes[group].sum() + sizes[utterance] > size:
                yield self.batch(split, np.array(group))
                group = []
            group.append(utterance)
        if group:
            yield self.batch(split, np.array(group))


def rows_of_scores(frames: Integers, subsampling: int) -> Integers:
    """Return the number of rows of scores of utterances with `frames` frames."""
    return -(-frames // subsampling)


def whole_utterances(
    store: FeatureStore, positions: Integers, reach: int, subsampling: int
) -> tuple[Sequences, Integers]:
    """Return the features of whole utterances at places (N,) of the store, with all rows of scores wanted, also those
    behind an utterance's end; and the number of rows of each, (N,)."""
    first = store.offsets[positions]
    sequences = cut_sequences(
        store, first, store.offsets[positions + 1], Pieces(), reach, first, np.arange(len(positions))
    )
    rows = rows_of_scores(sequences[3].numpy(), subsampling)
    return (*sequences[:4], torch.arange(len(rows) * int(rows.max()))), rows
