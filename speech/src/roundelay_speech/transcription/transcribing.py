"""Transcription of many recordings: read, cut, recognised, put together again; in the order given, one after the other.

Audio is normalised by speaker, and the speaker is not known: a recording (each channel of it) is taken for one speaker,
or all of a folder, or all recordings given.

A recording in pieces that are recognised one by one, in memory for twenty minutes of it, however long it is.

Pieces that are normalised together make a stretch: those of a recording, up to `STRETCH_SECONDS`. A stretch's
unfinished piece goes into the next.

Legend: N samples.
"""

import math
import resource
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay_speech.audio.activity import FRAMES_PER_SECOND, Activity, Cutting, cut
from roundelay_speech.audio.reading import AudioError, audio_shape
from roundelay_speech.audio.sound import Sound, one_channel, open_sound
from roundelay_speech.audio.speed import Resampler
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.problems import Unusable
from roundelay_speech.decode.alternatives import WORDS_ALONE, Alternatives, Wishes
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.transcription.inputs import Recording
from roundelay_speech.transcription.transcript import (
    UNADAPTED,
    UNSURE,
    ChannelTranscript,
    Segment,
    placed,
    without_confidences,
)

STRETCH_SECONDS = 1200.0
_SETTLED = 2 * FRAMES_PER_SECOND  # frames of silence after which a piece is over


@final
@dataclass(frozen=True, eq=False)
class CutPiece:
    """Samples (N,) that are recognised together, and where they begin in the recording (s)."""

    start: float
    samples: Samples


@final
class Stretches:
    """A cutter of one channel, which comes block by block, into stretches of pieces.

    Args:
        rate: sampling rate, Hz.
        cutting: options of cutting.
        seconds: approximate largest length of a stretch, which must exceed two pieces.
    """

    def __init__(self, rate: int, cutting: Cutting, seconds: float = STRETCH_SECONDS) -> None:
        self._rate, self._cutting = rate, cutting
        self._most = max(round(seconds * FRAMES_PER_SECOND), round(2 * cutting.longest * FRAMES_PER_SECOND) + _SETTLED)
        self._activity = Activity(rate, cutting.detector)
        self._samples: list[Samples] = []  # from the first frame on that is remembered
        self.samples = 0  # given so far

    def push(self, samples: Samples) -> Iterator[list[CutPiece]]:
        """Take the next samples (N,); yield the stretches that are complete now."""
        step = self._rate * 10  # a block may be longer than a stretch
        for begin in range(0, len(samples), step):
            block = samples[begin : begin + step]
            self.samples += len(block)
            self._samples.append(block)
            self._activity.push(block)
            if len(self._activity) >= self._most and (pieces := self._cut(last=False)):
                yield pieces

    def finish(self) -> list[CutPiece]:
        """Return the remaining pieces; a short recording with speech stays one piece."""
        short = self.samples <= min(self._cutting.whole, self._cutting.longest) * self._rate
        if self._activity.first > 0 or not short:
            return self._cut(last=True)
        return [CutPiece(0.0, self._held())] if self._activity.anybody() else []

    def _held(self) -> Samples:
        return np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)

    def _cut(self, *, last: bool) -> list[CutPiece]:
        samples, level, earlier = self._held(), self._activity.level, self._activity.first
        spans = cut(level, self._cutting, self._activity.spans())
        kept_from = len(level)
        if not last:
            # A piece that ends where the samples do may go on, and is cut anew.
            open_end = bool(spans) and spans[-1][1] > len(level) - _SETTLED
            kept_from = spans.pop()[0] if open_end else len(level) - _SETTLED
        begin = self._at(earlier)
        pieces = []
        for first, after in spans:
            # The last samples may be fewer than a frame.
            end = len(samples) if last and after == len(level) else self._at(earlier + after) - begin
            start = self._at(earlier + first)
            pieces.append(CutPiece(start / self._rate, samples[start - begin : end].copy()))
        self._samples = [samples[self._at(earlier + kept_from) - begin :].copy()]
        self._activity.forget(kept_from)
        return pieces

    def _at(self, frame: int) -> int:
        """Return the number of a frame's first sample."""
        return frame * self._rate // FRAMES_PER_SECOND


SpeakerIs = Literal["file", "folder", "all"]
_ALIKE = 0.03  # channels that differ by less than this share of their mean are one; coding alone makes 0.01


class SaidWords(Protocol):
    """The words of a piece, with times from its beginning, if any were asked for."""

    @property
    def words(self) -> Sequence[str]: ...
    @property
    def timed(self) -> Sequence[TimedWord]: ...
    @property
    def alternatives(self) -> Alternatives: ...
    @property
    def adapted(self) -> bool: ...


