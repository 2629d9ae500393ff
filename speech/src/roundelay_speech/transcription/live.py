"""Recognition of live speech: words so far, and final ones when a pause follows.

An utterance begins where the detector hears speech and ends with a pause, or after `longest` seconds. While it lasts,
the words so far are found every `EVERY` seconds: by networks that need no end of an utterance (dnn, a conformer in
chunks) as the frames come, in one search that goes on. Each time the utterance has grown by a quarter, and when it
falls silent, they are found from its beginning, as if it were over; by other networks then alone. At its end it is
recognised once more as a whole, normalised by all that was said so far, itself included: these are the words that the
model gives for the same samples, recognised at once after the same utterances. A model with transforms of speakers
estimates them anew at the end of every utterance; words that are not final have the last one.

Legend: N samples, T frames.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np

from roundelay.runtime.base import wall_clock
from roundelay_speech.audio.activity import FRAMES_PER_SECOND, Activity, Cutting, Span, joined, quiet_place
from roundelay_speech.audio.sound import Sound, one_channel
from roundelay_speech.audio.speed import Resampler
from roundelay_speech.data.arrays import Samples
from roundelay_speech.data.problems import counted
from roundelay_speech.decode.alternatives import WORDS_ALONE, Wishes
from roundelay_speech.packed.growing import GrowingScores, in_chunks, whole_only
from roundelay_speech.packed.hearing import PieceFeatures, Statistics
from roundelay_speech.packed.model import Model
from roundelay_speech.search.beam import GrowingSearch
from roundelay_speech.transcription.transcript import UNADAPTED, UNSURE, Segment, placed, without_confidences

USUAL = Cutting()
EVERY = 0.2
"""Seconds of audio after which the words so far are searched again."""
_HISTORY = 20 * FRAMES_PER_SECOND  # frames behind that tell noise from speech
_UNHEARD = 3 * FRAMES_PER_SECOND  # frames kept in silence: speech is told from noise only after a while
_REMEMBERED = 300 * FRAMES_PER_SECOND  # frames of earlier utterances that normalise the next
_ADAPTED_TO = 30 * FRAMES_PER_SECOND  # the same where they are decoded again to adapt to the speaker
_GROWTH = 1.25  # by which an utterance grows before it is recognised from its beginning again


@final
@dataclass(frozen=True)
class Update:
    """An update during live speech: the words of a piece, final or not yet."""

    at: float  # how much audio had come (s); this waited for it
    spoken: float  # end of the speech in it (s); for words that are not final, `at`
    segment: Segment  # the words; those that are not final have no times of their own
    final: bool

    @property
    def latency(self) -> float:
        """Seconds of audio from the end of the speech to this update."""
        return self.at - self.spoken


class Listening(Protocol):
    """A recogniser of one speaker's speech, as it comes."""

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the samples to push, Hz."""

    def push(self, samples: Samples) -> Iterable[Update]:
        """Take the next samples (N,); return the updates that they cause."""

    def finish(self) -> Iterable[Update]:
        """End the stream; return the last updates."""


@final
@dataclass
class Latencies:
    """A measurement of a stream's latencies."""

    # audio from the end of the speech to the final words of every utterance (s).
    final: list[float] = field(default_factory=list)
    # computing_final, computing: time that final words, and words so far, took to be found (s).
    computing_final: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    unsure: int = 0  # utterances whose words have no confidence
    unadapted: int = 0  # utterances before there was enough of the speaker to adapt to

    def report(self) -> list[str]:
        """Return sentences on the latencies, for people."""
        if not self.final:
            return ["nothing was said."]
        lines = [
            f"{counted(len(self.final), 'utterance')}; words were final {np.mean(self.final):.2f} s of audio after "
            f"they were said, at most {max(self.final):.2f} s",
            f"computing them took {_mean_and_most(self.computing_final)}",
        ]
        if self.computing:
            lines[1] += f"; words so far, each time, {_mean_and_most(self.computing)}"
        if self.unsure:
            lines.append(f"{counted(self.unsure, 'utterance')} {UNSURE}")
        if self.unadapted:
            lines.append(f"{counted(self.unadapted, 'utterance')} {UNADAPTED}")
        return lines


def _mean_and_most(seconds: Sequence[float]) -> str:
    return f"{np.mean(seconds):.3f} s, at most {max(seconds):.3f} s"


