"""A transcript: the words of one channel of a recording, with their times and confidences, segment by segment."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from roundelay_speech.decode.alternatives import NO_ALTERNATIVES, Alternatives
from roundelay_speech.scoring.formats.ctm import TimedWord

UNSURE = "fit too many word strings to tell how sure the words are: they have no confidence"
UNADAPTED = "came with too little speech of the speaker to adapt to"


def without_confidences(timed: Sequence[TimedWord]) -> bool:
    """Return True if words have times but no confidences."""
    return any(word.confidence is None for word in timed)


@final
@dataclass(frozen=True)
class Segment:
    """A segment of a transcript: the words between two cuts, with times in seconds from the recording's beginning."""

    start: float
    end: float
    words: tuple[TimedWord, ...]
    alternatives: Alternatives = NO_ALTERNATIVES  # other words, where they were asked for

    @property
    def text(self) -> str:
        """The words with single blanks between them."""
        return " ".join(word.word for word in self.words)


@final
@dataclass(frozen=True)
class ChannelTranscript:
    """The words of one channel of a recording."""

    name: str  # of the recording, one word without brackets; with the channel behind it where several are transcribed
    source: str  # the file
    channel: int  # from 1
    seconds: float  # length of the recording
    segments: tuple[Segment, ...]  # in order of time

    @property
    def words(self) -> tuple[TimedWord, ...]:
        """The words of all segments."""
        return tuple(word for segment in self.segments for word in segment.words)

    @property
    def text(self) -> str:
        """The words with single blanks between them."""
        return " ".join(word.word for word in self.words)


def placed(
    words: Sequence[str],
    timed: Sequence[TimedWord],
    start: float,
    end: float,
    alternatives: Alternatives = NO_ALTERNATIVES,
) -> Segment:
    """Make a segment from words whose times, if they have any, count from the segment's beginning; words without times
    divide it evenly, and have no confidence."""
    if len(timed) == len(words):
        moved = tuple(dataclasses.replace(word, start=start + word.start) for word in timed)
        return Segment(start, end, moved, alternatives)
    edges = np.linspace(start, end, len(words) + 1).tolist()
    shares = [TimedWord(word, a, b - a) for word, (a, b) in zip(words, pairwise(edges), strict=True)]
    return Segment(start, end, tuple(shares), alternatives)
