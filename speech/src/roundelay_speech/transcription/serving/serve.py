"""Serves until a signal ends it: SIGINT or SIGTERM, also where a shell has started it in the background with SIGINT
ignored."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast, final

import uvicorn

from roundelay.core.errors import UserError
from roundelay_speech.transcription.serving.connections import MOST_HEAD, protocols
from roundelay_speech.transcription.serving.endpoint import MESSAGE_BYTES, Endpoint

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.0
"""Seconds that what is at hand has at the end."""


@final
class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: `serve` answers them, where it runs in the main thread."""
        yield


def server_of(endpoint: Endpoint) -> uvicorn.Server:
    """Return Uvicorn for an endpoint; `should_exit` ends it."""
    http, messages = protocols(endpoint.limits)
    config = uvicorn.Config(
        endpoint,
        http=cast(type[asyncio.Protocol], http),
        ws=messages,
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,  # what is small when packed may be large
        ws_ping_interval=None,  # who sends nothing is not waited for, and answers no ping
        h11_max_incomplete_event_size=2 * MOST_HEAD,
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # it tells of every client that hangs up; defects are told by the endpoint
        access_log=False,
        proxy_headers=False,  # an address that a client may give itself
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


def listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host.

    Args:
        port: 0 for any that is free.

    Raises:
        UserError: the address cannot be listened on.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            sockets.append(socket.create_server(where, family=family, backlog=256))
            port = port or sockets[0].getsockname()[1]
    except OSError as error:
        for one in sockets:
            one.close()
        raise UserError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}). Give another --port, or "
            "end what uses it."
        ) from None
    return sockets


def serve(
    endpoint: Endpoint,
    sockets: Sequence[socket.socket],
    ready: Callable[[int], None],
    remark: Callable[[str], None],
    kill: Callable[[], None],
) -> signal.Signals:
    """Serve until a signal comes, which is returned. What is at hand has some seconds to be answered, then it is ended
    and told so. A second signal ends the process at once.

    Args:
        sockets: that listen.
        ready: told the port.
        remark: told what is waited for.
        kill: ends all processes that recognise.
    """
    ended: list[signal.Signals] = []

    async def until_a_signal() -> None:
        server, loop, signalled = server_of(endpoint), asyncio.get_running_loop(), asyncio.Event()

        def end(number: signal.Signals) -> None:
            if ended:
                kill()
                os._exit(128 + number)
            ended.append(number)
            if endpoint.at_hand:
                remark(f"ending; {endpoint.at_hand} has {PATIENCE:g} s. The same again ends it at once.")
            endpoint.end()
            signalled.set()

        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, end, number)
        serving = asyncio.create_task(server.serve(list(sockets)))
        ready(sockets[0].getsockname()[1])
        await asyncio.wait([serving, asyncio.ensure_future(signalled.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            for one in server.servers:
                one.close()
            await endpoint.finished(PATIENCE)
            server.should_exit = True
            await asyncio.wait([serving], timeout=2.0)
        if serving.done():
            serving.result()

    try:
        asyncio.run(until_a_signal())
    finally:
        for one in sockets:
            one.close()
    return ended[0]
