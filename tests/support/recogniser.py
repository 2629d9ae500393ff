"""A recogniser that hears words of one tone each: enough to see where every sample went."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from roundelay.core.streams import stream
from roundelay_speech.audio.activity import Cutting
from roundelay_speech.decode.alternatives import NO_ALTERNATIVES, WORDS_ALONE, Alternatives, StringAlternative, Wishes
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.transcription.live import Update
from roundelay_speech.transcription.transcript import placed

Samples = npt.NDArray[np.float32]
TONES = {"LOW": 400, "MIDDLE": 900, "HIGH": 1600, "TOP": 2400}  # Hz
SECONDS = 0.6  # of a word


def tones(words: Sequence[str], rate: int, pause: float = 1.0) -> Samples:
    """Return samples of words, with `pause` seconds of quiet noise before each and one second behind the last."""
    time = np.arange(round(SECONDS * rate)) / rate
    shape = np.minimum(1, 10 * np.minimum(time, time[::-1]))
    gap = np.zeros(round(pause * rate))
    parts = [part for word in words for part in (gap, 0.2 * shape * np.sin(2 * np.pi * TONES[word] * time))]
    signal = np.concatenate([*parts, np.zeros(rate)])
    noisy: Samples = (signal + 0.0005 * stream(0, "noise").standard_normal(len(signal))).astype(np.float32)
    return noisy


def places(words: Sequence[str], pause: float = 1.0) -> list[float]:
    """Return the beginnings (s) of the words in the samples that `tones` makes."""
    return [number * (pause + SECONDS) + pause for number in range(len(words))]


@dataclass(frozen=True)
class Heard:
    """The words that were heard in a piece, with their times."""

    timed: tuple[TimedWord, ...]
    alternatives: Alternatives = NO_ALTERNATIVES
    adapted: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word.word for word in self.timed)


def heard(samples: Samples, rate: int) -> Heard:
    """Return the tones of a piece that are at least 50 ms long, with their times."""
    step = rate // 100
    loud = np.sqrt(np.mean(np.square(samples[: len(samples) // step * step].reshape(-1, step)), 1)) > 0.03
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int))).reshape(-1, 2)
    found = []
    for first, last in edges.tolist():
        if last - first >= 5:
            power = np.abs(np.fft.rfft(samples[first * step : last * step]))
            hertz = int(power.argmax()) * rate / ((last - first) * step)
            word = min(TONES, key=lambda name: abs(TONES[name] - hertz))
            found.append(TimedWord(word, first / 100, (last - first) / 100, 0.5))
    return Heard(tuple(found))


@dataclass
class ToneRecogniser:
    """A `Recogniser` of words of one tone each.

    Attributes:
        asked: lengths, in samples, of the pieces that were normalised together.
    """

    sample_rate: int = 8000
    asked: list[list[int]] = field(default_factory=list)

    def in_vocabulary(self, words: Iterable[str]) -> tuple[list[str], list[str]]:
        found = list(words)
        return [word.upper() for word in found if word.upper() in TONES], [w for w in found if w.upper() not in TONES]

    def recognise_many(
        self,
        recordings: Iterable[tuple[str, Sequence[Samples]]],
        workers: int = 0,
        *,
        times: bool = True,
        asked: Wishes = WORDS_ALONE,
    ) -> Iterator[tuple[str, list[Heard]]]:
        """Reads one group ahead, as worker processes do. An alternative of every piece is what was asked for."""
        told = (
            Alternatives((StringAlternative(asked.favoured, asked.bonus, 1.0),)) if asked.strings else NO_ALTERNATIVES
        )
        waiting: list[tuple[str, Sequence[Samples]]] = []
        for item in recordings:
            self.asked.append([len(samples) for samples in item[1]])
            waiting.append(item)
            if len(waiting) > 1:
                name, pieces = waiting.pop(0)
                yield name, [replace(heard(samples, self.sample_rate), alternatives=told) for samples in pieces]
        for name, pieces in waiting:
            yield name, [replace(heard(samples, self.sample_rate), alternatives=told) for samples in pieces]


class ToneListener:
    """A `Listening` that gives the words so far every tenth of a second, and final words once a pause follows."""

    def __init__(self, sample_rate: int = 8000, pause: float = 0.5) -> None:
        self.sample_rate, self._pause = sample_rate, pause
        self._samples: Samples = np.zeros(0, np.float32)  # of the utterance
        self._before = 0.0  # seconds that came before these

    def push(self, samples: Samples) -> Iterator[Update]:
        step = self.sample_rate // 10
        for at in range(0, len(samples), step):
            self._samples = np.concatenate([self._samples, samples[at : at + step]])
            yield from self._heard(self._pause)

    def finish(self) -> Iterator[Update]:
        yield from self._heard(pause=0.0)

    def _heard(self, pause: float) -> Iterator[Update]:
        words, seconds = heard(self._samples, self.sample_rate).timed, len(self._samples) / self.sample_rate
        if not words:
            return
        final = words[-1].start + words[-1].duration + pause <= seconds
        found = placed([word.word for word in words], words if final else (), self._before, self._before + seconds)
        if final:
            self._samples, self._before = self._samples[:0], self._before + seconds
        yield Update(self._before + seconds * (not final), self._before, found, final=final)


def listen(sample_rate: int) -> Callable[[bool, Cutting, Wishes], ToneListener]:
    """Return a factory of tone listeners for recordings at `sample_rate`, as a service has one."""
    return lambda so_far, cutting, asked: ToneListener(sample_rate, cutting.pause)
