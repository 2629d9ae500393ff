"""A server of recordings, in a thread of the test; its recognisers have processes of their own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roundelay_speech.transcription.serving.endpoint import Endpoint
from roundelay_speech.transcription.serving.forking import ForkedWorker
from roundelay_speech.transcription.serving.recognisers import Recognisers
from roundelay_speech.transcription.serving.serve import listening, server_of
from roundelay_speech.transcription.serving.wanted import USUAL_LIMITS, Limits
from roundelay_speech.transcription.serving.work import Recognising
from roundelay_speech.transcription.transcribing import Options
from support.recogniser import TONES, ToneRecogniser, listen
from support.until import until


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    endpoint: Endpoint
    recognisers: Recognisers


def tone_worker(rate: int = 8000) -> Recognising:
    """Return a worker that recognises tones, in recordings of 20 s at most."""
    options = Options(most_seconds=20)
    return Recognising(ToneRecogniser(rate), options, listen(rate), sorted(TONES))


@contextmanager
def serving(recognisers: Recognisers, limits: Limits) -> Iterator[Served]:
    """Run a server on 127.0.0.1 while the body lasts."""
    endpoint = Endpoint(recognisers, "tones", limits)
    sockets, server = listening("127.0.0.1", 0), server_of(endpoint)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets)))
    thread.start()
    try:
        until(lambda: server.started)
        yield Served(sockets[0].getsockname()[1], endpoint, recognisers)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def recognising(make: Callable[[], ForkedWorker] = tone_worker) -> Iterator[Recognisers]:
    """Run processes that recognise while the body lasts."""
    recognisers = Recognisers(make)
    try:
        yield recognisers
    finally:
        recognisers.close()


@contextmanager
def served(make: Callable[[], ForkedWorker] = tone_worker, limits: Limits = USUAL_LIMITS) -> Iterator[Served]:
    """Run a server with its processes that recognise while the body lasts."""
    with recognising(make) as recognisers, serving(recognisers, limits) as found:
        yield found
