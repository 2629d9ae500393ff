"""Speech and silence, from the energy of the signal: where a long recording can be cut without cutting a word.

Per 10 ms: the energy of the signal after pre-emphasis, which takes hum and offset away, smoothed over 50 ms, in dB.
The noise floor of a moment is the energy that a tenth of the frames around it (10 s to each side) stay below, and its
level of speech that which a twentieth are above: both follow a recording whose noise or talker changes. Speech begins
above a threshold between the two and ends below a lower one (hysteresis). A silence is a pause when it is longer than
the closure of a stop; around every stretch of speech some silence stays with it (hangover), so that weak beginnings
and ends of words do.

Legend: N samples, T frames of 10 ms.

Chances of speech by a network that was trained on thousands of hours in many languages: Silero VAD (MIT licence),
as its package carries it, evaluated by onnxruntime.

It hears windows of 32 ms and remembers those before. Its chances are spread over frames of 10 ms.

Legend: N samples, T frames.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from roundelay.core.extras import load, need
from roundelay_speech.audio.speed import Resampler
from roundelay_speech.data.arrays import Samples

_WHO = "--detector silero"
_WINDOWS, _CONTEXT = {8000: 256, 16000: 512}, {8000: 32, 16000: 64}  # samples, by sampling rate


def _session() -> Any:
    """Load the network of Silero. Raises UserError: its package is not installed."""
    need("detector", _WHO)
    runtime = load("onnxruntime", "detector", _WHO)
    spec = importlib.util.find_spec("silero_vad")  # its code would load torch's audio as well
    assert spec is not None
    assert spec.origin is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    file = Path(spec.origin).parent / "data" / "silero_vad.onnx"
    return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


@final
class Silero:
    """Silero's chances of speech in a signal that comes block by block. `rate`: sampling rate in Hz; other rates than 8
    and 16 kHz are brought to 16. Raises UserError: the package is not installed."""

    def __init__(self, rate: int) -> None:
        self._network = _session()
        self._resampler = None if rate in _WINDOWS else Resampler(rate, 16000)
        self._rate = rate if rate in _WINDOWS else 16000
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, _CONTEXT[self._rate]), np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._chances: list[float] = []  # by window, from `_first` on
        self._first = 0

    def push(self, samples: Samples) -> None:
        """Take the next samples (N,) of the signal."""
        samples = samples if self._resampler is None else self._resampler.push(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        size = _WINDOWS[self._rate]
        for first in range(0, len(self._waiting) - size + 1, size):
            window = np.concatenate([self._context, self._waiting[None, first : first + size]], axis=1)
            given = {"input": window, "state": self._state, "sr": np.array(self._rate, np.int64)}
            chance, self._state = self._network.run(None, given)
            self._context = window[:, -self._context.shape[1] :]
            self._chances.append(float(chance[0, 0]))
        self._waiting = self._waiting[len(self._waiting) // size * size :]

    def frames(self, first: int, end: int) -> Samples:
        """Return the chances (T,) of frames `first` to `end`; frames beyond the last full window get its chance."""
        if not self._chances:
            return np.zeros(end - first, np.float32)
        window = self._window(np.arange(first, end)) - self._first
        found: Samples = np.array(self._chances, np.float32)[np.minimum(window, len(self._chances) - 1)]
        return found

    def forget(self, before: int) -> None:
        """Drop the chances of frames before `before`, but keep the last window."""
        window = int(self._window(np.array([before]))[0])
        drop = min(window - self._first, len(self._chances) - 1)
        if drop > 0:
            self._chances, self._first = self._chances[drop:], self._first + drop

    def _window(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the windows in which frames begin."""
        return frames * self._rate // (FRAMES_PER_SECOND * _WINDOWS[self._rate])


Decibels = npt.NDArray[np.float32]
Detector = Literal["energy", "silero"]
Span = tuple[int, int]
"""First frame, and the frame after the last."""

FRAMES_PER_SECOND = 100
QUIETEST, LEAST_RANGE = -85.0, 6.0
"""Level in dB that digital silence gets, and range in dB between loud and quiet below which a recording has no speech.
"""
_PREEMPHASIS = 0.97
_SMOOTH = 5  # frames
_AROUND = 10  # s on each side whose frames tell noise from speech
_FLOOR, _SPEECH = 0.10, 0.95
_ON, _OFF = 0.35, 0.22  # of the way from floor to speech
_ON_DB, _OFF_DB = 7.0, 4.0  # and at least so much above the floor
_BURST = 5  # frames: a shorter sound, a click, is no speech
_LIKELY, _UNLIKELY = 0.5, 0.35  # chances above which speech begins, and below which it ends
_CLOSURE = 15  # frames: silence up to this is inside a word
_SHORT = 10 * FRAMES_PER_SECOND
"""Most frames of a recording that may be speech without any silence."""
_WHITE = 1.3 * 80
"""Range in dB, times the root of the sampling rate: a short recording that varies by less, from floor to speech, is
steady noise. White noise varies by 80: frames of n samples have energies with a spread of 4.3 sqrt(2 / n) dB, before
smoothing."""


