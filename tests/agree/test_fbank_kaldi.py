"""Our filterbank against kaldi-native-fbank, Kaldi's own code."""

import kaldi_native_fbank as knf
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import torch

from roundelay.core.streams import stream
from roundelay_speech.features.fbank import FbankConfig, fbank, mel_filters
from support.corpora import an4, speechlike

TOLERANCE = 1e-3
DEFAULT = FbankConfig()
Wave = npt.NDArray[np.float32]


def kaldi(wave: Wave, rate: int, config: FbankConfig) -> Wave:
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.frame_opts.frame_length_ms = config.frame_length_ms
    options.frame_opts.frame_shift_ms = config.frame_shift_ms
    options.frame_opts.preemph_coeff = config.preemphasis
    options.mel_opts.num_bins = config.num_bins
    options.mel_opts.low_freq = config.low_freq
    options.mel_opts.high_freq = config.high_freq
    options.use_energy = False
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(rate, wave * 32768)
    computer.input_finished()
    frames = [computer.get_frame(i) for i in range(computer.num_frames_ready)]
    return np.array(frames, dtype=np.float32).reshape(-1, config.num_bins)


def noise(rate: int) -> Wave:
    return (0.1 * stream(0, "noise", rate).standard_normal(2 * rate)).astype(np.float32)


def assert_agree(wave: Wave, rate: int, config: FbankConfig = DEFAULT) -> None:
    ours = fbank(torch.from_numpy(wave), rate, config).numpy()
    theirs = kaldi(wave, rate, config)
    assert ours.shape == theirs.shape == (config.num_frames(len(wave), rate), config.num_bins)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_noise_and_speech(rate: int) -> None:
    assert_agree(noise(rate), rate)
    assert_agree(speechlike(3, rate), rate)


@pytest.mark.parametrize(
    "config",
    [
        FbankConfig(num_bins=23),
        FbankConfig(num_bins=80, low_freq=0, high_freq=-400),
        FbankConfig(low_freq=100, high_freq=7000, preemphasis=0),
        FbankConfig(frame_length_ms=32, frame_shift_ms=12.5),
    ],
)
def test_other_configurations(config: FbankConfig) -> None:
    assert_agree(speechlike(2, 16000), 16000, config)


def test_digital_silence_is_the_same_floor() -> None:
    assert_agree(np.zeros(8000, np.float32), 16000)


@pytest.mark.parametrize("extra", [-1, 0, 1, 159, 160, 161])
def test_number_of_frames(extra: int) -> None:
    assert_agree(noise(16000)[: 400 + extra], 16000)
    assert_agree(noise(16000)[: 400 + 160 * 1024 + extra], 16000)  # around the end of a block of frames


def test_recorded_speech() -> None:
    for path in sorted((an4() / "flac").rglob("*.flac"))[::97]:
        wave, rate = soundfile.read(path, dtype="float32")
        assert_agree(wave, rate)


@pytest.mark.parametrize("warp", [0.8, 0.93, 1.0, 1.1, 1.25])
@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("config", [DEFAULT, FbankConfig(num_bins=23, low_freq=60, high_freq=-100)])
def test_warped_filters(config: FbankConfig, rate: int, warp: float) -> None:
    """Kaldi's --vtln-warp, at its usual --vtln-low and --vtln-high."""
    frames, mel = knf.FrameExtractionOptions(), knf.MelBanksOptions()
    frames.samp_freq, mel.num_bins = rate, config.num_bins
    mel.low_freq, mel.high_freq = config.low_freq, config.high_freq
    theirs = np.array(knf.MelBanks(mel, frames, warp).get_matrix())
    points = 256 if rate == 8000 else 512
    ours = mel_filters(config, rate, points, warp).numpy().T
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], rtol=0, atol=1e-4)
