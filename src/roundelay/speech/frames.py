"""Frames with tied-state labels, cut into minibatches; and scores of whole utterances for the decoder.

Legend: T frames of all utterances together, B frames of a minibatch, W window, F features, S tied states.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.errors import UserError
from roundelay.speech.feature_store import FeatureStore
from roundelay.speech.frontend import FrontendConfig

Windows = tuple[Tensor, Tensor, Tensor]
"""(windows (B, W, F), speaker mean (B, F), speaker standard deviation (B, F))."""


class FrameExamples:
    """Labelled frames by split. Random access into the memory-mapped features: nothing is loaded before it is used.

    Args:
        labels: (T,) tied state of every frame in store order, -1 where there is none.
        splits: utterance ids by split.
    """

    def __init__(
        self,
        store: FeatureStore,
        labels: NDArray[np.int32],
        splits: Mapping[str, Sequence[str]],
        frontend: FrontendConfig,
    ) -> None:
        if len(labels) != len(store.array):
            raise UserError(
                f"{store.folder}: {len(store.array)} frames, but the alignment has {len(labels)}. "
                "Run `roundelay align` again."
            )
        self._store, self._labels = store, labels
        self._reach = np.arange(-frontend.reach, frontend.reach + 1)
        self._frames: dict[str, NDArray[np.int64]] = {}
        for split, utterances in splits.items():
            spans = [store.span(u) for u in utterances if u in store]
            inside = np.concatenate([np.arange(first, first + n) for first, n in spans] or [np.zeros(0, np.int64)])
            self._frames[split] = inside[labels[inside] >= 0]

    def count(self, split: str) -> int:
        """Labelled frames in `split`."""
        return len(self._frames[split])

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Windows, Tensor]:
        """Windows and labels (B,) of these labelled frames of `split`."""
        frames = self._frames[split][numbers]
        return self.windows(frames), torch.from_numpy(self._labels[frames].astype(np.int64))

    def in_order(self, split: str, size: int) -> Iterator[tuple[Windows, Tensor]]:
        """All of `split`, `size` frames at a time."""
        for start in range(0, self.count(split), size):
            yield self.batch(split, np.arange(start, min(start + size, self.count(split))))

    def windows(self, frames: NDArray[np.int64]) -> Windows:
        """Windows around `frames` (B,); at the edges of an utterance its first or last frame is repeated."""
        return cut_windows(self._store, frames, self._reach)

    def label_counts(self, split: str, states: int) -> NDArray[np.int64]:
        """(S,): how often each tied state occurs in `split`."""
        return np.bincount(self._labels[self._frames[split]], minlength=states)


def cut_windows(store: FeatureStore, frames: NDArray[np.int64], reach: NDArray[np.int64]) -> Windows:
    """Windows of `frames` (B,) at the offsets `reach` (W,), kept inside each frame's own utterance."""
    utterance = np.searchsorted(store.offsets, frames, side="right") - 1
    first, last = store.offsets[utterance, None], store.offsets[utterance + 1, None] - 1
    window = store.array[np.clip(frames[:, None] + reach, first, last)]
    speaker = store.speaker_indices[utterance]
    return (
        torch.from_numpy(window),
        torch.from_numpy(store.speakers.mean[speaker]),
        torch.from_numpy(store.speakers.std[speaker]),
    )


def log_prior(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """(S,) log relative frequency of each tied state in the training alignment, each counted once more."""
    smooth = counts + 1.0
    prior: NDArray[np.float32] = np.log(smooth / smooth.sum()).astype(np.float32)
    return prior


def log_likelihoods(
    module: nn.Module, store: FeatureStore, utterance: str, frontend: FrontendConfig, prior: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Scaled likelihoods log p(x_t | s) = log p(s | x_t) - log p(s) + constant, (frames, S), of one utterance."""
    first, frames = store.span(utterance)
    reach = np.arange(-frontend.reach, frontend.reach + 1)
    with torch.inference_mode():
        scores = module(*cut_windows(store, np.arange(first, first + frames), reach))
        posterior: NDArray[np.float32] = torch.log_softmax(scores.float(), 1).cpu().numpy()
    scaled: NDArray[np.float32] = np.ascontiguousarray(posterior - prior)
    return scaled
