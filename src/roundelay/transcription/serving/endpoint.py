"""The page, and the endpoint that clients of speech services speak to: `POST /v1/audio/transcriptions`.

The form has `file` and, if wanted, `response_format`: json, text, srt, vtt or verbose_json; or `stream`, and words come
as they are found (events). Its other fields (`model`, `language`, `prompt`, `temperature`, ...) are taken and have no
effect: there is one model, and it knows one language. Somebody who speaks comes by a WebSocket (speaking).
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import final

from roundelay.speech.audio.sound import HIGHEST_RATE, LOWEST_RATE
from roundelay.transcription.inputs import Recording
from roundelay.transcription.live import Listening, Update
from roundelay.transcription.serving.events import events_of
from roundelay.transcription.serving.form import Field, read_form
from roundelay.transcription.serving.http import Limits, Pieces, Refused, Reply, Request, Response, Upgrade
from roundelay.transcription.serving.replies import REPLIES, as_json
from roundelay.transcription.serving.speaking import Speaker
from roundelay.transcription.serving.websocket import WebSocket, accepted
from roundelay.transcription.transcribing import Options, Recogniser, Transcriber
from roundelay.transcription.transcript import ChannelTranscript

ENDPOINT, LIVE, MODELS = "/v1/audio/transcriptions", "/v1/audio/transcriptions/live", "/v1/models"
MOST_WAITING, MOST_SPEAKERS = 8, 4
"""Requests that wait for the model, and people who speak at a time."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PAGE = Path(__file__).with_name("page.html")
# The page asks this server and nobody else, and nobody can make it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; connect-src 'self'; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@final
@dataclass(frozen=True)
class Service:
    """A model that is served.

    Attributes:
        name: of the model.
        options: of transcribing; one channel, in this process.
        listen: makes a recogniser of what somebody says, with words so far or, given False, without. All that it makes
            are for one thread together.
        host: that is listened on.
        folder: for recordings while they are recognised; None: the system's.
    """

    model: Recogniser
    name: str
    options: Options
    listen: Callable[[bool], Listening]
    host: str = "127.0.0.1"
    folder: Path | None = None


@final
class Endpoint:
    """Answers requests, one recording at a time: a model is not for several threads. Those who speak take turns of a
    fifth of a second, in a thread of their own.

    Attributes:
        waiting: recordings that have come and are not answered yet.
        speakers: people who speak.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._one, self._turn = asyncio.Lock(), asyncio.Lock()
        self.waiting = self.speakers = 0
        self._ended = asyncio.Event()

    @property
    def at_hand(self) -> str:
        """Work that an end waits for, in words; empty if there is none."""
        if self._one.locked():
            return "the recording at hand"
        return "what is being said" if self.speakers else ""

    def end(self) -> None:
        """Finish the recording at hand and what was said so far, and refuse those that wait and that still come."""
        self._ended.set()

    async def answer(self, request: Request) -> Reply:
        """The response.

        Raises:
            Refused: nothing is there, or the recording cannot be used.
        """
        self._check_host(request)
        routes = {
            "/": ("GET", self._page),
            MODELS: ("GET", self._models),
            ENDPOINT: ("POST", self._transcribed),
            LIVE: ("GET", self._live),
        }
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

    async def _page(self, _: Request) -> Reply:
        text = _PAGE.read_bytes()
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", text, {"Content-Security-Policy": _POLICY})

    async def _models(self, _: Request) -> Reply:
        model = {"id": self._service.name, "object": "model", "created": 0, "owned_by": "roundelay"}
        return as_json(HTTPStatus.OK, {"object": "list", "data": [model]})

    # Recordings -----------------------------------------------------------------------------------------------------

    async def _transcribed(self, request: Request) -> Reply:
        form = read_form(request.headers.get("content-type", ""), request.body)
        if "file" not in form or not form["file"].value:
            raise Refused(HTTPStatus.BAD_REQUEST, "The form has no `file`, or an empty one.")
        wanted = form["response_format"].text if "response_format" in form else "json"
        if wanted not in REPLIES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"response_format {wanted[:40]!r}: there are {', '.join(REPLIES)}.")
        if self.waiting >= MOST_WAITING:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many recordings are waiting. Try again later.")
        if "stream" in form and form["stream"].text.lower() in ("true", "1"):
            return Pieces("text/event-stream", self._events(form["file"]))
        async with self._turn_of_a_recording():
            return REPLIES[wanted](await asyncio.to_thread(self._recognise, form["file"].value))

    @asynccontextmanager
    async def _turn_of_a_recording(self) -> AsyncGenerator[None, None]:
        self.waiting += 1
        try:
            async with self._one:
                self._check_end()
                yield
        finally:
            self.waiting -= 1

    def _check_end(self) -> None:
        if self._ended.is_set():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The server is ending. Ask it again once it is back.")

    def _recognise(self, data: bytes) -> ChannelTranscript:
        options = replace(self._service.options, channel=0, workers=1)
        with tempfile.TemporaryDirectory(dir=self._service.folder) as folder:
            path = Path(folder, "recording")
            path.write_bytes(data)
            (found,) = Transcriber(self._service.model, options).run([Recording("recording", path, "The recording")])
        if found.problem:
            raise Refused(HTTPStatus.BAD_REQUEST, found.problem)
        return found.transcripts[0]

    async def _events(self, file: Field) -> AsyncGenerator[bytes, None]:
        async with self._turn_of_a_recording():
            with tempfile.TemporaryDirectory(dir=self._service.folder) as folder:
                path = Path(folder, "recording")
                path.write_bytes(file.value)
                listening, most = self._service.listen(False), self._service.options.most_seconds
                async with aclosing(events_of(path, listening, most, self._step)) as events:
                    async for event in events:
                        yield event

    # Somebody who speaks --------------------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Reply:
        headers = accepted(request)
        self._check_end()
        listening = self._service.listen(True)
        rate = request.asked.get("rate", str(listening.sample_rate))
        if not (rate.isascii() and rate.isdigit() and len(rate) < 8 and LOWEST_RATE <= int(rate) <= HIGHEST_RATE):
            raise Refused(HTTPStatus.BAD_REQUEST, f"rate {rate[:40]!r}: give that of the samples in Hz, 16000 for one.")
        if self.speakers >= MOST_SPEAKERS:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many people are speaking. Try again later.")
        speaker = Speaker(listening, int(rate), self._service.options.most_seconds, self._step)

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
            try:
                await speaker.talk(WebSocket(reader, writer, limits.seconds), self._ended)
            finally:
                self.speakers -= 1

        self.speakers += 1
        return Upgrade(headers, talk)

    async def _step(self, call: Callable[[], list[Update]]) -> list[Update]:
        async with self._turn:
            return await asyncio.to_thread(call)
