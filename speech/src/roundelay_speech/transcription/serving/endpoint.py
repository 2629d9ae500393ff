"""The page, and the endpoint that clients of speech services speak to: `POST /v1/audio/transcriptions`.

The form has `file` and, if wanted, `response_format`: json, text, srt, vtt or verbose_json; or `stream`, and words come
as they are found (events). Alternatives, words to favour and the end of an utterance are fields too (wanted), here and
in the address of a WebSocket, by which live speech comes (speaking). Other fields (`model`, `language`, `temperature`,
...) are taken and have no effect: there is one model, and it knows one language.

The server itself reads no form and no sound: bodies go into files without names, and on to processes (recognisers).
"""

import asyncio
import json
import tempfile
import traceback
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from roundelay_speech.audio.sound import HIGHEST_RATE, LOWEST_RATE
from roundelay_speech.transcription.serving.forking import END, REPLY_HEAD, TEXT
from roundelay_speech.transcription.serving.recognisers import Died, Recognisers, Recognition
from roundelay_speech.transcription.serving.speaking import SAMPLE_BYTES, is_end
from roundelay_speech.transcription.serving.wanted import (
    EVENT_STREAM,
    FIELDS,
    USUAL_LIMITS,
    Limits,
    Refused,
    Reply,
    as_json,
    event,
    refusal,
    wanted,
)

ENDPOINT, LIVE, MODELS = "/v1/audio/transcriptions", "/v1/audio/transcriptions/live", "/v1/models"
ABOUT_MODEL = "/about"
MESSAGE_BYTES = 1 << 20
"""Most bytes of a message from a speaker."""
NORMAL, GOING_AWAY, BROKEN, AGAINST_THE_RULES, TOO_LARGE, FAILED = 1000, 1001, 1002, 1008, 1009, 1011
"""Codes by which a WebSocket is closed."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PAGE = Path(__file__).with_name("page.html")
# The page asks this server alone, and nothing can make it ask another.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; connect-src 'self'; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = [(b"connection", b"close"), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_ENDING = "The server is ending. Ask it again once it is back."
_DIED = "The process that recognised this has died; perhaps there was too little memory."


class _Closing(Exception):
    """Raised to close a WebSocket with a code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@final
