"""Whole utterances with labels that have no times: what a network trains on without an alignment.

An example is an utterance. A minibatch holds utterances of about the same length, none of them cut: an epoch's order is
all utterances by length, give or take some jitter, cut into rounds, and the rounds shuffled.

Legend: U utterances of a split, N of a minibatch, L labels of the longest, T frames of the longest, F stored features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.block_order import Integers
from roundelay.core.epochs import EpochPlan
from roundelay.core.streams import stream
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.frames import Windows, cut_windows
from roundelay_speech.models.sequences import Pieces, Sequences, by_length, cut_sequences, shuffled_rounds


@dataclass(frozen=True, eq=False)
class LabelledUtterances:
    """Utterances of a split and their labels."""

    positions: Integers  # (U,) their places in the store
    labels: Integers  # of all, one utterance after the other; 1 or more each
    bounds: Integers  # (U + 1,) first label of every utterance, and the number of all


def labelled(
    splits: Mapping[str, Sequence[Utterance]],
    store: FeatureStore,
    subsampling: int,
    labels_of: Callable[[Utterance, int], Sequence[int] | str],
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split with their labels, and those that are left out, with reasons.

    Args:
        subsampling: frames that one row of scores stands for.
        labels_of: the labels of an utterance that has so many rows of scores, or the reason to leave it out.
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
    """Labelled utterances by split, drawn whole.

    Args:
        reach: frames of features needed on each side of an utterance's.
        subsampling: frames that one row of scores stands for.
    """

    def __init__(
        self, store: FeatureStore, splits: Mapping[str, LabelledUtterances], reach: int, subsampling: int
    ) -> None:
        self._store, self._splits = store, splits
        self._reach, self._subsampling = reach, subsampling

    def count(self, split: str) -> int:
        """Return utterances in `split`."""
        return len(self._splits[split].positions)

    @property
    def sequences(self) -> int:
        """Utterances of the training set."""
        return self.count("train")

    def _sizes(self, split: str) -> Integers:
        """Return frames (U,) of the utterances of `split`."""
        positions = self._splits[split].positions
        sizes: Integers = self._store.offsets[positions + 1] - self._store.offsets[positions]
        return sizes

    def frames(self, split: str) -> int:
        """Return frames in `split`."""
        return int(self._sizes(split).sum())

    def windows(self, split: str, numbers: NDArray[np.int64], reach: int) -> Windows:
        """Return windows of `reach` frames on each side of these frames of `split`, which are counted utterance by
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
        """Return the features of these utterances of `split`, and targets (N, 1 + L): the rows of scores of each, then
        its labels, -1 behind the last."""
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
    """Return rows of scores that utterances of so many frames have."""
    return -(-frames // subsampling)


def whole_utterances(
    store: FeatureStore, positions: Integers, reach: int, subsampling: int
) -> tuple[Sequences, Integers]:
    """Return the features of whole utterances at these places of the store (N,), with all rows of scores wanted, those
    behind the end of an utterance included; and how many rows each of them has (N,)."""
    first = store.offsets[positions]
    sequences = cut_sequences(
        store, first, store.offsets[positions + 1], Pieces(), reach, first, np.arange(len(positions))
    )
    rows = rows_of_scores(sequences[3].numpy(), subsampling)
    return (*sequences[:4], torch.arange(len(rows) * int(rows.max()))), rows
