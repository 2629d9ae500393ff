"""Sounds other than speech, made by kind: a model is shown them at packing, so that it knows how sure to be of words.

Each kind is a function of (random numbers, time (N,) in seconds, sampling rate), whose waveform is brought to a level
afterwards. They are meant to be many and unlike each other; none is a recording.

Legend: N samples.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float64, Samples

Noise = Callable[[np.random.Generator, Float64, int], Float64]

LEVELS = (-60.0, -10.0)
"""Levels in dB of a sound's loudest moments, from barely audible to full scale."""


STEADY = frozenset({"nothing", "white", "pink", "brown", "hum", "fan"})
"""Kinds of noise that are steady."""


def noise(kind: str, seconds: float, rate: int, seed: int) -> Samples:
    """Make a sound of a kind of `NOISES`, at a level drawn from `LEVELS`."""
    if not round(seconds * rate):
        return np.zeros(0, np.float32)
    rng = stream(seed, "noise", kind)
    time: Float64 = np.arange(round(seconds * rate)) / rate
    wave = NOISES[kind](rng, time, rate)
    most = np.quantile(np.abs(wave), 0.999) if len(wave) else 0.0
    level = 10 ** (rng.uniform(*LEVELS) / 20)
    scaled = np.clip(wave * (level / most if most > 0 else 0.0), -1, 1)
    found: Samples = scaled.astype(np.float32)
    return found


def coloured(rng: np.random.Generator, samples: int, rate: int, response: Callable[[Any], Any]) -> Float64:
    """Make noise whose amplitude at each frequency (Hz) is that of `response`."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    shaped: Float64 = np.fft.irfft(spectrum * response(np.fft.rfftfreq(samples, 1 / rate)), samples)
    return shaped


def band(low: float, high: float) -> Callable[[Float64], Float64]:
    """Make a response of one between two frequencies (Hz), with soft edges of half an octave."""

    def response(hertz: Float64) -> Float64:
        octave = np.log2(np.maximum(hertz, 1.0))
        inside = np.minimum(octave - np.log2(low), np.log2(high) - octave)
        found: Float64 = 1 / (1 + np.exp(-8 * inside))
        return found

    return response


def bursts(
    rng: np.random.Generator, time: Float64, every: float, attack: float, decay: tuple[float, float]
) -> list[tuple[slice, Float64]]:
    """Draw the places of sounds that come at random, one in `every` seconds on average, and their envelopes."""
    rate = round(1 / (time[1] - time[0])) if len(time) > 1 else 1
    found, at = [], rng.exponential(every)
    while at < len(time) / rate:
        fall = rng.uniform(*decay)
        first = int(at * rate)
        own = np.arange(min(len(time) - first, round((attack + 5 * fall) * rate))) / rate
        envelope = np.minimum(own / attack, 1.0) * np.exp(-np.maximum(own - attack, 0) / fall)
        found.append((slice(first, first + len(own)), rng.uniform(0.3, 1.0) * envelope))
        at += rng.exponential(every)
    return found


def slowly(rng: np.random.Generator, time: Float64, rate: int, hertz: float) -> Float64:
    """Make a curve between 0 and 1 that changes about `hertz` times a second."""
    if len(time) < 2:
        return np.zeros(len(time))
    low = coloured(rng, len(time), rate, lambda f: np.exp(-((f / hertz) ** 2)))
    moved: Float64 = 0.5 + 0.5 * np.tanh(low / max(float(low.std()), 1e-12))
    return moved


def _hum(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    base = rng.choice([50.0, 60.0]) * rng.uniform(0.995, 1.005)
    parts = [rng.exponential(1.0) / n * np.sin(2 * np.pi * (n * base * time + rng.random())) for n in range(1, 24)]
    hum: Float64 = np.sum(parts, 0) + 0.01 * rng.standard_normal(len(time))
    return hum


def _pulsing(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    pitch, pulse = rng.uniform(150, 2000), rng.uniform(0.5, 6)
    loud = np.clip(0.5 + rng.uniform(0.5, 3) * np.sin(2 * np.pi * pulse * time), 0, 1)
    tone: Float64 = np.sin(2 * np.pi * pitch * time) * loud
    return tone


def _chords(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make chords of three or four notes with overtones, one after the other."""
    result = np.zeros(len(time))
    length = rng.uniform(0.15, 1.2)
    for first in np.arange(0, len(time) / rate, length):
        part = slice(int(first * rate), int((first + length) * rate))
        own = time[part] - first
        root = 110 * 2 ** (rng.integers(0, 30) / 12)
        notes = root * 2 ** (np.array([0, rng.integers(3, 5), 7, 12])[: rng.integers(3, 5)] / 12)
        strength = rng.uniform(0.2, 0.8)
        tones = [strength**k * np.sin(2 * np.pi * (k + 1) * note * own) for note in notes for k in range(5)]
        result[part] = np.sum(tones, 0) * np.minimum(1, own / 0.01) * np.exp(-rng.uniform(0, 4) * own)
    return result


def _clicks(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    result = 0.002 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, rng.uniform(0.1, 1), 0.0005, (0.0005, 0.004)):
        result[place] += envelope * rng.standard_normal(len(envelope))
    return result