class Endpoint:
    """The server's application (ASGI), which answers requests.

    Args:
        recognisers: recognisers of the model.
        name: name of the model.
        host: address on which the server listens.

    Attributes:
        recordings: number of recordings being recognised.
        speakers: number of people speaking.
        held: bytes of all bodies in memory.
    """

    def __init__(
        self, recognisers: Recognisers, name: str, limits: Limits = USUAL_LIMITS, host: str = "127.0.0.1"
    ) -> None:
        self._recognisers, self._name, self._host, self.limits = recognisers, name, host, limits
        self.recordings = self.speakers = self.held = 0
        self._ended, self._cut, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        routes = [
            Route("/", self._page),
            Route(MODELS, self._models),
            Route(ABOUT_MODEL, self._about),
            Route(ENDPOINT, self._transcribed, methods=["POST"]),
            Route(LIVE, self._no_socket),
            WebSocketRoute(LIVE, self._live),
        ]
        handlers = {Refused: _refused, HTTPException: _not_here, Exception: _failed}
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a client that hangs up is no error."""
        try:
            if scope["type"] == "http":
                await self._checked(scope, receive, _with_headers(send))
            else:
                await self._app(scope, receive, send)
        except (ClientDisconnect, WebSocketDisconnect, ConnectionError):
            pass
        except Exception:  # a defect, and starlette has answered 500
            traceback.print_exc()

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(HTTPConnection(scope), scope["method"] == "POST")
        except Refused as refused:
            await _response(refusal(refused))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, asked: HTTPConnection, acts: bool) -> None:
        """Refuse requests from pages of other origins: on loopback, requests under another host name; and requests that
        cost work (`acts`) with a foreign `Origin`."""
        headers = asked.headers
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._host in _LOCAL and name.strip("[]") not in _LOCAL:
            raise Refused(HTTPStatus.FORBIDDEN, "This server is for this machine: ask for localhost.")
        origin = headers.get("origin")
        elsewhere = origin is not None and urlsplit(origin).netloc.lower() != host
        if acts and (elsewhere or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")):
            raise Refused(HTTPStatus.FORBIDDEN, "This page is not from here.")

    # The end --------------------------------------------------------------------------------------------------------

    @property
    def at_hand(self) -> str:
        """Words on the work for which the server's end waits; "" if there is none."""
        if self.recordings:
            return "what is at hand"
        return "what is being said" if self.speakers else ""

    def end(self) -> None:
        """Refuse further requests, and let those who speak finish."""
        self._ended.set()

    async def finished(self, seconds: float) -> None:
        """Wait up to `seconds` until all requests are answered; then answer the rest that the server ends."""
        for patience in (seconds, 0.5):
            try:
                async with asyncio.timeout(patience):
                    await self._idle.wait()
            except TimeoutError:
                self._cut.set()

    @contextmanager
    def _place(self, of: str, most: int, full: str) -> Iterator[None]:
        if self._ended.is_set():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _ENDING)
        if getattr(self, of) >= most:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, full)
        setattr(self, of, getattr(self, of) + 1)
        self._idle.clear()
        try:
            yield
        finally:
            setattr(self, of, getattr(self, of) - 1)
            if not self.recordings + self.speakers:
                self._idle.set()

    # Page and model -------------------------------------------------------------------------------------------------

    async def _page(self, _: Request) -> Response:
        return Response(_PAGE.read_bytes(), 200, {"Content-Security-Policy": _POLICY}, "text/html")

    async def _models(self, _: Request) -> Response:
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "roundelay"}
        return _response(as_json(HTTPStatus.OK, {"object": "list", "data": [model]}))

    async def _about(self, _: Request) -> Response:
        return _response(as_json(HTTPStatus.OK, {"model": self._name, **self._recognisers.facts}))

    async def _no_socket(self, _: Request) -> Response:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{LIVE} is for a WebSocket.")

    # Recordings -----------------------------------------------------------------------------------------------------

    async def _transcribed(self, request: Request) -> Response:
        headers = request.headers
        if not headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data, with the recording as `file`.")
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send the form as it is, without a Content-Encoding.")
        if "content-length" in headers and "transfer-encoding" in headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "Content-Length and Transfer-Encoding exclude each other.")
        return _Transcription(self, headers["content-type"])

    @contextmanager
    def body(self) -> Iterator["_Body"]:
        """Within the `with`, hold the body of a request."""
        # No name: nothing of it is left, however the server ends.
        with tempfile.TemporaryFile() as file:
            body = _Body(file)
            try:
                yield body
            finally:
                self.held -= body.size

    async def receive(self, request: Request, body: "_Body") -> None:
        """Receive the body of a request.

        Raises:
            Refused: the body is too large or too slow, or there is no room.
        """
        if int(request.headers.get("content-length", 0)) > self.limits.body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.body_seconds), aclosing(request.stream()) as pieces:
                while piece := await asyncio.wait_for(anext(pieces, b""), self.limits.seconds):
                    body.size += len(piece)
                    self.held += len(piece)
                    if body.size > self.limits.body:
                        raise self._too_large()
                    if self.held > self.limits.bodies:
                        why = "Too much is being sent at once. Try again later."
                        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, why)
                    body.file.write(piece)
            body.file.seek(0)
        except TimeoutError:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "The form did not come in time.") from None
        except OSError as error:
            why = f"There is no room for the recording ({error.strerror})."
            raise Refused(HTTPStatus.INSUFFICIENT_STORAGE, why) from None

    def _too_large(self) -> Refused:
        why = f"The body is larger than {self.limits.body:,} bytes. Send a shorter file."
        return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)

    async def transcribe(self, kind: str, body: "_Body", receive: Receive, reply: "_Sending") -> None:
        """Answer a form, unless the client hangs up, the server ends, or the work takes too long."""
        with self._place("recordings", self.limits.recordings, "Too many recordings are waiting. Try again later."):
            why = None
            try:
                async with (
                    self._recognisers.recognition({"kind": kind}, body.file.fileno()) as recognition,
                    asyncio.timeout(self.limits.work_seconds),
                ):
                    number, _ = await _first(_passed_on(recognition, reply), _gone(receive), self._cut.wait())
                    if number == 2:
                        why = Refused(HTTPStatus.SERVICE_UNAVAILABLE, _ENDING)
            except TimeoutError:  # no server_error, after which clients would ask the same again
                why = Refused(HTTPStatus.UNPROCESSABLE_ENTITY, self._too_long)
            except Died:
                why = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, _DIED)
            if why is not None:
                await reply.broken_off(why)

    @property
    def _too_long(self) -> str:
        return f"The recognition took longer than {self.limits.work_seconds:g} s, and was ended."

    # Live speech ----------------------------------------------------------------------------------------------------

    async def _live(self, socket: WebSocket) -> None:
        try:
            self._check(socket, acts=True)
            asked = socket.query_params.get("rate", str(self._recognisers.facts["sample_rate"]))
            if not (
                asked.isascii() and asked.isdigit() and len(asked) < 8 and LOWEST_RATE <= int(asked) <= HIGHEST_RATE
            ):
                why = f"rate {asked[:40]!r}: give that of the samples in Hz, 16000 for one."
                raise Refused(HTTPStatus.BAD_REQUEST, why)
            fields = {name: socket.query_params[name] for name in FIELDS if name in socket.query_params}
            wanted(fields)
            with self._place("speakers", self.limits.speakers, "Too many people are speaking. Try again later."):
                await socket.accept()
                await self._heard(socket, {"rate": int(asked), "fields": fields})
        except Refused as refused:
            await socket.send_denial_response(_response(refusal(refused)))

    async def _heard(self, socket: WebSocket, asked: Mapping[str, Any]) -> None:
        code, why = NORMAL, ""
        try:
            async with self._recognisers.recognition(asked) as recognition:
                await _first(
                    self._texts(recognition, socket),
                    self._samples(socket, asked["rate"], recognition),
                    self._cut.wait(),
                )
            if self._ended.is_set():
                code, why = GOING_AWAY, "The server is ending."
        except Died:
            code, why = FAILED, _DIED
        except TimeoutError:
            code, why = FAILED, self._too_long
        except _Closing as closing:
            code, why = closing.code, str(closing)
        if code not in (NORMAL, GOING_AWAY):
            await self._sent(socket.send_json({"type": "error", "error": {"message": why}}))
        await self._sent(socket.close(code, why))

    async def _texts(self, recognition: Recognition, socket: WebSocket) -> None:
        """Send the words of a recognition to the client, to the end."""
        while (told := await recognition.told())[0] == TEXT:
            await self._sent(socket.send_text(told[1].decode()))

    async def _sent(self, sending: Awaitable[None]) -> None:
        await in_time(sending, self.limits.seconds)

    async def _samples(self, socket: WebSocket, rate: int, recognition: Recognition) -> None:
        """Pass the client's samples on to a recognition, to their end, and wait until the client hangs up."""
        limits, taken, waited = self.limits, 0, 0.0
        most = self._recognisers.facts["most_seconds"]
        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            samples = await self._message(socket)
            waited += clock() - begun
            if samples is None:
                break
            taken += len(samples) // SAMPLE_BYTES
            if most is not None and taken > most * rate:
                raise _Closing(TOO_LARGE, f"This lasts longer than {most:g} s, the most that is heard.")
            # Silence is samples too: a speaker sends a second of them each second.
            if waited > 2 * (taken / rate + limits.seconds):
                raise _Closing(AGAINST_THE_RULES, "Sound comes more slowly than time goes by.")
            async with asyncio.timeout(limits.work_seconds):
                await recognition.tell(samples)
        async with asyncio.timeout(limits.work_seconds):
            await recognition.tell(b"")
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        raise WebSocketDisconnect

    async def _message(self, socket: WebSocket) -> bytes | None:
        """Receive the next samples; return None if no more come."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                ended, message = await _first(socket.receive(), self._ended.wait())
        except TimeoutError:
            raise _Closing(AGAINST_THE_RULES, f"Nothing has come for {self.limits.seconds:g} s.") from None
        if ended:
            return None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        samples: bytes | None = message.get("bytes")
        if samples is None:
            if is_end(message["text"]):
                return None
            raise _Closing(AGAINST_THE_RULES, 'Send samples, or {"type": "end"}.')
        if len(samples) % SAMPLE_BYTES:
            raise _Closing(BROKEN, "A message ends within a sample of 16 bits.")
        return samples


@final
@dataclass
class _Body:
    """The body of a request, in a file, and the number of its bytes."""

    file: IO[bytes]
    size: int = 0


@final
class _Transcription(Response):
    """The reply to a form, made while the client is connected."""

    def __init__(self, endpoint: Endpoint, kind: str) -> None:
        super().__init__()
        self._endpoint, self._kind = endpoint, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._endpoint.body() as body:
            await self._endpoint.receive(Request(scope, receive), body)
            reply = _Sending(send, self._endpoint.limits.seconds)
            await self._endpoint.transcribe(self._kind, body, receive, reply)


@final
class _Sending:
    """A reply that is sent piece by piece, to a client that must take it in time."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds, self._kind = send, seconds, ""

    async def begin(self, status: int, kind: str, length: int | None) -> None:
        self._kind = kind
        headers = [(b"content-type", kind.encode())]
        headers += [] if length is None else [(b"content-length", str(length).encode())]
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def piece(self, data: bytes, *, more: bool = True) -> None:
        await self._sent({"type": "http.response.body", "body": data, "more_body": more})

    async def broken_off(self, why: Refused) -> None:
        """End the reply with an error, in a form that still fits what was sent."""
        if not self._kind:
            raise why
        if self._kind != EVENT_STREAM:
            raise ConnectionError
        await self.piece(event({"type": "error", "error": {"message": str(why)}}), more=False)

    async def _sent(self, message: Message) -> None:
        await in_time(self._send(message), self._seconds)


