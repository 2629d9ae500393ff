"""Copies of training utterances with the sound of other rooms, noises and telephones: more training data from the same
recordings, for models that are to bear conditions that the recordings lack.

Each original has one copy, of the kinds in turn, `noise-ID` of `noise-SPEAKER`. The open values of a kind are drawn by
the utterance's id, so that a copy is the same whenever it is read.

    noise       noise whose spectrum falls by 0 (white) to 6 dB an octave, 5 to 25 dB below the speech
    telephone   a band from 0 to 300 Hz up to 3,400 to 4,000 Hz, at a rate of 8 kHz, each sample in the eight bits of
                G.711's mu-law
    room        a room whose sound has fallen by 60 dB after 0.2 to 0.7 s: noise that decays, behind the sound itself
    level       a gain of -30 to 0 dB

Legend: N samples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.audio.speed import resampled
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.manifest import DISTORTIONS, Utterance

Wave = npt.NDArray[np.floating]
_TELEPHONE: Final = 8000
_LOW, _HIGH = (0.0, 300.0), (3400.0, 4000.0)
_MU: Final = 255.0
_SEED: Final = 0


def with_distortions(utterances: Sequence[Utterance], kinds: Sequence[str]) -> list[Utterance]:
    """Return the utterances, then a distorted copy of each original; the kinds take turns.

    Raises:
        UserError: a kind is unknown, or given twice.
    """
    if odd := [k for k in kinds if k not in DISTORTIONS] or [k for k in kinds if kinds.count(k) > 1]:
        raise UserError(f"distortion {odd[0]!r}: give some of {', '.join(DISTORTIONS)}, each once.")
    originals = [u for u in utterances if not u.copied] if kinds else []
    copies = []
    for number, u in enumerate(originals):
        kind = kinds[number % len(kinds)]
        copies.append(dataclasses.replace(u, id=f"{kind}-{u.id}", speaker=f"{kind}-{u.speaker}", distortion=kind))
    return [*utterances, *copies]


def distorted(samples: Samples, rate: int, utterance: Utterance) -> Samples:
    """Distort samples (N,) at `rate` Hz by the utterance's kind of distortion: (N,)."""
    if not utterance.distortion or not len(samples):
        return samples
    drawn = stream(_SEED, "distortion", utterance.id)
    result: Samples = _KINDS[utterance.distortion](samples, rate, drawn).astype(np.float32)
    loudest = float(np.abs(result).max())
    return result / loudest if loudest > 1 else result


def _noise(samples: Samples, rate: int, drawn: np.random.Generator) -> Wave:
    slope, ratio = drawn.uniform(0.0, 1.0), drawn.uniform(5.0, 25.0)  # of amplitude over frequency; dB
    spectrum = np.fft.rfft(drawn.standard_normal(len(samples)))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** slope
    noise = np.fft.irfft(spectrum, len(samples))
    return samples + noise * (_loudness(samples) / max(_loudness(noise), 1e-12) * 10 ** (-ratio / 20))


def _telephone(samples: Samples, rate: int, drawn: np.random.Generator) -> Samples:
    at_8k = resampled(samples, rate, _TELEPHONE)
    spectrum = np.fft.rfft(at_8k)
    frequency = np.fft.rfftfreq(len(at_8k), 1 / _TELEPHONE)
    spectrum[(frequency < drawn.uniform(*_LOW)) | (frequency > drawn.uniform(*_HIGH))] = 0
    wave = np.fft.irfft(spectrum, len(at_8k))
    scale = max(float(np.abs(wave).max()), 1e-12)
    pressed = np.sign(wave) * np.log1p(_MU * np.abs(wave) / scale) / np.log1p(_MU)
    coded = np.round(pressed * 127) / 127
    back = (scale * np.sign(coded) * np.expm1(np.abs(coded) * np.log1p(_MU)) / _MU).astype(np.float32)
    return _as_long(resampled(back, _TELEPHONE, rate), len(samples))


def _room(samples: Samples, rate: int, drawn: np.random.Generator) -> Wave:
    falls, behind = drawn.uniform(0.2, 0.7), drawn.uniform(-6.0, 3.0)  # s until -60 dB; dB of all echoes
    count = max(1, int(falls * rate))
    tail = drawn.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail *= 10 ** (behind / 20) / np.sqrt(np.sum(tail**2))
    size = len(samples) + count
    echoes = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)
    return samples + echoes[: len(samples)]


def _level(samples: Samples, rate: int, drawn: np.random.Generator) -> Samples:
    return samples * np.float32(10 ** (drawn.uniform(-30.0, 0.0) / 20))


_KINDS: Final[Mapping[str, Callable[[Samples, int, np.random.Generator], Wave]]] = {
    "noise": _noise,
    "telephone": _telephone,
    "room": _room,
    "level": _level,
}


def _loudness(samples: Wave) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def _as_long(samples: Samples, count: int) -> Samples:
    """Return samples cut or padded to `count`: rounding may have made them one longer or shorter."""
    return samples[:count] if len(samples) >= count else np.pad(samples, (0, count - len(samples)))