def _breath(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make breath in and out, each with a colour of its own."""
    period = rng.uniform(2, 5)
    phase = np.sin(2 * np.pi * (time / period + rng.random()))
    top = 0.45 * rate
    out = coloured(rng, len(time), rate, band(rng.uniform(150, 500), rng.uniform(0.3, 0.6) * top))
    into = coloured(rng, len(time), rate, band(rng.uniform(500, 1000), rng.uniform(0.5, 1.0) * top))
    both: Float64 = np.maximum(phase, 0) ** 2 * out + np.maximum(-phase, 0) ** 3 * rng.uniform(0.3, 1) * into
    return both


def _puffs(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make breath in puffs, each with a colour of its own."""
    result = 0.003 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, rng.uniform(0.5, 2), rng.uniform(0.02, 0.2), (0.04, 0.3)):
        low = rng.uniform(150, 1200)
        puff = coloured(rng, len(envelope), rate, band(low, min(low * rng.uniform(2, 10), 0.49 * rate)))
        result[place] += envelope * puff / max(float(puff.std()), 1e-12)
    return result


def _throat(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make air through a narrow throat that flutters, in and out."""
    flutter = 2 * np.pi * rng.uniform(15, 60) * (time + 0.05 * slowly(rng, time, rate, 3))
    rough = np.clip(0.5 + rng.uniform(0.5, 2) * np.sin(flutter), 0, 1)
    low = coloured(rng, len(time), rate, band(rng.uniform(60, 200), rng.uniform(400, 1200)))
    high = coloured(rng, len(time), rate, band(rng.uniform(500, 1000), rng.uniform(0.25, 0.45) * rate))
    phase = np.sin(2 * np.pi * (time / rng.uniform(2, 5) + rng.random()))
    drawn: Float64 = low * rough * np.maximum(phase, 0) ** 2
    drawn += rng.uniform(0.05, 0.5) * high * np.maximum(-phase, 0) ** 3
    return drawn


def _fan(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    turns, width = rng.uniform(15, 120), float(rng.uniform(300, 2000))
    air = coloured(rng, len(time), rate, lambda f: 1 / (1 + (f / width) ** 2))
    blades = [np.sin(2 * np.pi * n * turns * time) / n for n in range(1, 6)]
    blown: Float64 = air / max(float(air.std()), 1e-12) * (1 + 0.2 * blades[0])
    blown += rng.uniform(0, 2) * np.sum(blades, 0)
    return blown


def _keys(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make keys that are pressed and let go."""
    result = 0.003 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, rng.uniform(0.12, 0.5), 0.001, (0.004, 0.03)):
        tone = np.sin(2 * np.pi * rng.uniform(200, 3000) * time[place])
        result[place] += envelope * (rng.standard_normal(len(envelope)) + rng.uniform(0, 1) * tone)
    return result


def _thumps(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make steps and blows: low noise that dies away, with a tone in it or without."""
    result = 0.002 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, rng.uniform(0.3, 1), 0.003, (0.015, 0.1)):
        low = rng.uniform(40, 250)
        blow = coloured(rng, len(envelope), rate, band(low, low * rng.uniform(2, 10)))
        tone = np.sin(2 * np.pi * low * time[place])
        result[place] += envelope * (blow / max(float(blow.std()), 1e-12) + rng.uniform(0, 2) * tone)
    return result


def _dialling(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    low, high = np.array([697, 770, 852, 941]), np.array([1209, 1336, 1477, 1633])
    length, share = rng.uniform(0.1, 0.5), rng.uniform(0.4, 0.9)
    number = (time / length).astype(int)
    keys = rng.integers(0, 4, (2, int(number.max(initial=0)) + 1))
    tone = np.sin(2 * np.pi * low[keys[0]][number] * time) + np.sin(2 * np.pi * high[keys[1]][number] * time)
    dialled: Float64 = tone * (time / length - number < share) + 0.002 * rng.standard_normal(len(time))
    return dialled


def _gusts(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make noise of a band whose loudness comes and goes as often as syllables do, or more slowly."""
    low = rng.uniform(100, 0.15 * rate)
    noisy = coloured(rng, len(time), rate, band(low, min(low * rng.uniform(1.5, 8), 0.49 * rate)))
    moving: Float64 = noisy * slowly(rng, time, rate, rng.uniform(0.3, 6)) ** rng.uniform(1, 4)
    return moving


def _sweeps(rng: np.random.Generator, time: Float64, rate: int) -> Float64:
    """Make a buzz or whistle whose pitch and loudness wander."""
    low = rng.uniform(80, 800)
    hertz = low * 2 ** (rng.uniform(0.2, 2) * slowly(rng, time, rate, rng.uniform(0.3, 4)))
    phase = 2 * np.pi * np.cumsum(hertz) / rate
    parts = [rng.random() * np.sin(n * phase) for n in range(1, int(rng.integers(2, 12)))]
    sweep: Float64 = np.sum(parts, 0) * slowly(rng, time, rate, rng.uniform(0.3, 5)) ** rng.uniform(0.2, 3)
    return sweep


def _colour(power: float) -> Noise:
    """Return a kind of noise whose spectrum falls with this power of the frequency."""
    return lambda rng, time, rate: coloured(rng, len(time), rate, lambda f: np.maximum(f, 20.0) ** -power)


NOISES: Mapping[str, Noise] = {
    "nothing": lambda rng, time, rate: np.zeros(len(time)),
    "white": _colour(0),
    "pink": _colour(0.5),
    "brown": _colour(1),
    "hum": _hum,
    "pulsing": _pulsing,
    "chords": _chords,
    "clicks": _clicks,
    "breath": _breath,
    "puffs": _puffs,
    "throat": _throat,
    "fan": _fan,
    "keys": _keys,
    "thumps": _thumps,
    "dialling": _dialling,
    "gusts": _gusts,
    "sweeps": _sweeps,
}
