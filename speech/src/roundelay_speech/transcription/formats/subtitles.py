"""Subtitles: SubRip (srt) and WebVTT (vtt). A cue has two lines of 42 characters at most, and up to seven seconds."""

import textwrap
from collections.abc import Iterator, Sequence

from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.transcription.transcript import ChannelTranscript

LINE, LINES, LONGEST = 42, 2, 7.0
"""Most characters of a line, lines and seconds of a cue, as usual on television."""
_GAP = 1.0  # s: a silence of this length ends a cue
_SHORTEST = 0.8  # s: a shorter cue stays until then, or until the next begins


def srt(transcript: ChannelTranscript) -> str:
    """Return a transcript as SubRip: numbered cues, times as `00:01:02,345`."""
    cues = [
        f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(transcript), 1)
    ]
    return "\n".join(cues)


def vtt(transcript: ChannelTranscript) -> str:
    """Return a transcript as WebVTT: times as `00:01:02.345`; characters that would be read as a mark are escaped."""
    cues = [
        f"\n{_time(start, '.')} --> {_time(end, '.')}\n"
        f"{text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}\n"
        for start, end, text in _cues(transcript)
    ]
    return "".join(["WEBVTT\n", *cues])


def _cues(transcript: ChannelTranscript) -> list[tuple[int, int, str]]:
    """Return start and end (ms) and text of every cue; no two are on screen at the same time."""
    groups = [group for segment in transcript.segments for group in _groups(segment.words)]
    starts = [round(1000 * group[0].start) for group in groups]
    cues = []
    limits: list[int | None] = [*starts[1:], None]
    for group, start, limit in zip(groups, starts, limits, strict=False):
        end = max(round(1000 * (group[-1].start + group[-1].duration)), start + round(1000 * _SHORTEST))
        end = end if limit is None else min(end, limit)
        cues.append((start, max(end, start + 1), "\n".join(_wrapped(group))))
    return cues


def _groups(words: Sequence[TimedWord]) -> Iterator[list[TimedWord]]:
    """Group words into cues; yield the words of each."""
    group: list[TimedWord] = []
    for word in words:
        if group:
            gap = word.start - (group[-1].start + group[-1].duration)
            long = word.start + word.duration - group[0].start > LONGEST
            if gap >= _GAP or long or len(_wrapped([*group, word])) > LINES:
                yield group
                group = []
        group.append(word)
    if group:
        yield group


def _wrapped(words: Sequence[TimedWord]) -> list[str]:
    text = " ".join(word.word for word in words)
    return textwrap.wrap(text, LINE, break_long_words=False, break_on_hyphens=False)


def _time(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{rest:03}"
