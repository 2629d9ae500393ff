"""Frames with tied-state labels, cut into minibatches; and scores of whole utterances for the decoder.

Legend: T frames of all utterances together, B frames of a minibatch, W window, F features, S tied states.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.speech.features.store import FeatureStore
from roundelay.speech.models.frontend import FrontendConfig

Windows = tuple[Tensor, Tensor, Tensor]
"""(windows (B, W, F), speaker mean (B, F), speaker standard deviation (B, F))."""


class LabelledFrames:
    """The labelled frames of every split. Random access into the memory-mapped features: nothing is loaded before it is
    used.

    Args:
        labels: (T,) tied state of every frame in store order, -1 where there is none.
        splits: utterance ids by split.
    """

    def __init__(self, store: FeatureStore, labels: NDArray[np.int32], splits: Mapping[str, Sequence[str]]) -> None:
        if len(labels) != len(store.array):
            raise UserError(
                f"{store.folder}: {len(store.array)} frames, but the alignment has {len(labels)}. "
                "Run `roundelay align` again."
            )
        self._store, self._labels = store, labels
        self._frames: dict[str, NDArray[np.int64]] = {}
        self._sizes: dict[str, NDArray[np.int64]] = {}  # labelled frames of every utterance that has some
        for split, utterances in splits.items():
            spans = [store.span(u) for u in utterances if u in store]
            inside = [np.arange(first, first + n)[labels[first : first + n] >= 0] for first, n in spans]
            self._frames[split] = np.concatenate([*inside, np.zeros(0, np.int64)])
            self._sizes[split] = np.array([len(some) for some in inside if len(some)], np.int64)

    def count(self, split: str) -> int:
        """Labelled frames in `split`."""
        return len(self._frames[split])

    def windows(self, split: str, numbers: NDArray[np.int64], reach: int) -> Windows:
        """Windows of `reach` frames on each side of these labelled frames of `split`; at the edges of an utterance its
        first or last frame is repeated."""
        return cut_windows(self._store, self._frames[split][numbers], np.arange(-reach, reach + 1))

    def label_counts(self, split: str, states: int) -> NDArray[np.int64]:
        """(S,): how often each tied state occurs in `split`."""
        return np.bincount(self._labels[self._frames[split]], minlength=states)


class FrameExamples(LabelledFrames):
    """Every labelled frame is an example, whatever utterance it is of."""

    def __init__(
        self,
        store: FeatureStore,
        labels: NDArray[np.int32],
        splits: Mapping[str, Sequence[str]],
        frontend: FrontendConfig,
    ) -> None:
        super().__init__(store, labels, splits)
        self._reach = np.arange(-frontend.reach, frontend.reach + 1)

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Windows, Tensor]:
        """Windows and labels (B,) of these labelled frames of `split`."""
        frames = self._frames[split][numbers]
        windows = cut_windows(self._store, frames, self._reach)
        return windows, torch.from_numpy(self._labels[frames].astype(np.int64))

    def in_order(self, split: str, size: int) -> Iterator[tuple[Windows, Tensor]]:
        """All of `split`, `size` frames at a time."""
        for start in range(0, self.count(split), size):
            yield self.batch(split, np.arange(start, min(start + size, self.count(split))))


def cut_windows(store: FeatureStore, frames: NDArray[np.int64], reach: NDArray[np.int64]) -> Windows:
    """Windows of `frames` (B,) at the neighbouring offsets `reach` (W,), kept inside each frame's own utterance."""
    utterance = np.searchsorted(store.offsets, frames, side="right") - 1
    first, last = store.offsets[utterance], store.offsets[utterance + 1] - 1
    inside = (frames + reach[0] >= first) & (frames + reach[-1] <= last)
    window = np.empty((len(frames), len(reach), store.array.shape[1]), np.float32)
    # Nearly all windows lie in one piece, and are copied as one.
    window[inside] = _stretches(store.array, len(reach))[frames[inside] + reach[0]]
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
    """Every stretch of so many frames of `array` (T, F), by its first: (T - frames + 1, frames, F), without copying."""
    step, feature = array.strides
    shape = (max(0, len(array) - frames + 1), frames, array.shape[1])
    return np.lib.stride_tricks.as_strided(array, shape, (step, step, feature), writeable=False)


def log_prior(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """(S,) log relative frequency of each tied state in the training alignment, each counted once more."""
    smooth = counts + 1.0
    prior: NDArray[np.float32] = np.log(smooth / smooth.sum()).astype(np.float32)
    return prior


class Network(Protocol):
    """A network that gives scores of tied states."""

    def whole(self, store: FeatureStore, utterance: str) -> tuple[Tensor, ...]:
        """The inputs for every frame of an utterance."""
        ...

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Scores (frames, S)."""
        ...


def log_likelihoods(
    network: Network, store: FeatureStore, utterance: str, prior: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Scaled likelihoods log p(x_t | s) = log p(s | x_t) - log p(s) + constant, (frames, S), of one utterance."""
    with torch.inference_mode():
        scores = network(*network.whole(store, utterance))
        posterior: NDArray[np.float32] = torch.log_softmax(scores.float(), 1).cpu().numpy()
    scaled: NDArray[np.float32] = np.ascontiguousarray(posterior - prior)
    return scaled
