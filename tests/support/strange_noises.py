"""Sounds that no model was shown at packing: other kinds than those of `roundelay_speech.audio.noises`."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from roundelay.core.streams import stream
from roundelay_speech.audio.noises import band, bursts, coloured, slowly

Float64 = npt.NDArray[np.float64]
Samples = npt.NDArray[np.float32]
Rng = np.random.Generator


def _plucked(rng: Rng, time: Float64, rate: int) -> Float64:
    """Strings (Karplus-Strong), note after note."""
    result, at = np.zeros(len(time)), 0.0
    while at < len(time) / rate:
        period = round(rate / (82 * 2 ** (rng.integers(0, 36) / 12)))
        ring = rng.standard_normal(period)
        length = min(round(rng.uniform(0.5, 2) * rate), len(time) - int(at * rate))
        out = np.zeros(length)
        for first in range(0, length, period):
            out[first : first + period] = ring[: length - first]
            ring = 0.498 * (ring + np.roll(ring, 1))
        result[int(at * rate) : int(at * rate) + length] += out
        at += rng.choice([0.15, 0.25, 0.5, 1.0])
    return result


def _drums(rng: Rng, time: Float64, rate: int) -> Float64:
    result, beat = np.zeros(len(time)), rng.uniform(0.12, 0.3)
    for number, at in enumerate(np.arange(0, len(time) / rate, beat)):
        part = slice(int(at * rate), int((at + 0.3) * rate))
        own = time[part] - at
        if number % 4 == 0:
            result[part] += np.sin(2 * np.pi * (50 * own + 6 * (1 - np.exp(-own / 0.03)))) * np.exp(-own / 0.1)
        if number % 4 == 2:
            result[part] += 0.7 * rng.standard_normal(len(own)) * np.exp(-own / 0.07)
        result[part] += 0.2 * np.diff(rng.standard_normal(len(own) + 1)) * np.exp(-own / 0.02)
    return result


def _siren(rng: Rng, time: Float64, rate: int) -> Float64:
    hertz = 700 + 350 * np.sin(2 * np.pi * rng.uniform(0.15, 3) * time)
    phase = 2 * np.pi * np.cumsum(hertz) / rate
    heard: Float64 = np.tanh(2 * np.sin(phase)) + 0.01 * rng.standard_normal(len(time))
    return heard


def _rain(rng: Rng, time: Float64, rate: int) -> Float64:
    result = 0.05 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, 0.01, 0.0003, (0.0005, 0.003)):
        result[place] += envelope * np.sin(2 * np.pi * rng.uniform(0.1, 0.45) * rate * time[place])
    return result


def _wind(rng: Rng, time: Float64, rate: int) -> Float64:
    low = coloured(rng, len(time), rate, lambda f: np.maximum(f, 10.0) ** -1.5)
    howl = coloured(rng, len(time), rate, band(350, 500))
    howl *= 3 * low.std() / max(float(howl.std()), 1e-12)
    return low * (0.2 + slowly(rng, time, rate, 0.4)) + howl * slowly(rng, time, rate, 0.3) ** 2


def _engine(rng: Rng, time: Float64, rate: int) -> Float64:
    turns = 30 + 50 * slowly(rng, time, rate, 0.2)
    phase = np.cumsum(turns) / rate
    fired = np.exp(-8 * (phase % 1)) * rng.standard_normal(len(time))
    heard: Float64 = fired + 2 * np.exp(-6 * ((phase * 2) % 1)) - 0.3
    return heard


def _knocks(rng: Rng, time: Float64, rate: int) -> Float64:
    result = 0.001 * rng.standard_normal(len(time))
    for at in np.arange(0.3, len(time) / rate - 1, 2.0):
        for knock in range(int(rng.integers(2, 5))):
            part = slice(int((at + 0.2 * knock) * rate), int((at + 0.2 * knock + 0.15) * rate))
            own = time[part] - at - 0.2 * knock
            wood = [np.sin(2 * np.pi * hertz * own) for hertz in rng.uniform(90, 900, 4)]
            result[part] += np.sum(wood, 0) * np.exp(-own / 0.02)
    return result


def _birds(rng: Rng, time: Float64, rate: int) -> Float64:
    result = 0.003 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, 0.3, 0.01, (0.02, 0.08)):
        own = time[place] - time[place][0]
        hertz = rng.uniform(0.1, 0.3) * rate * (1 + 0.3 * np.sin(2 * np.pi * rng.uniform(5, 40) * own))
        result[place] += envelope * np.sin(2 * np.pi * np.cumsum(hertz) / rate)
    return result


def _bells(rng: Rng, time: Float64, rate: int) -> Float64:
    result = np.zeros(len(time))
    for place, envelope in bursts(rng, time, 0.6, 0.002, (0.2, 0.7)):
        own, pitch = time[place] - time[place][0], rng.uniform(200, 1500)
        result[place] += envelope * np.sin(2 * np.pi * pitch * own + 4 * envelope * np.sin(2.8 * np.pi * pitch * own))
    return result


def _snoring(rng: Rng, time: Float64, rate: int) -> Float64:
    period = rng.uniform(3, 5)
    rough = 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * 28 * time + 3 * slowly(rng, time, rate, 3)))
    throat = coloured(rng, len(time), rate, band(100, 600)) * rough
    sigh = coloured(rng, len(time), rate, band(600, 0.4 * rate))
    phase = (time / period) % 1
    return throat * np.exp(-(((phase - 0.25) / 0.1) ** 2)) + 0.2 * sigh * np.exp(-(((phase - 0.7) / 0.12) ** 2))


def _ringing(rng: Rng, time: Float64, rate: int) -> Float64:
    tone = np.sin(2 * np.pi * 440 * time) + np.sin(2 * np.pi * 480 * time)
    return tone * ((time % rng.uniform(1.5, 4)) < 1) + 0.001 * rng.standard_normal(len(time))


def _crackle(rng: Rng, time: Float64, rate: int) -> Float64:
    crack = rng.standard_normal(len(time)) * (rng.random(len(time)) < 0.001) * 20
    return coloured(rng, len(time), rate, lambda f: np.maximum(f, 50.0) ** -0.3) * 0.3 + crack


def _rustle(rng: Rng, time: Float64, rate: int) -> Float64:
    high = coloured(rng, len(time), rate, band(0.12 * rate, 0.45 * rate))
    return high * slowly(rng, time, rate, 12) ** 3 * slowly(rng, time, rate, 0.5) ** 2


def _purring(rng: Rng, time: Float64, rate: int) -> Float64:
    """A drone through resonances that do not move: a vowel that nobody speaks."""
    phase = np.cumsum(rng.uniform(90, 220) * (1 + 0.01 * slowly(rng, time, rate, 4))) / rate
    buzz = np.diff(np.floor(phase), prepend=0.0)
    shape = rng.uniform(300, 2600, 3)
    spectrum, hertz = np.fft.rfft(buzz), np.fft.rfftfreq(len(buzz), 1 / rate)
    response = np.sum([1 / (1 + ((hertz - centre) / 90) ** 2) for centre in shape], 0)
    drone: Float64 = np.fft.irfft(spectrum * response, len(buzz))
    return drone


def _sighs(rng: Rng, time: Float64, rate: int) -> Float64:
    """Breath in short puffs."""
    result = 0.002 * rng.standard_normal(len(time))
    for place, envelope in bursts(rng, time, 1.2, 0.15, (0.08, 0.3)):
        puff = coloured(rng, len(envelope), rate, band(rng.uniform(200, 900), rng.uniform(0.15, 0.4) * rate))
        result[place] += envelope * puff / max(float(puff.std()), 1e-12)
    return result


def _typing(rng: Rng, time: Float64, rate: int) -> Float64:
    result = 0.005 * coloured(rng, len(time), rate, lambda f: np.maximum(f, 20.0) ** -0.5)
    for at in np.cumsum(rng.gamma(2, 0.08, int(10 * len(time) / rate))):
        for after, loud in ((0.0, 1.0), (rng.uniform(0.05, 0.1), 0.5)):
            first = int((at + after) * rate)
            own = time[first : first + rate // 30] - at - after
            click = coloured(rng, len(own), rate, band(800, 0.4 * rate)) if len(own) > 1 else np.zeros(len(own))
            result[first : first + rate // 30] += loud * click * np.exp(-own / 0.006)
    return result


STRANGE: dict[str, Callable[[Rng, Float64, int], Float64]] = {
    name.removeprefix("_"): made
    for name, made in list(globals().items())
    if name.startswith("_") and not name.startswith("__") and callable(made)
}


def strange(kind: str, seconds: float, rate: int, seed: int, level: float = -20.0) -> Samples:
    """Return a sound of a kind of `STRANGE`; `level` is in dB of its loudest moments."""
    wave = STRANGE[kind](stream(seed, "strange", kind), np.arange(round(seconds * rate)) / rate, rate)
    most = max(float(np.quantile(np.abs(wave), 0.999)), 1e-9)
    return np.clip(wave * 10 ** (level / 20) / most, -1, 1).astype(np.float32)