def delays(model: Model, chunk: int | None = None) -> str:
    """Return a sentence on how far words are behind the audio, or why they do not come during it.

    Args:
        chunk: as for `Live`.

    Raises:
        UserError: a network was not trained for such chunks.
    """
    model = in_chunks(model, chunk)
    if needing := _whole_only(model):
        return (
            f"{needing} of the whole utterance: words so far are found from its beginning, each time it has grown by a "
            "quarter. A dnn, or a conformer with model.attention_chunk, finds them as the audio comes"
        )
    behind = GrowingScores(model, model.usual).delay
    return f"words so far are at most {behind:.2f} s of audio behind, and are shown every {EVERY:g} s"


def _whole_only(model: Model) -> str:
    """Return the beginning of a sentence, subject and verb, on parts of a model that need the end of an utterance; ""
    if none does."""
    if names := whole_only(model):
        return f"{' and '.join(names)} {'needs' if len(names) == 1 else 'need'} the end"
    return "rescoring needs the end" if model.packed.rescored else ""


@final
class Live:
    """A recogniser of one speaker's speech as it comes.

    Args:
        model: a packed model.
        cutting: options; `pause` ends an utterance.
        latencies: notes the latencies; None: not measured.
        so_far: True to find words that are not final, too.
        chunk: frames that a conformer with dynamic_chunks evaluates together for words that are not final; None: the
            model's own.
        asked: words to favour, and alternatives for final words.
    """

    def __init__(
        self,
        model: Model,
        cutting: Cutting = USUAL,
        latencies: Latencies | None = None,
        *,
        so_far: bool = True,
        chunk: int | None = None,
        asked: Wishes = WORDS_ALONE,
    ) -> None:
        self._latencies, self._so_far, self._asked = latencies or Latencies(), so_far, asked
        self._model, self._cutting, self._rate = model, cutting, model.sample_rate
        self._activity = Activity(self._rate, cutting.detector)
        self._held: Samples = np.zeros(0, np.float32)
        self._held_first = 0  # frame
        self._start: int | None = None  # frame in which the utterance begins
        self._waiting: Samples = np.zeros(0, np.float32)  # less than a step
        self._past: deque[PieceFeatures] = deque()
        self._known = model.usual  # statistics of the speaker, at the last utterance
        self._growing = _Growing(in_chunks(model, chunk), asked)

    def push(self, samples: Samples) -> Iterator[Update]:
        """Take the next samples (N,); yield the updates that they cause, whatever the cuts between pushes."""
        self._waiting = np.concatenate([self._waiting, samples])
        step = round(EVERY * self._rate)
        while len(self._waiting) >= step:
            block, self._waiting = self._waiting[:step], self._waiting[step:]
            self._take(block)
            yield from self._heard(last=False)

    def finish(self) -> Iterator[Update]:
        """End the stream; yield the last updates."""
        self._take(self._waiting)
        self._waiting = self._waiting[:0]
        yield from self._heard(last=True)

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the model, Hz."""
        return self._rate

    @property
    def _now(self) -> int:
        return self._activity.first + len(self._activity)

    def _take(self, block: Samples) -> None:
        self._held = np.concatenate([self._held, block])
        self._activity.push(block)

    def _heard(self, *, last: bool) -> Iterator[Update]:
        while True:
            spans = self._spans()
            if not spans and self._start is not None and self._now - self._start > _UNHEARD:
                self._start = None  # the seeming speech is noise, now that more of it is known
            if self._start is None:
                if not spans:
                    self._forget(self._now - _UNHEARD)
                    return
                self._start = max(self._held_first, spans[0][0] - self._frames(self._cutting.margin))
                self._growing.begin()
            if (ends := self._end(spans, last)) is None:
                if self._so_far:
                    yield self._partial(silent=not spans or spans[-1][1] < self._now)
                return
            yield self._final(*ends)

    def _spans(self) -> list[Span]:
        """Return the stretches of speech in the samples kept, in frames of the whole stream."""
        earlier = self._activity.first
        found = [(a + earlier, b + earlier) for a, b in self._activity.spans()]
        begin = self._held_first if self._start is None else self._start
        return [(max(a, begin), b) for a, b in found if b > begin]

    def _end(self, spans: Sequence[Span], last: bool) -> tuple[int, int] | None:
        """Return the end of the utterance and of the speech in it, if it has ended; else None."""
        assert self._start is not None
        utterances = joined(spans, self._frames(self._cutting.pause))
        spoken = utterances[0][1] if utterances else self._start
        limit = self._start + self._frames(self._cutting.longest)
        if spoken > limit or (self._now > limit and not utterances):
            earlier = self._activity.first
            half = (self._start + limit) // 2 - earlier
            here = [(max(0, a - earlier), b - earlier) for a, b in spans]
            place = quiet_place(self._activity.level, here, half, limit - earlier) + earlier
            return place, place
        if utterances and (last or self._now - spoken >= self._frames(self._cutting.pause)):
            return min(spoken + self._frames(self._cutting.margin), self._now), spoken
        return (self._now, self._now) if last else None

    def _partial(self, *, silent: bool) -> Update:
        assert self._start is not None
        begun = wall_clock()
        words = self._growing.words(self._samples(self._start, self._now), self._past, self._known, silent=silent)
        self._latencies.computing.append(wall_clock() - begun)
        at, start = self._now / FRAMES_PER_SECOND, self._start / FRAMES_PER_SECOND
        return Update(at, at, placed(words, (), start, at), final=False)

    def _final(self, end: int, spoken: int) -> Update:
        assert self._start is not None
        begun = wall_clock()
        features = self._model.features(self._samples(self._start, end))
        self._past.append(features)
        remembered = _REMEMBERED if self._model.adapting is None else _ADAPTED_TO
        while sum(map(len, self._past)) > remembered and len(self._past) > 1:
            self._past.popleft()
        self._known = self._model.statistics(list(self._past))
        found = self._model.of_features(features, self._known, asked=self._asked)
        self._latencies.unadapted += not found.adapted
        self._latencies.unsure += without_confidences(found.timed)
        self._latencies.computing_final.append(wall_clock() - begun)
        start, until = self._start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND
        segment = placed(found.words, found.timed, start, until, found.alternatives)
        self._start = None
        self._forget(end)
        update = Update(self._now / FRAMES_PER_SECOND, spoken / FRAMES_PER_SECOND, segment, final=True)
        self._latencies.final.append(update.latency)
        return update

    def _samples(self, first: int, last: int) -> Samples:
        begin = self._at(self._held_first)
        return self._held[self._at(first) - begin : self._at(last) - begin]

    def _forget(self, before: int) -> None:
        """Drop samples before this frame, and levels long before it."""
        if before > self._held_first:
            self._held = self._held[self._at(before) - self._at(self._held_first) :].copy()
            self._held_first = before
        if (old := before - _HISTORY - self._activity.first) > 0:
            self._activity.forget(old)

    def _frames(self, seconds: float) -> int:
        return round(seconds * FRAMES_PER_SECOND)

    def _at(self, frame: int) -> int:
        return frame * self._rate // FRAMES_PER_SECOND


def heard_in(listening: Listening, sound: Sound, channel: int = 0) -> Iterator[Update]:
    """Recognise an open sound block by block; yield the updates of `listening`.

    Args:
        channel: from 1; 0 for the mean of all.

    Raises:
        Unusable: the sound is damaged, or has no such channel.
    """
    sound.check(channel)
    resampler = Resampler(sound.rate, listening.sample_rate)
    for block in sound.blocks:
        yield from listening.push(resampler.push(one_channel(block, channel)))
    yield from listening.push(resampler.finish())
    yield from listening.finish()


@final
class _Growing:
    """Words of an utterance that is still being said.

    Normalisation is that of the audio known when its search begins.
    """

    def __init__(self, model: Model, asked: Wishes) -> None:
        self._model, self._asked = model, replace(asked, strings=0)
        self._options = model.packed.search.search(False)
        graph = model.graph.with_word_cost(self._options.word_cost or 0.0)
        self._graph = graph.favouring(asked.favoured, asked.bonus)
        self._as_it_comes = not _whole_only(model)
        self.begin()

    def begin(self) -> None:
        """Begin a new utterance."""
        self._search: GrowingSearch | None = None
        self._scores: GrowingScores | None = None
        self._known_frames = self._done = 0
        self._silent = False
        self._found: list[str] = []

    def words(
        self, samples: Samples, past: Sequence[PieceFeatures], like: Statistics | None = None, *, silent: bool
    ) -> list[str]:
        """Return the words so far of all samples (N,) of the utterance so far, after utterances `past`; `silent` if
        speech has ceased, `like` as of `Model.statistics`."""
        frames = len(samples) * FRAMES_PER_SECOND // self._model.sample_rate
        begins = frames >= _GROWTH * self._known_frames or (silent and not self._silent)
        self._silent = silent
        if begins:
            features = self._model.features(samples)
            known, self._known_frames = self._model.statistics([*past, features], like=like), frames
            if not self._as_it_comes:
                self._found = list(self._model.of_features(features, known, times=False, asked=self._asked).words)
            else:
                self._scores, self._done = GrowingScores(self._model, known), 0
                self._search = GrowingSearch(self._graph.fst, self._options.beam, self._options.max_active)
        if self._search is not None and self._scores is not None:
            scores = self._model.columns.searched(self._scores.push(samples[self._done :], together=begins))
            self._done = len(samples)
            self._search.push(np.float32(self._options.scale) * scores)
            self._found = [self._graph.words[word] for word in self._search.words()]
        return self._found
