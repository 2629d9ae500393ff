"""Log mel filterbank energies as Kaldi computes them (compute-fbank-feats with dither 0), in torch on any device.

Legend: N samples, T frames, L samples per frame, P points of the transform (L rounded up to a power of two), F bands.

Per frame: subtract the mean, x[i] -= 0.97 x[i-1] (the first sample from itself), Povey window, power spectrum,
triangular filters evenly spaced on the mel scale 1127 ln(1 + f / 700), logarithm with single precision's epsilon as the
floor. Samples are scaled to 16-bit integers first, as Kaldi reads them. Frames lie wholly inside the signal ("snip
edges"): T = 1 + (N - L) // shift, none for a signal shorter than a frame.

A warp (vocal tract length normalisation, Lee and Rose 1998, as Kaldi's --vtln-warp) moves the corners of the filters
from f to f / warp: sound at f / warp is found where f was. Near both ends of the range, below VTLN_LOW and
above VTLN_HIGH, straight lines lead back to the ends, which stay.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from roundelay.core.errors import UserError

INT16_SCALE = 32768.0
LOG_FLOOR = float(torch.finfo(torch.float32).eps)
VTLN_LOW, VTLN_HIGH = 100.0, -500.0
"""Frequencies at which a warp bends, Hz, the second from half the sampling rate: Kaldi's --vtln-low and --vtln-high."""
_FRAMES_AT_ONCE = 256  # their samples and spectra stay in the cache of a core


@dataclass(frozen=True)
class FbankConfig:
    """Options of a filterbank, as Kaldi's of the same names; without dither, so that features are always the same."""

    num_bins: int = 40
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    low_freq: float = 20.0  # Hz
    high_freq: float = 0.0  # Hz; 0 or less: that far below half the sampling rate
    preemphasis: float = 0.97

    def frame_length(self, sampling_rate: int) -> int:
        """Return the number of samples of a frame."""
        return int(sampling_rate * 0.001 * self.frame_length_ms)

    def frame_shift(self, sampling_rate: int) -> int:
        """Return the number of samples between the beginnings of frames."""
        return int(sampling_rate * 0.001 * self.frame_shift_ms)

    def num_frames(self, num_samples: int, sampling_rate: int) -> int:
        """Return the number of frames that lie wholly inside so many samples."""
        length = self.frame_length(sampling_rate)
        return 0 if num_samples < length else 1 + (num_samples - length) // self.frame_shift(sampling_rate)


def fbank(
    wave: torch.Tensor, sampling_rate: int, config: FbankConfig = FbankConfig(), warp: float = 1.0
) -> torch.Tensor:
    """Return the log mel energies of samples.

    Args:
        wave: (N,) float, between -1 and 1; on any device.
        sampling_rate: Hz.
        config: see FbankConfig.
        warp: factor on frequencies; above 1, formants come out higher, as of a shorter vocal tract.

    Returns:
        (T, F) float32, T = config.num_frames(N, sampling_rate).

    Raises:
        UserError: the bands do not fit below half the sampling rate, or leave no room for the warp.
    """
    length, shift = config.frame_length(sampling_rate), config.frame_shift(sampling_rate)
    points = 1 << (length - 1).bit_length()
    filters = mel_filters(config, sampling_rate, points, warp).to(wave.device)
    window = povey_window(length).to(wave.device)
    if len(wave) < length:
        return wave.new_zeros((0, config.num_bins), dtype=torch.float32)
    # A large constant would take digits from the rest; the bound is for samples that are out of all bounds.
    constant = float(wave.mean().clamp(-1.0, 1.0)) * INT16_SCALE
    total = config.num_frames(len(wave), sampling_rate)
    energies = wave.new_empty((total, config.num_bins), dtype=torch.float32)
    space = _workspace(length, shift, points, wave.device)
    for first in range(0, total, _FRAMES_AT_ONCE):
        frames = min(_FRAMES_AT_ONCE, total - first)
        samples = wave[first * shift : (first + frames - 1) * shift + length]
        _energies(samples, constant, config.preemphasis, window, filters, space, energies[first : first + frames])
    return energies.clamp_min_(LOG_FLOOR).log_()


@dataclass(frozen=True, eq=False)
class _Space:
    """Memory for a block of frames, used again and again: fresh pages for every block cost more than the transform."""

    shift: int
    signal: torch.Tensor  # (samples of a block,)
    emphasised: torch.Tensor  # the same
    padded: torch.Tensor  # (T, P), zeros behind L
    spectrum: torch.Tensor  # (T, P/2 + 1)
    power: torch.Tensor  # (T, P/2)