async def _passed_on(recognition: Recognition, reply: _Sending) -> None:
    while (told := await recognition.told())[0] != END:
        if told[0] == REPLY_HEAD:
            await reply.begin(**json.loads(told[1]))
        else:
            await reply.piece(told[1])
    await reply.piece(b"", more=False)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_time(sending: Awaitable[None], seconds: float) -> None:
    """Await the sending of a message, for at most `seconds`.

    Raises:
        ConnectionError: the client does not take it in time.
    """
    try:
        await asyncio.wait_for(sending, seconds)
    except TimeoutError:
        raise ConnectionError from None


async def _first(*several: Awaitable[Any]) -> tuple[int, Any]:
    """Wait for the first of several awaitables, and cancel the others; return its place and its result."""
    tasks = [asyncio.ensure_future(one) for one in several]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next((place, task.result()) for place, task in enumerate(tasks) if not task.cancelled())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_ALWAYS]
        await send(message)

    return sending


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, media_type=reply.kind)


async def _refused(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    return _response(refusal(refused))


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = f"Nothing is here; POST a recording to {ENDPOINT}."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        why = f"{request.url.path} is for {(error.headers or {}).get('Allow', 'others')}."
    return _response(refusal(Refused(HTTPStatus(error.status_code), why)))


async def _failed(_: Request, error: Exception) -> Response:
    return _response(refusal(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "The server has failed; its output says why.")))
