"""The page, and the endpoint that clients of speech services speak to: `POST /v1/audio/transcriptions`.

The form has `file` and, if wanted, `response_format`: json, text, srt, vtt or verbose_json. Its other fields (`model`,
`language`, `prompt`, `temperature`, ...) are taken and have no effect: there is one model, and it knows one language.
"""

import asyncio
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, final

from roundelay.core.files import json_text
from roundelay.transcription.formats import FORMATS
from roundelay.transcription.formats.timed import as_segment, timed_word
from roundelay.transcription.inputs import Recording
from roundelay.transcription.serving.form import read_form
from roundelay.transcription.serving.http import Refused, Request, Response
from roundelay.transcription.transcribing import Options, Recogniser, Transcriber
from roundelay.transcription.transcript import ChannelTranscript, Segment

ENDPOINT, MODELS = "/v1/audio/transcriptions", "/v1/models"
MOST_WAITING = 8
"""Requests that wait for the model."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PAGE = Path(__file__).with_name("page.html")
# The page asks this server and nobody else, and nobody can make it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@final
@dataclass(frozen=True)
class Service:
    """A model that is served.

    Attributes:
        name: of the model.
        options: of transcribing; one channel, in this process.
        host: that is listened on.
        folder: for recordings while they are recognised; None: the system's.
    """

    model: Recogniser
    name: str
    options: Options
    host: str = "127.0.0.1"
    folder: Path | None = None


@final
class Endpoint:
    """Answers requests, one recording at a time: a model is not for several threads.

    Attributes:
        waiting: recordings that have come and are not answered yet.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._one = asyncio.Lock()
        self.waiting = 0
        self._ending = False

    @property
    def busy(self) -> bool:
        """True while a recording is recognised."""
        return self._one.locked()

    def end(self) -> None:
        """Finish the recording at hand, and refuse those that wait and those that still come."""
        self._ending = True

    async def answer(self, request: Request) -> Response:
        """The response.

        Raises:
            Refused: nothing is there, or the recording cannot be used.
        """
        self._check_host(request)
        routes = {"/": ("GET", self._page), MODELS: ("GET", self._models), ENDPOINT: ("POST", self._transcribed)}
        if request.path not in routes:
            raise Refused(HTTPStatus.NOT_FOUND, f"Nothing is here; POST a recording to {ENDPOINT}.")
        method, route = routes[request.path]
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} is for {method}.")
        return await route(request)

    def _check_host(self, request: Request) -> None:
        """On loopback only names of loopback: a page from elsewhere cannot ask here under its own name."""
        name = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if self._service.host in _LOCAL and name.strip("[]").lower() not in _LOCAL:
            raise Refused(HTTPStatus.FORBIDDEN, "This server is for this machine: ask for localhost.")

    async def _page(self, _: Request) -> Response:
        text = _PAGE.read_bytes()
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", text, {"Content-Security-Policy": _POLICY})

    async def _models(self, _: Request) -> Response:
        model = {"id": self._service.name, "object": "model", "created": 0, "owned_by": "roundelay"}
        return as_json(HTTPStatus.OK, {"object": "list", "data": [model]})

    async def _transcribed(self, request: Request) -> Response:
        form = read_form(request.headers.get("content-type", ""), request.body)
        if "file" not in form or not form["file"].value:
            raise Refused(HTTPStatus.BAD_REQUEST, "The form has no `file`, or an empty one.")
        wanted = form["response_format"].text if "response_format" in form else "json"
        if wanted not in _REPLIES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"response_format {wanted[:40]!r}: there are {', '.join(_REPLIES)}.")
        if self.waiting >= MOST_WAITING:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many recordings are waiting. Try again later.")
        self.waiting += 1
        try:
            async with self._one:
                if self._ending:
                    raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The server is ending. Ask it again once it is back.")
                transcript = await asyncio.to_thread(self._recognise, form["file"].value)
        finally:
            self.waiting -= 1
        return _REPLIES[wanted](transcript)

    def _recognise(self, data: bytes) -> ChannelTranscript:
        options = replace(self._service.options, channel=0, workers=1)
        with tempfile.TemporaryDirectory(dir=self._service.folder) as folder:
            path = Path(folder, "recording")
            path.write_bytes(data)
            (found,) = Transcriber(self._service.model, options).run([Recording("recording", path, "The recording")])
        if found.problem:
            raise Refused(HTTPStatus.BAD_REQUEST, found.problem)
        return found.transcripts[0]


def refusal(refused: Refused) -> Response:
    """An error as clients know it."""
    kind = "server_error" if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": str(refused), "type": kind, "param": None, "code": None}
    return as_json(refused.status, {"error": error})


def as_json(status: HTTPStatus, value: Mapping[str, Any]) -> Response:
    """A response of JSON."""
    return Response(status, "application/json", json_text(value).encode())


def _verbose(transcript: ChannelTranscript) -> Response:
    """Words and segments with times; of what others say of a segment, the mean logarithm of the words' confidences."""
    return as_json(
        HTTPStatus.OK,
        {
            "task": "transcribe",
            "language": "unknown",
            "duration": round(transcript.seconds, 3),
            "text": transcript.text,
            "segments": [_segment(number, segment) for number, segment in enumerate(transcript.segments)],
            "words": [timed_word(word) for word in transcript.words],
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
        "avg_logprob": round(sum(sure) / len(sure), 4) if sure else 0.0,
        "compression_ratio": 1.0,
        "no_speech_prob": 0.0 if segment.words else 1.0,
    }


def _text(name: str, kind: str) -> Callable[[ChannelTranscript], Response]:
    return lambda transcript: Response(HTTPStatus.OK, f"{kind}; charset=utf-8", FORMATS[name](transcript).encode())


_REPLIES: Mapping[str, Callable[[ChannelTranscript], Response]] = {
    "json": lambda transcript: as_json(HTTPStatus.OK, {"text": transcript.text}),
    "text": _text("txt", "text/plain"),
    "srt": _text("srt", "text/plain"),
    "vtt": _text("vtt", "text/vtt"),
    "verbose_json": _verbose,
}
