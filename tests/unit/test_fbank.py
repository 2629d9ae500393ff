"""The filterbank by hand: where a tone lands, what scaling does, what cannot be."""

import math

import numpy as np
import pytest
import torch

from roundelay.core.errors import UserError
from roundelay_speech.features.fbank import LOG_FLOOR, FbankConfig, fbank, mel_filters, povey_window, warped_frequencies
from support.corpora import speechlike


def mel(hertz: float) -> float:
    return 1127 * math.log(1 + hertz / 700)


@pytest.mark.parametrize("hertz", [300, 1000, 3000, 6000])
def test_a_tone_is_loudest_in_the_band_nearest_on_the_mel_scale(hertz: int) -> None:
    wave = 0.3 * torch.sin(2 * math.pi * hertz * torch.arange(16000) / 16000)
    low, width = mel(20), (mel(8000) - mel(20)) / 41
    band = round((mel(hertz) - low) / width) - 1
    assert set(fbank(wave, 16000).argmax(1).tolist()) <= {band}


def test_twice_the_samples_is_four_times_the_power() -> None:
    wave = torch.from_numpy(speechlike(1, 16000)) / 4
    louder = fbank(2 * wave, 16000) - fbank(wave, 16000)
    torch.testing.assert_close(louder, torch.full_like(louder, math.log(4)), rtol=0, atol=1e-4)


def test_a_constant_is_silence() -> None:
    """The mean of each frame is taken away."""
    features = fbank(torch.full((1600,), 0.25), 16000)
    np.testing.assert_allclose(features, math.log(LOG_FLOOR), rtol=1e-6)


def test_shape_and_type() -> None:
    wave = torch.zeros(16000, dtype=torch.float64)
    assert fbank(wave, 16000).shape == (98, 40)
    assert fbank(wave, 16000).dtype == torch.float32
    assert fbank(wave[:399], 16000).shape == (0, 40)
    assert fbank(wave[:400], 16000).shape == (1, 40)


def test_filters_are_a_partition_of_unity_between_the_outer_centres() -> None:
    filters = mel_filters(FbankConfig(), 16000, 512)
    assert filters.shape == (256, 40)
    inside = torch.arange(256)[3:240]
    torch.testing.assert_close(filters.sum(1)[inside], torch.ones(len(inside)), rtol=0, atol=1e-6)


def test_window_is_symmetric_and_vanishes_at_the_ends() -> None:
    window = povey_window(400)
    assert window[0] == 0
    assert abs(float(window[-1])) < 1e-6
    np.testing.assert_allclose(window, window.flip(0), atol=1e-6)
    assert float(window[200]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("config", "rate", "message"),
    [
        (FbankConfig(high_freq=8000), 8000, "do not fit audio sampled at 8000 Hz"),
        (FbankConfig(low_freq=3000, high_freq=2000), 16000, "low_freq must lie below high_freq"),
        (FbankConfig(high_freq=-8000), 16000, "do not fit"),
        (FbankConfig(num_bins=0), 16000, "0 mel bands"),
        (FbankConfig(num_bins=200), 8000, "too narrow at 8000 Hz: band 2 holds no point"),
    ],
)
def test_bands_that_cannot_be(config: FbankConfig, rate: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fbank(torch.zeros(16000), rate, config)


def test_a_warp_moves_what_is_heard() -> None:
    """A tone at f / warp is heard at warp w where one at f is without: in the same bands, but for the ends."""
    time = torch.arange(16000) / 16000
    for hertz in (500.0, 1500.0, 3000.0):
        plain = fbank((2 * math.pi * hertz * time).cos(), 16000)[10]
        for warp in (0.9, 1.15):
            moved = fbank((2 * math.pi * hertz / warp * time).cos(), 16000, warp=warp)[10]
            assert int(moved.argmax()) == int(plain.argmax())


def test_warped_frequencies_by_hand() -> None:
    """From 20 to 8000 Hz at warp 1.25 the bends are at 125 and 7500 Hz, moved to 100 and 6000."""
    hertz = np.array([20.0, 72.5, 125.0, 1000.0, 7500.0, 7750.0, 8000.0])
    found = warped_frequencies(hertz, 20.0, 8000.0, 8000.0, 1.25)
    np.testing.assert_allclose(found, [20, 60, 100, 800, 6000, 7000, 8000])
    np.testing.assert_allclose(warped_frequencies(hertz, 20.0, 8000.0, 8000.0, 1.0), hertz)


@pytest.mark.parametrize("config", [FbankConfig(low_freq=130), FbankConfig(high_freq=7000)])
def test_a_range_without_room_for_a_warp_is_refused(config: FbankConfig) -> None:
    with pytest.raises(UserError, match=r"A warp of 1\.2 bends at 120 and 7500 Hz"):
        fbank(torch.zeros(16000), 16000, config, warp=1.2)
