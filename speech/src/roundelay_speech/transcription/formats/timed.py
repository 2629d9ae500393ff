"""Formats with the time and confidence of every word: json, ctm, TextGrid."""

from typing import Any

from roundelay.core.files import json_line
from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, textgrid_text, without_gaps
from roundelay_speech.scoring.formats.ctm import TimedWord, UtterancePosition, ctm_text
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment

_DECIMALS = 3  # s: a millisecond is finer than any frame
WORDS, CONFIDENCES, SEGMENTS = "words", "confidences", "segments"
"""Tiers of a TextGrid."""


def json_document(transcript: ChannelTranscript) -> str:
    """Return a transcript as one line of JSON."""
    return f"{json_line(as_json(transcript))}\n"


def as_json(transcript: ChannelTranscript) -> dict[str, Any]:
    """Return a transcript for JSON: name, source, channel, seconds, text, and `segments` with their `words`; times in
    seconds."""
    return {
        "name": transcript.name,
        "source": transcript.source,
        "channel": transcript.channel,
        "seconds": round(transcript.seconds, _DECIMALS),
        "text": transcript.text,
        "segments": [as_segment(number, segment) for number, segment in enumerate(transcript.segments)],
    }


def update_line(segment: Segment, at: float, *, final: bool) -> str:
    """Return a segment of a stream as a line of JSON, with `final`, and `at`, the seconds of audio that had come."""
    told = as_segment(0, segment)
    del told["id"]
    return f"{json_line({'final': final, 'at': round(at, _DECIMALS), **told})}\n"


def as_segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment for JSON."""
    told = {
        "id": number,
        "start": round(segment.start, _DECIMALS),
        "end": round(segment.end, _DECIMALS),
        "text": segment.text,
        "words": timed_words(segment),
    }
    if strings := segment.alternatives.strings:
        told["alternatives"] = [
            {"text": one.text, "cost": round(one.cost, 4), "posterior": round(one.posterior, 6)} for one in strings
        ]
    return told


def timed_words(segment: Segment) -> list[dict[str, Any]]:
    """Return the words of a segment for JSON, each with its alternatives, if known."""
    words = [timed_word(word) for word in segment.words]
    for word, others in zip(words, segment.alternatives.of_words, strict=bool(segment.alternatives.of_words)):
        word["alternatives"] = [{"word": one.word, "confidence": round(one.confidence, 4)} for one in others]
    return words


def timed_word(word: TimedWord) -> dict[str, Any]:
    """Return a word for JSON."""
    times = {"word": word.word, "start": round(word.start, _DECIMALS), "end": round(word.start + word.duration, 3)}
    return times if word.confidence is None else {**times, "confidence": round(word.confidence, 4)}


def ctm(transcript: ChannelTranscript) -> str:
    """Return a transcript as CTM: `name channel start duration word confidence`, a line a word."""
    place = UtterancePosition(transcript.name, str(transcript.channel))
    return ctm_text(transcript.source, {transcript.name: transcript.words}, {transcript.name: place})


def textgrid(transcript: ChannelTranscript) -> str:
    """Return a transcript as a TextGrid with three tiers: words, their confidences, and segments."""
    end = max([transcript.seconds, *(word.start + word.duration for word in transcript.words)])
    words = [Interval(w.start, w.start + w.duration, w.word) for w in transcript.words]
    sure = [
        Interval(w.start, w.start + w.duration, "" if w.confidence is None else f"{w.confidence:.4f}")
        for w in transcript.words
    ]
    segments = [Interval(p.start, p.end, p.text) for p in transcript.segments]
    tiers = (
        Tier(name, tuple(without_gaps(intervals, 0.0, end)))
        for name, intervals in ((WORDS, words), (CONFIDENCES, sure), (SEGMENTS, segments))
    )
    return textgrid_text(TextGrid(0.0, end, tuple(tiers)))
