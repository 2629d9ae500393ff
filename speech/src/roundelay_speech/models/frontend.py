"""From stored filterbanks to a network's input: normalisation, deltas and splicing, on the device, never on disk.

All three are cheap next to the first matrix product, and 33 times the stored size afterwards.

SpecAugment (Park et al. 2019) hides stretches of time and bands of frequency in training: they are put to the mean of
the speaker. Where the masks lie is drawn from torch's generator, which a learner seeds by the name of the minibatch: a
gradient stays a pure function of the point and the minibatch. Its warping of time is left out.

Legend: B windows or sequences, or frames of a minibatch, T frames, W window, F stored features, K spliced positions x
orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.bounds import Share, Whole
from roundelay.core.configure import check_values
from roundelay_speech.features.store import StoredPart


@dataclass(frozen=True)
class FrontendConfig:
    """The options of a front end: `context` frames are spliced on both sides; `order` deltas, each over `delta_window`
    frames on both sides."""

    context: int = 5
    order: int = 2
    delta_window: int = 2

    @property
    def reach(self) -> int:
        """Number of frames needed on each side of a frame."""
        return self.context + self.order * self.delta_window

    @property
    def width(self) -> int:
        """W, the frames of a window."""
        return 2 * self.reach + 1

    @property
    def spliced(self) -> int:
        """K, the vectors of F features in the output: (order + 1) x (2 context + 1)."""
        return (self.order + 1) * (2 * self.context + 1)


def delta_kernels(order: int, window: int) -> list[NDArray[np.float64]]:
    """Return kernels of the static features and their deltas, as compute-deltas defines them.

    The first delta is the slope of a regression over 2 window + 1 frames, d_t = sum_j j x_{t+j} / sum_j j^2; each
    further one is the same regression on the one before.
    """
    slope = np.arange(-window, window + 1, dtype=np.float64)
    slope /= float((slope**2).sum())
    kernels = [np.ones(1)]
    for _ in range(order):
        # Correlating with one kernel and then another is correlating with their convolution.
        kernels.append(np.convolve(kernels[-1], slope))
    return kernels


def splice_matrix(config: FrontendConfig) -> NDArray[np.float32]:
    """Return deltas and splicing as one linear map over time, (K, W). Rows are (order, position), order slowest."""
    rows = []
    for kernel in delta_kernels(config.order, config.delta_window):
        half = len(kernel) // 2
        for position in range(-config.context, config.context + 1):
            row = np.zeros(config.width)
            centre = config.reach + position
            row[centre - half : centre + half + 1] = kernel
            rows.append(row)
    return np.array(rows, np.float32)


Columns = int | Sequence[StoredPart]
"""Columns of features: F that are all alike, or a store's facts about them."""


def kept_outputs(config: FrontendConfig, parts: Sequence[StoredPart]) -> NDArray[np.bool_]:
    """Return the mask (order + 1, 2 context + 1, F) of the deltas and neighbours that a network sees of each
    feature."""
    orders = np.repeat([min(part.deltas, config.order) for part in parts], [part.width for part in parts])
    spliced = np.repeat([part.spliced for part in parts], [part.width for part in parts])
    order = np.arange(config.order + 1)[:, None, None]
    position = np.arange(-config.context, config.context + 1)[:, None]
    kept: NDArray[np.bool_] = (order <= orders) & (spliced | (position == 0))
    return kept