@dataclass(frozen=True)
class Cutting:
    """Options of cutting a recording into pieces.

    Attributes:
        longest: no piece is longer (s).
        pause: a silence of at least this parts two pieces (s).
        margin: silence that stays with a piece on each side (s).
        whole: a recording that is not longer (s) is one piece, as it is, if it has speech.
        detector: tells speech from silence: `energy`, or a network, `silero` (silero.py).
    """

    longest: float = 40.0
    pause: float = 0.5
    margin: float = 0.25
    whole: float = 10.0
    detector: Detector = "energy"


@final
class Activity:
    """A detector of speech in a signal that comes block by block.

    Args:
        rate: sampling rate, Hz.
        detector: name of the method that tells speech from silence.

    Attributes:
        first: the first frame kept, counted from the beginning of the signal.

    Raises:
        UserError: the detector is not installed.
    """

    def __init__(self, rate: int, detector: Detector = "energy") -> None:
        self._rate, self._energies, self._rough = rate, Energies(rate), [np.zeros(0, np.float32)]
        self._silero = Silero(rate) if detector == "silero" else None
        self.first = 0

    def push(self, samples: Samples) -> None:
        """Take the next samples (N,) of the signal."""
        self._rough.append(self._energies.push(samples))
        if self._silero is not None:
            self._silero.push(samples)

    def __len__(self) -> int:
        """Return the number of frames kept."""
        return sum(map(len, self._rough))

    @property
    def level(self) -> Decibels:
        """Smoothed energies (T,) of the frames kept."""
        self._rough = [np.concatenate(self._rough)]
        return smoothed(self._rough[0])

    def spans(self) -> list[Span]:
        """Return the stretches of speech in the frames kept, without margins."""
        if self._silero is None:
            return speech_spans(self.level)
        chances = self._silero.frames(self.first, self.first + len(self))
        return _standing_out(chances >= _UNLIKELY, chances >= _LIKELY)

    def anybody(self) -> bool:
        """Return False if there can be no speech in the frames kept.

        Speech that was cut out closely has no silence to be told from: a short recording only has to vary as no steady
        noise does, and its words are told from noise later.
        """
        if self._silero is not None or len(self) > _SHORT:
            return bool(self.spans())
        if not len(self):
            return False
        floor, speech = np.quantile(self.level, [_FLOOR, _SPEECH])
        return bool(speech - floor >= _WHITE / self._rate**0.5)

    def forget(self, frames: int) -> None:
        """Drop the first `frames` frames."""
        self._rough = [np.concatenate(self._rough)[frames:].copy()]
        self.first += frames
        if self._silero is not None:
            self._silero.forget(self.first)


