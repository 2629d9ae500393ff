"""Words while somebody speaks, over a connection: samples in one direction, words in the other.

The client sends messages of 16-bit samples of one channel, lowest byte first, and at the end the text
`{"type": "end"}`. It is sent texts of JSON: `transcript.text.partial`, the words so far of what is being said;
`transcript.text.segment`, its final words, with times and confidences; and at the end `transcript.text.done`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np

from roundelay.core.files import json_line
from roundelay.core.parsing import parse_json
from roundelay.speech.audio.reading import Samples
from roundelay.speech.audio.speed import Resampler
from roundelay.transcription.formats.timed import as_segment
from roundelay.transcription.live import Listening, Update
from roundelay.transcription.serving.websocket import (
    AGAINST_THE_RULES,
    BROKEN,
    GOING_AWAY,
    NORMAL,
    TOO_LARGE,
    Closing,
    WebSocket,
)

Step = Callable[[Callable[[], list[Update]]], Awaitable[list[Update]]]
"""Runs a call that takes time, one at a time."""
_WIDTH = 2  # bytes of a sample


@final
@dataclass
class Speaker:
    """Somebody who speaks over a WebSocket.

    Attributes:
        listening: the recogniser, of nobody else.
        rate: of the samples that come, Hz.
        most_seconds: of speech.
        step: see `Step`.
    """

    listening: Listening
    rate: int
    most_seconds: float
    step: Step
    _said: list[str] = field(default_factory=list)

    async def talk(self, socket: WebSocket, ended: asyncio.Event) -> None:
        """Until the client ends or is gone, or the server ends: then what came is recognised to its end."""
        code, why = NORMAL, ""
        try:
            await self._listen(socket, ended)
            code, why = (GOING_AWAY, "The server is ending.") if ended.is_set() else (NORMAL, "")
        except Closing as closing:
            code, why = closing.code, str(closing)
            await self._tell(socket, {"type": "error", "error": {"message": why}})
        await socket.close(code, why)

    async def _listen(self, socket: WebSocket, ended: asyncio.Event) -> None:
        resampler, taken = Resampler(self.rate, self.listening.sample_rate), 0
        while (samples := await self._samples(socket, ended)) is not None:
            taken += len(samples)
            if taken > self.most_seconds * self.rate:
                raise Closing(TOO_LARGE, f"This lasts longer than {self.most_seconds:g} s, the most that is heard.")
            await self._hear(socket, partial(self.listening.push, resampler.push(samples)))
        await self._hear(socket, partial(self.listening.push, resampler.finish()))
        await self._hear(socket, self.listening.finish)
        seconds = round(taken / self.rate, 3)
        await self._tell(
            socket, {"type": "transcript.text.done", "text": " ".join(filter(None, self._said)), "duration": seconds}
        )

    async def _samples(self, socket: WebSocket, ended: asyncio.Event) -> Samples | None:
        """The next samples; None where no more come."""
        coming, ending = asyncio.ensure_future(socket.receive()), asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return None
            message = coming.result()
        finally:
            coming.cancel()
            ending.cancel()
        if message is None or (isinstance(message, str) and _kind(message) == "end"):
            return None
        if isinstance(message, str):
            raise Closing(AGAINST_THE_RULES, 'Send samples, or {"type": "end"}.')
        if len(message) % _WIDTH:
            raise Closing(BROKEN, "A message ends within a sample of 16 bits.")
        return np.frombuffer(message, "<i2").astype(np.float32) / np.float32(32768)

    async def _hear(self, socket: WebSocket, call: Callable[[], Iterable[Update]]) -> None:
        for update in await self.step(lambda: list(call())):
            if update.final:
                await self._tell(
                    socket, {"type": "transcript.text.segment", **as_segment(len(self._said), update.segment)}
                )
                self._said.append(update.segment.text)
            else:
                await self._tell(
                    socket, {"type": "transcript.text.partial", "at": round(update.at, 3), "text": update.segment.text}
                )

    async def _tell(self, socket: WebSocket, event: dict[str, Any]) -> None:
        await socket.send(json_line(event))


def _kind(message: str) -> object:
    try:
        told = parse_json(message)
    except ValueError:
        return None
    return told.get("type") if isinstance(told, dict) else None