class Frontend(nn.Module):
    """The front end of a network, from windows of stored features (B, W, F), with their speakers' mean and standard
    deviation (B, F), to (B, K F), or fewer if some features have no deltas or neighbours.

    An utterance is extended at both ends by its first and last frame; the code that cuts windows does that. `scale`
    (order + 1, F) brings each order to unit variance; it is data, not a parameter.

    Args:
        features: F, or the store's facts about its columns.

    Attributes:
        augment: hides some of the features in training; None: nothing.
    """

    matrix: Tensor
    scale: Tensor
    kept: Tensor | None

    def __init__(self, config: FrontendConfig, features: Columns) -> None:
        super().__init__()
        self.config = config
        self.parts = (StoredPart("features", features),) if isinstance(features, int) else tuple(features)
        kept = kept_outputs(config, self.parts)
        self.width = int(kept.sum())
        self.augment: SpecAugment | None = None
        self.register_buffer("matrix", torch.from_numpy(splice_matrix(config)))
        self.register_buffer("scale", torch.ones(config.order + 1, kept.shape[2]))
        places = None if kept.all() else torch.from_numpy(np.flatnonzero(kept))
        self.register_buffer("kept", places, persistent=False)

    def fit_scale(self, windows: Tensor, mean: Tensor, std: Tensor) -> None:
        """Set `scale` from sample windows: one over the standard deviation of each order and feature."""
        self.scale.fill_(1.0)
        with torch.no_grad():
            orders = self._orders((windows - mean[:, None]) / std[:, None])
            self.scale.copy_(1 / orders[:, :, self.config.context].std(0).clamp_min(1e-3))

    def forward(self, windows: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        with torch.autocast(windows.device.type, enabled=False):
            normal = (windows - mean[:, None]) / std[:, None]
            if self.augment is not None:
                normal = self.augment(normal)
            seen = self._orders(normal).flatten(1)
            return seen if self.kept is None else seen.index_select(1, self.kept)

    def _orders(self, normal: Tensor) -> Tensor:
        """Compute deltas and neighbours, (B, W, F) -> (B, order + 1, 2 context + 1, F)."""
        spliced = torch.matmul(self.matrix, normal)  # (K, W) x (B, W, F) -> (B, K, F)
        return spliced.view(normal.shape[0], self.config.order + 1, -1, normal.shape[2]) * self.scale[:, None]

    def over_time(self, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Apply a front end without splicing to sequences of stored features (N, T + 2 reach, F), with their speakers'
        mean and standard deviation (N, F): -> (N, T, order + 1, F)."""
        if self.config.context:
            raise ValueError("sequences are not spliced: the network sees the neighbours itself")
        with torch.autocast(features.device.type, enabled=False):
            normal = (features - mean[:, None]) / std[:, None]
            if self.augment is not None:
                normal = self.augment(normal)
            orders = normal.unfold(1, self.config.width, 1) @ self.matrix.T  # (N, T, F, W) x (W, K) -> (N, T, F, K)
            return orders.transpose(2, 3) * self.scale

    def flat_over_time(self, features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Apply `forward` to every frame of sequences, as `over_time`: -> (N, T, width)."""
        seen = self.over_time(features, mean, std).flatten(2)
        return seen if self.kept is None else seen.index_select(2, self.kept)


@dataclass(frozen=True)
class AugmentConfig:
    """The options of SpecAugment: masks of each window (of a network that splices frames) or sequence, with widths
    uniform from 0. Without masks nothing is hidden."""

    time_masks: Whole = 0
    """SpecAugment, masks over time."""
    time_width: Whole = 10
    """Frames of a mask over time, at most."""
    time_share: Share = 0.2
    """Share of a sequence that a mask over time may hide."""
    frequency_masks: Whole = 0
    """SpecAugment, masks over frequency."""
    frequency_width: Whole = 8
    """Bands of a mask over frequency, at most."""

    def __post_init__(self) -> None:
        check_values(self, "training.augment")

    @property
    def masks(self) -> int:
        """Number of masks, over time and over frequency."""
        return self.time_masks + self.frequency_masks


class SpecAugment(nn.Module):
    """SpecAugment: in training, parts of normalised features (B, T, F) become 0; in evaluation none do.

    Masks of time hide all columns but those that are not spliced (a vector of the whole utterance has no time); masks
    of frequency hide bands of the filterbanks.
    """

    draws = True  # random numbers, so minibatches are computed one by one

    def __init__(self, config: AugmentConfig, parts: Sequence[StoredPart]) -> None:
        super().__init__()
        self.config = config
        in_time = torch.cat([torch.full((part.width,), part.spliced) for part in parts])
        self.register_buffer("in_time", in_time, persistent=False)
        ends = torch.tensor([0, *(part.width for part in parts)]).cumsum(0).tolist()
        self._banks = [(ends[i], part.width) for i, part in enumerate(parts) if part.filterbank]

    in_time: Tensor  # (F,)

    def forward(self, normal: Tensor) -> Tensor:
        if not self.training or not self.config.masks:
            return normal
        batch, frames, columns = normal.shape
        hidden = torch.zeros((batch, frames, columns), dtype=torch.bool, device=normal.device)
        longest = min(self.config.time_width, int(self.config.time_share * frames))
        for _ in range(self.config.time_masks):
            hidden |= _mask(batch, frames, longest, normal.device)[:, :, None] & self.in_time
        for first, width in self._banks:
            for _ in range(self.config.frequency_masks):
                bands = _mask(batch, width, min(self.config.frequency_width, width), normal.device)
                hidden[:, :, first : first + width] |= bands[:, None]
        return normal.masked_fill(hidden, 0.0)


def _mask(batch: int, length: int, longest: int, device: torch.device) -> Tensor:
    """Return a mask (batch, length) with one stretch of 0 to `longest` places in each row."""
    width = (torch.rand((batch, 1), device=device) * (longest + 1)).long()
    start = (torch.rand((batch, 1), device=device) * (length - width + 1)).long()
    place = torch.arange(length, device=device)
    return (place >= start) & (place < start + width)
