"""SpecAugment: where masks may lie, how wide they are, and that minibatches draw their own."""

import pytest
import torch

from roundelay.core.errors import UserError
from roundelay_speech.features.store import StoredPart
from roundelay_speech.models.frontend import AugmentConfig, SpecAugment

PARTS = (
    StoredPart("fmllr", 3, filterbank=False),
    StoredPart("logmel", 20),
    StoredPart("ivector", 4, spliced=False, filterbank=False),
)


def hidden(config: AugmentConfig, batch: int = 400, frames: int = 50, seed: int = 0) -> torch.Tensor:
    """(B, T, F) which values of ones are 0 afterwards."""
    masks = SpecAugment(config, PARTS)
    torch.manual_seed(seed)
    found: torch.Tensor = masks(torch.ones(batch, frames, 27)) == 0
    return found


def test_time_masks_hide_all_but_vectors() -> None:
    found = hidden(AugmentConfig(time_masks=1, time_width=8))
    assert not found[..., 23:].any()
    assert (found[..., :23] == found[..., :1]).all()
    rows = found[..., 0]
    assert ((rows[:, 1:] & ~rows[:, :-1]).sum(1) + rows[:, 0] <= 1).all()  # one stretch
    widths = rows.sum(1)
    assert sorted(set(widths.tolist())) == list(range(9))
    assert abs(float(widths.float().mean()) - 4) < 0.5
    assert rows.any(0).all()  # anywhere
    assert hidden(AugmentConfig(time_masks=1, time_width=8), frames=20)[..., 0].sum(1).max() == 4  # a fifth of 20


def test_frequency_masks_hide_bands_of_filterbanks() -> None:
    found = hidden(AugmentConfig(frequency_masks=2, frequency_width=5))
    assert not found[..., :3].any()
    assert not found[..., 23:].any()
    assert (found == found[:, :1]).all()  # at all times
    bands = found[:, 0, 3:23].sum(1)
    assert bands.max() <= 10
    assert bands.max() > 5  # two masks


def test_evaluation_sees_everything() -> None:
    masks = SpecAugment(AugmentConfig(time_masks=2, frequency_masks=2), PARTS).eval()
    ones = torch.ones(3, 9, 27)
    assert masks(ones) is ones
    off = SpecAugment(AugmentConfig(), PARTS)
    assert off(ones) is ones
    assert not list(masks.parameters())
    assert not masks.state_dict()


def test_the_seed_decides() -> None:
    config = AugmentConfig(time_masks=2, frequency_masks=2)
    assert (hidden(config) == hidden(config)).all()
    assert (hidden(config) != hidden(config, seed=1)).any()


def test_options_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"augment\.time_width is -1"):
        AugmentConfig(time_width=-1)
    with pytest.raises(UserError, match=r"augment\.time_share is 2"):
        AugmentConfig(time_share=2)
