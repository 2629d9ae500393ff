"""SpecAugment: stretches of time and bands of frequency that a network does not get to see in training (Park et al.
2019), put to the mean of the speaker.

Where the masks lie is drawn from torch's generator, which a learner seeds by the name of the minibatch: a gradient
stays a pure function of the point and the minibatch. Its warping of time is left out.

Legend: B windows or sequences, T frames, F stored features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roundelay.core.bounds import Share, Whole
from roundelay.core.configure import check_values
from roundelay_speech.features.store import StoredPart


@dataclass(frozen=True)
class AugmentConfig:
    """Masks of each window (of a network that splices frames) or sequence; widths are uniform from 0. Without masks
    nothing is hidden."""

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
        """All of them."""
        return self.time_masks + self.frequency_masks


class SpecAugment(nn.Module):
    """Normalised features (B, T, F) with parts of them at 0, in training; the same in evaluation.

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
    """Return (batch, length): one stretch in each row, of 0 to `longest` places, anywhere."""
    width = (torch.rand((batch, 1), device=device) * (longest + 1)).long()
    start = (torch.rand((batch, 1), device=device) * (length - width + 1)).long()
    place = torch.arange(length, device=device)
    return (place >= start) & (place < start + width)