class Energies:
    """Computes the energies of a signal that comes block by block.

    Args:
        rate: sampling rate, Hz.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._frames = 0
        self._seen = 0  # samples before `_waiting`
        self._before = np.float32(0)
        self._waiting: Samples = np.zeros(0, np.float32)

    def push(self, samples: Samples) -> Decibels:
        """Return the energies (T,) in dB of the frames that end in the next samples (N,)."""
        if not len(samples):
            return np.zeros(0, np.float32)
        emphasised = samples - np.float32(_PREEMPHASIS) * np.append(self._before, samples[:-1])
        self._before = samples[-1]
        self._waiting = np.concatenate([self._waiting, np.square(emphasised)])
        whole = (self._seen + len(self._waiting)) * FRAMES_PER_SECOND // self._rate - self._frames
        if not whole:
            return np.zeros(0, np.float32)
        edges = np.arange(self._frames, self._frames + whole + 1) * self._rate // FRAMES_PER_SECOND - self._seen
        sums = np.add.reduceat(self._waiting[: edges[-1]], edges[:-1])
        self._frames += whole
        self._seen += int(edges[-1])
        self._waiting = self._waiting[edges[-1] :]
        floor = 10 ** (QUIETEST / 10)
        found: Decibels = (10 * np.log10(np.maximum(sums / np.diff(edges), floor))).astype(np.float32)
        return found


def smoothed(energies: Decibels) -> Decibels:
    """Smooth energies (T,): the mean over the frames around each."""
    if len(energies) < _SMOOTH:
        return energies
    padded = np.pad(energies, _SMOOTH // 2, mode="edge")
    result: Decibels = np.convolve(padded, np.full(_SMOOTH, 1 / _SMOOTH), "valid").astype(np.float32)
    return result


def thresholds(level: Decibels) -> tuple[float, float]:
    """Return the levels (dB) above which speech begins and below which it ends, by the frames (T,) of a recording;
    infinite if nothing stands out of the noise."""
    floor, speech = np.quantile(level, [_FLOOR, _SPEECH])
    if speech - floor < LEAST_RANGE:
        return np.inf, np.inf
    return (
        float(floor + max(_ON_DB, _ON * (speech - floor))),
        float(floor + max(_OFF_DB, _OFF * (speech - floor))),
    )


def speech_spans(level: Decibels) -> list[Span]:
    """Return the stretches of speech in a recording's smoothed energies (T,), without margins, in order."""
    on, off = np.empty(len(level)), np.empty(len(level))
    for first in range(0, len(level), FRAMES_PER_SECOND):
        last = first + FRAMES_PER_SECOND
        around = level[max(0, first - _AROUND * FRAMES_PER_SECOND) : last + _AROUND * FRAMES_PER_SECOND]
        on[first:last], off[first:last] = thresholds(around)
    return _standing_out(level >= off, level >= on)


def _standing_out(possible: npt.NDArray[np.bool_], sure: npt.NDArray[np.bool_]) -> list[Span]:
    """Return stretches of speech: of frames (T,) that may be, around some that are, with closures, and no clicks."""
    spans = [span for span in _runs(possible) if sure[slice(*span)].any()]
    return [span for span in joined(spans, _CLOSURE) if span[1] - span[0] >= _BURST]


def cut(level: Decibels, how: Cutting, spans: Sequence[Span] | None = None) -> list[Span]:
    """Return pieces of a recording: all its speech, in order, none longer than `longest`; cuts lie in silence.

    A piece has the silence around it that `margin` says, so the part left out lies between two pauses.

    Where someone speaks on for longer, the cut is in the middle of the longest silence in the second half of `longest`
    seconds, or, without any, at its quietest place.

    Args:
        level: (T,) smoothed energies of all of it.
        spans: stretches of speech; None: found by energy.
    """
    spans = speech_spans(level) if spans is None else spans
    longest = max(2, round(how.longest * FRAMES_PER_SECOND))
    margin = round(how.margin * FRAMES_PER_SECOND)
    pieces = []
    for first, last in _with_margins(joined(spans, round(how.pause * FRAMES_PER_SECOND)), margin, len(level)):
        start = first
        while last - start > longest:
            place = quiet_place(level, spans, start + longest // 2, start + longest)
            pieces.append((start, place))
            start = place
        pieces.append((start, last))
    return pieces


def quiet_place(level: Decibels, spans: Sequence[Span], first: int, last: int) -> int:
    """Return the frame, from `first` to `last` (exclusive), before which a cut is best."""
    silences = [(max(a[1], first), min(b[0], last)) for a, b in pairwise(spans) if a[1] < last and b[0] > first]
    if widest := max((b - a for a, b in silences), default=0):
        return next((a + b) // 2 for a, b in silences if b - a == widest)
    around = np.convolve(np.pad(level[first:last], _SMOOTH, mode="edge"), np.ones(2 * _SMOOTH + 1), "valid")
    return first + int(around.argmin())


def _runs(mask: npt.NDArray[np.bool_]) -> list[Span]:
    """Return the stretches of frames for which `mask` is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def joined(spans: Sequence[Span], gap: int) -> list[Span]:
    """Join spans that lie less than `gap` frames apart."""
    result: list[Span] = []
    for first, last in spans:
        if result and first - result[-1][1] < gap:
            result[-1] = result[-1][0], last
        else:
            result.append((first, last))
    return result


def _with_margins(spans: Sequence[Span], margin: int, frames: int) -> list[Span]:
    """Extend spans by `margin` frames on both sides, or half-way to their neighbours."""
    if not spans:
        return []
    edges = [0, *((a[1] + b[0]) // 2 for a, b in pairwise(spans)), frames]
    return [
        (max(first - margin, left), min(last + margin, right))
        for (first, last), (left, right) in zip(spans, pairwise(edges), strict=True)
    ]
