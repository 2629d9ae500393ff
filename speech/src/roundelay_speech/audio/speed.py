"""Speech played slower and faster, more training data from the same recordings (Ko et al. 2015, "Audio augmentation");
and speech at another sampling rate, which is the same arithmetic.

A copy at speed s lasts 1 / s as long and sounds s times as high: it is the same signal, read at s times the rate. It is
an utterance of its own, `sp0.9-ID`, of a speaker of its own, `sp0.9-SPEAKER`, as Kaldi names them.

Legend: N samples, M samples of the result, K taps, Q results of one period.
"""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from roundelay.core.errors import UserError
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.manifest import Utterance

_ZEROS = 24  # zero crossings of the interpolating kernel on each side
_CUTOFF = 0.95  # of the highest frequency that both signals have
_KAISER = 9.0  # the side lobes are 90 dB down
_FINEST = 1000  # speeds are fractions with a denominator up to this
_NONE: Samples = np.zeros(0, np.float32)
_FINEST_STEP = 2000  # and their products with a ratio of sampling rates up to this: less than 1e-6 off


def perturbed(utterances: Sequence[Utterance], speeds: Sequence[float]) -> list[Utterance]:
    """Return the utterances, then their copies at each speed but 1.

    Raises:
        UserError: a speed is not between 0.5 and 2, or is given twice.
    """
    if odd := [speed for speed in speeds if not 0.5 <= speed <= 2] or [s for s in speeds if speeds.count(s) > 1]:
        raise UserError(f"speed {odd[0]:g}: give speeds from 0.5 to 2, each once, for example 0.9 and 1.1.")
    copies = [
        dataclasses.replace(u, id=f"sp{speed:g}-{u.id}", speaker=f"sp{speed:g}-{u.speaker}", speed=speed)
        for speed in speeds
        if speed != 1
        for u in utterances
        if not u.copied
    ]
    return [*utterances, *copies]


def resampled(samples: Samples, rate: int, wanted: int, speed: float = 1.0) -> Samples:
    """Resample samples (N,) from `rate` Hz to `wanted` Hz, played at `speed`: (M,), M = N wanted / (rate speed),
    rounded. Frequencies above 0.95 of half the lower rate are filtered out.

    Band-limited interpolation: y(m) = sum_n x(n) h(m s - n), h a sinc under a Kaiser window, low enough that nothing
    folds back. With s = P / Q in lowest terms, Q results in a row need the same weights as the next Q, P samples on:
    all are one matrix product.
    """
    step = Fraction(speed).limit_denominator(_FINEST) * Fraction(rate, wanted)
    step = step.limit_denominator(_FINEST_STEP)
    if step == 1 or not len(samples):
        return samples
    return Resampler(step.numerator, step.denominator).finish(samples)


class Resampler:
    """A resampler of samples that come block by block: the result of `resampled`, to rounding, in memory for one block.

    Args:
        rate: sampling rate of the input, Hz.
        wanted: sampling rate of the output, Hz.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        self._step = Fraction(rate, wanted).limit_denominator(_FINEST_STEP)
        self._weights, reach = _weights(self._step.numerator, self._step.denominator)
        self._waiting: Samples = np.zeros(reach, np.float32)  # from the first tap of the next period on
        self._given = self._made = 0

    def push(self, samples: Samples) -> Samples:
        """Take further samples; return the output samples (M,) that are complete now and were not before."""
        if self._step == 1:
            return samples
        self._given += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        periods = (len(self._waiting) - len(self._weights)) // self._step.numerator + 1
        return self._periods(max(0, periods))

    def finish(self, samples: Samples = _NONE) -> Samples:
        """Take the last samples; return all remaining output samples."""
        self._given += len(samples)
        wanted = 0 if self._step == 1 or not self._given else max(1, round(self._given / self._step)) - self._made
        periods = -(-max(0, wanted) // self._step.denominator)
        lacking = (periods - 1) * self._step.numerator + len(self._weights) - len(self._waiting) - len(samples)
        self._waiting = np.concatenate([self._waiting, samples, np.zeros(max(0, lacking), np.float32)])
        return self._periods(periods)[: max(0, wanted)]

    def _periods(self, periods: int) -> Samples:
        if not periods:
            return _NONE
        windows = np.lib.stride_tricks.sliding_window_view(self._waiting, len(self._weights))
        result: Samples = (windows[:: self._step.numerator][:periods] @ self._weights).reshape(-1)
        self._waiting = self._waiting[periods * self._step.numerator :]
        self._made += len(result)
        return result


@lru_cache(maxsize=8)
def _weights(numerator: int, denominator: int) -> tuple[Samples, int]:
    """Return the weights (K, Q) of the samples around a period's first in each of its Q results, and the number of
    samples before the first at which they begin."""
    cutoff = _CUTOFF * min(1.0, denominator / numerator)  # of half the sampling rate
    reach = int(np.ceil(_ZEROS / cutoff))
    at = np.arange(denominator) * (numerator / denominator)
    taps = int(np.floor(at[-1])) + 2 * reach + 1
    distance = np.arange(taps)[:, None] - reach - at[None, :]
    inside = np.clip(1 - (distance * cutoff / _ZEROS) ** 2, 0.0, None)
    window = np.where(inside > 0, np.i0(_KAISER * np.sqrt(inside)) / np.i0(_KAISER), 0.0)
    kernel = cutoff * np.sinc(cutoff * distance) * window
    return (kernel / kernel.sum(0)).astype(np.float32), reach