@lru_cache(maxsize=8)
def _workspace(length: int, shift: int, points: int, device: torch.device) -> _Space:
    """Return the workspace of a kind of frames; not for several threads at once."""
    block, samples = _FRAMES_AT_ONCE, (_FRAMES_AT_ONCE - 1) * shift + length
    return _Space(
        shift,
        torch.zeros(samples, device=device),
        torch.zeros(samples, device=device),
        torch.zeros((block, points), device=device),
        torch.empty((block, points // 2 + 1), dtype=torch.complex64, device=device),
        torch.empty((block, points // 2), device=device),
    )


def _energies(
    samples: torch.Tensor,
    constant: float,
    preemphasis: float,
    window: torch.Tensor,
    filters: torch.Tensor,
    space: _Space,
    out: torch.Tensor,
) -> None:
    """Write log mel energies of the frames of `samples`, less a constant, to `out` (T, F); window (L,), filters (P/2,
    F)."""
    total, length = len(samples), len(window)
    some = slice(0, len(out))
    signal, emphasised = space.signal[:total], space.emphasised[:total]
    torch.mul(samples, INT16_SCALE, out=signal).sub_(constant)
    # Pre-emphasis of the whole block, not of every frame with its overlap. It differs for the first sample of a frame,
    # where the window is zero, and the mean of the frame, taken off before, comes through it 1 - preemphasis times.
    torch.sub(signal[1:], signal[:-1], alpha=preemphasis, out=emphasised[1:])
    offsets = signal.unfold(0, length, space.shift).mean(1, keepdim=True) * (1 - preemphasis)
    frames = emphasised.unfold(0, length, space.shift)
    torch.sub(frames, offsets, out=space.padded[some, :length]).mul_(window)
    torch.fft.rfft(space.padded[some], out=space.spectrum[some])
    # The last point, half the sampling rate, is in no filter.
    parts = torch.view_as_real(space.spectrum[some, :-1])
    torch.mul(parts[..., 0], parts[..., 0], out=space.power[some]).addcmul_(parts[..., 1], parts[..., 1])
    torch.mm(space.power[some], filters, out=out)


@lru_cache(maxsize=8)
def povey_window(length: int) -> torch.Tensor:
    """Return Kaldi's povey window (L,): a Hann window to the power 0.85, zero at both ends."""
    phase = torch.arange(length, dtype=torch.float64) * (2 * math.pi / (length - 1))
    return (0.5 - 0.5 * torch.cos(phase)).pow(0.85).float()


def band_centres(config: FbankConfig, sampling_rate: int) -> NDArray[np.float64]:
    """Return the frequencies (F,) of the bands' centres, in Hz."""
    nyquist = sampling_rate / 2
    high = config.high_freq if config.high_freq > 0 else nyquist + config.high_freq
    low, top = np.log1p(np.array([config.low_freq, high]) / 700.0)
    found: NDArray[np.float64] = 700.0 * np.expm1(np.linspace(low, top, config.num_bins + 2)[1:-1])
    return found


@lru_cache(maxsize=8)
def mel_filters(config: FbankConfig, sampling_rate: int, points: int, warp: float = 1.0) -> torch.Tensor:
    """Return the filters (P/2, F): triangles on the mel scale, 1 at their centres.

    Raises:
        UserError: the band edges are out of order or leave no room for the warp, or a filter is so narrow that it holds
            no point of the spectrum.
    """
    nyquist = sampling_rate / 2
    low, high = config.low_freq, config.high_freq if config.high_freq > 0 else nyquist + config.high_freq
    if config.num_bins < 1 or not 0 <= low < high <= nyquist:
        raise UserError(
            f"{config.num_bins} mel bands from {low:g} to {high:g} Hz do not fit audio sampled at {sampling_rate} Hz: "
            f"low_freq must lie below high_freq, and that not above {nyquist:g}."
        )

    def mel(hertz: torch.Tensor) -> torch.Tensor:
        return 1127.0 * torch.log1p(hertz / 700.0)

    edges = mel(torch.tensor([low, high], dtype=torch.float64))
    corners = torch.linspace(float(edges[0]), float(edges[1]), config.num_bins + 2, dtype=torch.float64)
    if warp != 1:
        hertz = 700.0 * np.expm1(corners.numpy() / 1127.0)
        corners = mel(torch.from_numpy(warped_frequencies(hertz, low, high, nyquist, warp)))
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    at = mel(torch.arange(points // 2, dtype=torch.float64) * (sampling_rate / points))[:, None]
    filters = torch.minimum((at - left) / (centre - left), (right - at) / (right - centre)).clamp_min(0.0)
    empty = (filters.sum(0) == 0).nonzero().flatten().tolist()
    if empty:
        raise UserError(
            f"{config.num_bins} mel bands from {low:g} to {high:g} Hz are too narrow at {sampling_rate} Hz: band "
            f"{empty[0]} holds no point of the spectrum. Use fewer bands (num_bins) or longer frames (frame_length_ms)."
        )
    return filters.float()


def warped_frequencies(
    hertz: NDArray[np.float64], low: float, high: float, nyquist: float, warp: float
) -> NDArray[np.float64]:
    """Return frequencies, any shape, between `low` and `high` (Hz), moved to f / warp, with straight lines to both
    ends.

    Raises:
        UserError: the range is too narrow for that.
    """
    first, last = VTLN_LOW * max(1.0, warp), (nyquist + VTLN_HIGH) * min(1.0, warp)
    bends = np.array([low, first, last, high])
    moved = np.array([low, first / warp, last / warp, high])
    if (np.diff(bends) <= 0).any() or (np.diff(moved) <= 0).any():
        raise UserError(
            f"A warp of {warp:g} bends at {first:g} and {last:g} Hz: low_freq ({low:g} Hz) must lie below the first, "
            f"high_freq ({high:g} Hz) above the second. Choose a wider range, or a warp nearer to 1."
        )
    found: NDArray[np.float64] = np.interp(hertz, bends, moved)
    return found
