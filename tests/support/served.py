"""A server of recordings, in a thread of the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from roundelay.transcription.serving.http import Answer, Limits, listen
from roundelay.transcription.serving.replies import refusal


@contextmanager
def served(answer: Answer, limits: Limits) -> Iterator[int]:
    """The port it listens on, on 127.0.0.1; it ends with the block."""
    loop, ports = asyncio.new_event_loop(), list[int]()
    ready = threading.Event()

    def told(port: int) -> None:
        ports.append(port)
        ready.set()

    task = loop.create_task(listen("127.0.0.1", 0, limits, answer, refusal, told))

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30)
    yield ports[0]
    loop.call_soon_threadsafe(task.cancel)
    thread.join(30)
    assert not thread.is_alive()
