"""Recognition as the server sees it: each recording, and each person who speaks, has a process, which ends with its
answer, when no client waits any more, or when its time is over."""

import asyncio
import json
import multiprocessing
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.core.files import json_line
from roundelay.core.script import SpawnWithoutScript, of_the_script
from roundelay_speech.data.processes import one_thread_each
from roundelay_speech.transcription.serving.forking import MOST_TOLD, ForkedWorker, parent_of_forks

_LENGTH = struct.Struct("!i")  # as multiprocessing.connection has it
_NOT_BEGUN = "The model could not be loaded. Its output above says why."


class Died(Exception):
    """The process of a recognition has ended without an answer."""


@final
class Recognition:
    """A process that recognises, and messages to and from it: a byte for the kind, and the rest."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def tell(self, payload: bytes) -> None:
        """Send a message to the process, once there is room for it.

        Raises:
            Died: the process has ended.
        """
        try:
            self._writer.write(_LENGTH.pack(len(payload)) + payload)
            await self._writer.drain()
        except OSError:
            raise Died from None

    async def told(self) -> tuple[bytes, bytes]:
        """Receive the next message from the process: its first byte and the rest.

        Raises:
            Died: the process has ended without one.
        """
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            payload = await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            raise Died from None
        return payload[:1], payload[1:]


@final
class Recognisers:
    """The recognisers of a server, in processes of their own.

    Args:
        make: makes the recogniser in a new process: a function of a module, with its arguments.

    Attributes:
        facts: facts of the model.
    """

    def __init__(self, make: Callable[[], ForkedWorker]) -> None:
        self._make = make
        self._context = multiprocessing.get_context("spawn") if of_the_script(make) else SpawnWithoutScript()
        self._start()
        try:
            self._asked.setblocking(True)
            self.facts = _facts(self._asked.recv(MOST_TOLD))
            self._asked.setblocking(False)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.setblocking(False)
        arguments = (self._make, theirs, os.getpid())
        self._process = self._context.Process(target=parent_of_forks, args=arguments, name="recognition", daemon=True)
        try:
            # One thread each: forks of a process of several would inherit locks that are never released.
            with one_thread_each():
                self._process.start()
        finally:
            theirs.close()

    @property
    def process_id(self) -> int:
        """Id of the process that has loaded the model."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        """End all processes, also those at work."""
        self._asked.close()
        self._process.kill()
        self._process.join()

    @asynccontextmanager
    async def recognition(self, asked: Mapping[str, Any], file: int | None = None) -> AsyncGenerator[Recognition, None]:
        """Start a process that does the work of a request; it ends with the block.

        Args:
            asked: the argument of `ForkedWorker.work`.
            file: a descriptor for the process.

        Raises:
            Died: the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(json_line(asked).encode(), [theirs.fileno(), *([] if file is None else [file])])
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            yield Recognition(reader, writer)
        finally:
            writer.transport.abort()

    def _send(self, told: bytes, descriptors: list[int]) -> None:
        for again in (True, False):
            try:
                socket.send_fds(self._asked, [told], descriptors)
                return
            except OSError as error:
                if isinstance(error, BlockingIOError) or not again:
                    raise Died from None
                # It was killed, and all that it had forked with it. The next one is told now, and will hear of it.
                self.close()
                self._start()


def _facts(told: bytes) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads(told) if told else {"problem": _NOT_BEGUN}
    if "problem" in facts:
        raise UserError(facts["problem"])
    return facts