class Recogniser(Protocol):
    """A recogniser as transcription needs it, such as a packed model."""

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the samples to recognise, Hz."""

    def in_vocabulary(self, words: Iterable[str]) -> tuple[list[str], list[str]]:
        """Divide words into those that can be recognised, in the recogniser's spelling, and the others."""

    def recognise_many(
        self,
        recordings: Iterable[tuple[str, Sequence[Samples]]],
        workers: int = 0,
        *,
        times: bool = True,
        asked: Wishes = WORDS_ALONE,
    ) -> Iterator[tuple[str, Sequence[SaidWords]]]:
        """Yield the words of all pieces (N,) of each speaker, in order."""


@final
@dataclass(frozen=True)
class Options:
    """Options of transcribing.

    Attributes:
        channel: number from 1; 0 for the mean of all; None for each by itself (equal channels are one).
        speaker: recordings or channels that are normalised together as one speaker's.
        workers: number of processes; 0 for as many as there are cores, 1 for this process alone.
        most_seconds: a longer recording is refused.
        times: True for times and confidences of words, which take as long again as the search.
        asked: alternatives, and words to favour; `Model.in_vocabulary` finds them.
    """

    cutting: Cutting = Cutting()
    channel: int | None = None
    speaker: SpeakerIs = "file"
    workers: int = 1
    most_seconds: float = math.inf
    times: bool = True
    asked: Wishes = WORDS_ALONE


