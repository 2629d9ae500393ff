"""Requests in fields of a form or of an address, and replies in the shapes that clients of speech services know; and
limits of what clients may ask for.

`nbest`             so many alternatives of each segment and word
`favour`, `prompt`  words that become likelier, parted by blanks or commas
`bonus`             by so many nats
`pause`, `longest`  seconds: a silence that ends an utterance, and its greatest length
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, final

from roundelay.core.files import json_line, json_text
from roundelay_speech.decode.alternatives import MOST_BONUS, MOST_STRINGS, USUAL_BONUS, words_of
from roundelay_speech.transcription.formats import FORMATS
from roundelay_speech.transcription.formats.timed import as_segment, timed_words
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment


@final
@dataclass(frozen=True)
class Limits:
    """The limits of a server on requests."""

    body: int = 100 << 20  # bytes of a request
    bodies: int = 400 << 20  # bytes of all requests together, while they are held
    head_seconds: float = 10.0  # that a request may take for its head
    body_seconds: float = 300.0  # that the rest of it may take
    seconds: float = 30.0  # that a client may send nothing, or take nothing, while that is awaited
    work_seconds: float = 660.0  # that a recording may be recognised
    connections: int = 64  # at a time
    of_an_address: int = 24  # connections of one address
    recordings: int = 8  # that are recognised at a time
    speakers: int = 4  # people who speak at a time


USUAL_LIMITS = Limits()


class Refused(Exception):
    """A request is refused; has the status and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


FIELDS = ("nbest", "favour", "prompt", "bonus", "pause", "longest")
MOST_CHARACTERS = 10_000
"""Most characters of all words to favour together."""
_PAUSE, _LONGEST = (0.1, 10.0), (1.0, 60.0)


@final
@dataclass(frozen=True)
class RequestFields:
    """The options of a request."""

    strings: int  # how many alternatives
    favoured: tuple[str, ...]  # words, as they were written
    bonus: float  # of each of these, in nats
    # pause, longest: options of `Cutting`, in seconds; None: the server's.
    pause: float | None
    longest: float | None


def wanted(fields: Mapping[str, str]) -> RequestFields:
    """Parse the options in the fields of a request; empty fields count as missing.

    Raises:
        Refused: a field has an invalid value, or too long a one.
    """
    given = {name: fields[name].strip() for name in FIELDS if fields.get(name, "").strip()}
    favoured = " ".join(given[name] for name in ("favour", "prompt") if name in given)
    if len(favoured) > MOST_CHARACTERS:
        raise _refused(f"favour, prompt: {len(favoured):,} characters; {MOST_CHARACTERS:,} are the most.")
    strings = _number(given, "nbest", (0, MOST_STRINGS)) or 0.0
    if strings != int(strings):
        raise _refused(f"nbest {given['nbest'][:40]!r}: give a whole number.")
    return RequestFields(
        int(strings),
        tuple(words_of(favoured)),
        USUAL_BONUS if (bonus := _number(given, "bonus", (0.0, MOST_BONUS))) is None else bonus,
        _number(given, "pause", _PAUSE),
        _number(given, "longest", _LONGEST),
    )


def named(unknown: list[str]) -> dict[str, Any]:
    """Return the field of a reply that lists words which cannot be favoured; empty if there are none."""
    return {"unknown_words": unknown} if unknown else {}


def _number(given: Mapping[str, str], name: str, bounds: tuple[float, float]) -> float | None:
    if name not in given:
        return None
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not bounds[0] <= value <= bounds[1]:
        raise _refused(f"{name} {given[name][:40]!r}: give {bounds[0]:g} to {bounds[1]:g}.")
    return value


def _refused(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, why)


EVENT_STREAM = "text/event-stream"
"""Content-Type of a stream of words."""


@final
@dataclass(frozen=True)
class Reply:
    """A reply; `kind` is its Content-Type."""

    status: HTTPStatus
    kind: str
    body: bytes


def refusal(refused: Refused) -> Reply:
    """Return a refusal as a reply, in the form that clients know."""
    kind = "server_error" if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": str(refused), "type": kind, "param": None, "code": None}
    return as_json(refused.status, {"error": error})


def as_json(status: HTTPStatus, value: Mapping[str, Any]) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, "application/json", json_text(value).encode())


def event(told: Mapping[str, Any]) -> bytes:
    """Return an event of a stream as bytes to send."""
    return f"event: {told['type']}\ndata: {json_line(told)}\n\n".encode()


def _plain(transcript: ChannelTranscript, unknown: list[str]) -> Reply:
    return as_json(HTTPStatus.OK, {"text": transcript.text, **named(unknown)})


def _verbose(transcript: ChannelTranscript, unknown: list[str]) -> Reply:
    """Return the reply `verbose_json`: words and segments with times; a segment's `avg_logprob` is the mean logarithm
    of its words' confidences, null if they have none."""
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
"""Formats of a reply by name, each made of a transcript, and of words to favour that are not in the vocabulary."""
