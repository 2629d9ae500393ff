"""Replies in the shapes that clients of speech services know."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, final

from roundelay.core.files import json_line, json_text
from roundelay_speech.transcription.formats import FORMATS
from roundelay_speech.transcription.formats.timed import as_segment, timed_words
from roundelay_speech.transcription.serving.limits import Refused
from roundelay_speech.transcription.serving.wanted import named
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment

EVENT_STREAM = "text/event-stream"
"""Content-Type of words as they are found."""


@final
@dataclass(frozen=True)
class Reply:
    """A reply; `kind` is its Content-Type."""

    status: HTTPStatus
    kind: str
    body: bytes


def refusal(refused: Refused) -> Reply:
    """Return an error as clients know it."""
    kind = "server_error" if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": str(refused), "type": kind, "param": None, "code": None}
    return as_json(refused.status, {"error": error})


def as_json(status: HTTPStatus, value: Mapping[str, Any]) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, "application/json", json_text(value).encode())


def event(told: Mapping[str, Any]) -> bytes:
    """Return an event of a stream, as it is sent."""
    return f"event: {told['type']}\ndata: {json_line(told)}\n\n".encode()


def _plain(transcript: ChannelTranscript, unknown: list[str]) -> Reply:
    return as_json(HTTPStatus.OK, {"text": transcript.text, **named(unknown)})


def _verbose(transcript: ChannelTranscript, unknown: list[str]) -> Reply:
    """Return words and segments with times; of what others say of a segment, the mean logarithm of the words'
    confidences, null where they have none."""
    return as_json(
        HTTPStatus.OK,
        {
            "task": "transcribe",
            "language": "unknown",
            "duration": round(transcript.seconds, 3),
            "text": transcript.text,
            "segments": [_segment(number, segment) for number, segment in enumerate(transcript.segments)],
            "words": [word for segment in transcript.segments for word in timed_words(segment)],
            **named(unknown),
        },
    )


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    sure = [math.log(max(word.confidence, 1e-4)) for word in segment.words if word.confidence is not None]
    told = {key: value for key, value in as_segment(number, segment).items() if key != "words"}
    return {
        **told,
        "seek": 0,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": round(sum(sure) / len(sure), 4) if sure else None,
        "compression_ratio": 1.0,
        "no_speech_prob": 0.0 if segment.words else 1.0,
    }


def _text(name: str, kind: str) -> Callable[[ChannelTranscript, list[str]], Reply]:
    return lambda transcript, _: Reply(HTTPStatus.OK, f"{kind}; charset=utf-8", FORMATS[name](transcript).encode())


REPLIES: Mapping[str, Callable[[ChannelTranscript, list[str]], Reply]] = {
    "json": _plain,
    "text": _text("txt", "text/plain"),
    "srt": _text("srt", "text/plain"),
    "vtt": _text("vtt", "text/vtt"),
    "verbose_json": _verbose,
}
"""Formats of a reply by name: of a transcript, and words to favour that are not in the vocabulary."""