@final
@dataclass(frozen=True, repr=False)
class Finished:
    """The result for a recording: its transcripts by channel, or its fault; `note` has other remarks."""

    recording: Recording
    transcripts: tuple[ChannelTranscript, ...] = ()
    problem: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The words of all channels, a line each.

        Raises:
            UserError: there is a problem in place of words.
        """
        if self.problem:
            raise UserError(self.problem)
        return "\n".join(channel.text for channel in self.transcripts)

    def __repr__(self) -> str:
        if self.problem:
            return f"<{self.recording.source}: {self.problem}>"
        seconds = max((channel.seconds for channel in self.transcripts), default=0.0)
        return f"<{self.recording.source}, {seconds:.1f} s: {self.text}>"


@final
@dataclass(eq=False)
class _Underway:
    """A recording while it is read and recognised."""

    recording: Recording
    segments: dict[int, list[Segment]] = field(default_factory=dict)  # by channel from 1
    seconds: float = 0.0
    waiting: int = 0  # pieces that are not recognised yet
    read: bool = False
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    unsure: float = 0.0  # seconds whose words have no confidence
    unadapted: float = 0.0  # seconds of speakers of whom there is too little to adapt to

    def finished(self) -> Finished:
        if self.problem:
            return Finished(self.recording, problem=self.problem)
        name, several = self.recording.name, len(self.segments) > 1
        said = any(segment.words for segments in self.segments.values() for segment in segments)
        notes = [*self.notes, *["nothing was said"] * (not said)]
        if self.unsure:
            notes.append(f"{self.unsure:.1f} s of it {UNSURE}")
        if self.unadapted:
            notes.append(f"{self.unadapted:.1f} s of it {UNADAPTED}")
        return Finished(
            self.recording,
            tuple(
                ChannelTranscript(
                    f"{name}@{channel}" if several else name,
                    self.recording.source,
                    channel,
                    self.seconds,
                    tuple(sorted(segments, key=lambda segment: segment.start)),
                )
                for channel, segments in sorted(self.segments.items())
            ),
            note="; ".join(f"{self.recording.source}: {note}" for note in notes),
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """A piece, with the recording and channel that it belongs to."""

    of: _Underway
    channel: int
    piece: CutPiece


@final
class Transcriber:
    """A transcription of recordings by a model.

    Attributes:
        seconds: seconds of recognised audio, all channels together: pieces with speech.
        heard: seconds of audio from which the pieces were cut.
        processor_seconds: processor seconds of all processes; known at the end.
    """

    def __init__(self, model: Recogniser, options: Options = Options()) -> None:
        self._model, self._options = model, options
        self._underway: deque[_Underway] = deque()  # in the order given
        self.seconds = self.processor_seconds = self.heard = 0.0

    @property
    def real_time_factor(self) -> float:
        """Seconds of one core per second of audio."""
        return self.processor_seconds / max(self.heard, 1e-9)

    def run(self, recordings: Sequence[Recording], progress: Progress | None = None) -> Iterator[Finished]:
        """Transcribe recordings; yield the result of each as soon as it and all before it are done. One that cannot be
        used does not stop the others."""
        progress, begun = progress or Silent(), _processor_seconds()
        known = total_seconds(recordings)
        progress.start("transcribing", len(recordings) if known is None else round(known))
        if self._options.speaker == "folder":
            recordings = sorted(recordings, key=lambda recording: str(recording.path.parent))
        # Units are read ahead of their results; these come in the same order.
        sent: deque[list[_Part]] = deque()
        try:
            units, how = self._units(recordings, sent), self._options
            for _, found in self._model.recognise_many(units, workers=how.workers, times=how.times, asked=how.asked):
                before = self.seconds
                for part, said in zip(sent.popleft(), found, strict=True):
                    self._add(part, said)
                if known is not None:
                    progress.advance(int(self.seconds) - int(before))
                yield from self._ready(progress if known is None else None)
            yield from self._ready(progress if known is None else None)
        finally:
            self.processor_seconds = _processor_seconds() - begun
            progress.finish()

    def _add(self, part: _Part, said: SaidWords) -> None:
        seconds = len(part.piece.samples) / self._model.sample_rate
        start = part.piece.start
        segment = placed(said.words, said.timed, start, start + seconds, said.alternatives)
        part.of.segments[part.channel].append(segment)
        if without_confidences(said.timed):
            part.of.unsure += seconds
        if not said.adapted:
            part.of.unadapted += seconds
        part.of.waiting -= 1
        self.seconds += seconds

    def _ready(self, counted: Progress | None) -> Iterator[Finished]:
        while self._underway and self._underway[0].read and not self._underway[0].waiting:
            if counted is not None:
                counted.advance()
            yield self._underway.popleft().finished()

    def _units(
        self, recordings: Sequence[Recording], sent: deque[list[_Part]]
    ) -> Iterator[tuple[str, Sequence[Samples]]]:
        """Yield the samples of pieces that are normalised together, and append the pieces to `sent`."""
        for number, parts in enumerate(self._together(recordings)):
            sent.append(parts)
            yield str(number), [part.piece.samples for part in parts]

    def _together(self, recordings: Sequence[Recording]) -> Iterator[list[_Part]]:
        groups: dict[int, list[_Part]] = {}  # by channel, of one speaker
        alone, folder = self._options.speaker == "file", None
        for recording in recordings:
            here = _Underway(recording)
            self._underway.append(here)
            if self._options.speaker == "folder" and recording.path.parent != folder:
                yield from groups.values()
                groups, folder = {}, recording.path.parent
            for channel, pieces in self._read(here):
                parts = [_Part(here, channel, piece) for piece in pieces]
                here.waiting += len(parts)
                if alone:
                    yield parts
                    continue
                groups.setdefault(channel, []).extend(parts)
                if sum(len(p.piece.samples) for p in groups[channel]) > STRETCH_SECONDS * self._model.sample_rate:
                    yield groups.pop(channel)
        yield from groups.values()

    def _read(self, here: _Underway) -> Iterator[tuple[int, list[CutPiece]]]:
        """Yield the pieces of a recording, by channel from 1, a stretch at a time."""
        rate = self._model.sample_rate
        try:
            with open_sound(here.recording.path) as sound:
                if sound.rate < rate:
                    here.notes.append(
                        f"recorded at {sound.rate:,} Hz, where the model hears {rate:,}: nothing lies above "
                        f"{sound.rate // 2:,} Hz"
                    )
                cutters: dict[int, tuple[Resampler, Stretches]] = {}
                for block in self._chosen(sound):
                    for channel, samples in block.items():
                        if channel not in cutters:
                            cutters[channel] = Resampler(sound.rate, rate), Stretches(rate, self._options.cutting)
                            here.segments[channel] = []
                        resampler, stretches = cutters[channel]
                        for pieces in stretches.push(resampler.push(samples)):
                            yield channel, pieces
                for channel, (resampler, stretches) in cutters.items():
                    for pieces in (*stretches.push(resampler.finish()), stretches.finish()):
                        if pieces:
                            yield channel, pieces
                    here.seconds = stretches.samples / rate
                    self.heard += here.seconds
                here.notes += sound.remarks
        except AudioError as error:
            here.problem = str(error).replace(str(here.recording.path), here.recording.source)
        here.read = True

    def _chosen(self, sound: Sound) -> Iterator[dict[int, Samples]]:
        """Yield the samples of every block, by channel from 1, for the channels wanted."""
        wanted, alike = self._options.channel, None
        sound.check(wanted or 0)
        most, taken = self._options.most_seconds * sound.rate, 0
        for block in sound.blocks:
            taken += len(block)
            if max(taken, sound.samples or 0) > most:
                raise Unusable(f"lasts longer than {self._options.most_seconds:g} s, the most that is transcribed")
            if alike is None:
                alike = _alike(block)
            if wanted is not None:
                yield {wanted or 1: one_channel(block, wanted)}
            else:
                yield {c: one_channel(block, c) for c in range(1, 2 if alike else sound.channels + 1)}


def total_seconds(recordings: Sequence[Recording]) -> float | None:
    """Return the length of all recordings, from their headers; None if one has no length."""
    total = 0.0
    for recording in recordings:
        try:
            rate, samples, _ = audio_shape(recording.path)
        except AudioError:
            if recording.path.is_file() and recording.path.stat().st_size:
                return None  # of a kind that only ffmpeg reads, or damaged
            continue
        total += samples / rate
    return total


def _alike(block: Samples) -> bool:
    """Return True if all channels of a block (N, C) hold the same sound; False for silence, which tells nothing."""
    mean = block.mean(1, keepdims=True)
    loud = float(np.sqrt(np.mean(np.square(mean))))
    return loud > 0 and float(np.sqrt(np.square(block - mean).mean(0).max())) <= _ALIKE * loud


def _processor_seconds() -> float:
    """Return the processor seconds of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
