"""A server ends at a signal, whether or not a shell had it ignored: the recording at hand is answered, those that wait
are told, and nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.transcription.serving.endpoint import LIVE, Endpoint, Service
from roundelay.transcription.serving.http import Limits
from roundelay.transcription.serving.serve import ENDING_SIGNALS, ServingPlace, serve
from roundelay.transcription.transcribing import Options
from support.held import RATE, HeldRecogniser, asked
from support.recogniser import ToneRecogniser, listen, tones
from support.until import until
from support.websocket import BYTES, speaking


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As in a process that a shell has started in the background: SIGINT is ignored."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_requests_at_hand_are_answered_or_told(number: signal.Signals, tmp_path: Path) -> None:
    model, remarks = HeldRecogniser(), list[str]()
    endpoint = Endpoint(Service(model, "held", Options(), listen(RATE), folder=tmp_path))
    replies: list[Future[tuple[int, str]]] = []

    def clients(port: int) -> None:
        replies.append(pool.submit(asked, port))
        model.begun.wait(60)
        replies.append(pool.submit(asked, port))
        until(lambda: endpoint.waiting == 2)
        signal.raise_signal(number)
        until(lambda: bool(remarks))
        model.go_on.set()

    with ThreadPoolExecutor() as pool:
        place = ServingPlace("127.0.0.1", 0, Limits(seconds=60), tmp_path)
        begin = threading.Thread
        assert serve(endpoint, place, lambda port: begin(target=clients, args=[port]).start(), remarks.append) is number
        found = [reply.result(60) for reply in replies]
    assert found == [(200, "LOW"), (503, "The server is ending. Ask it again once it is back.")]
    assert remarks == ["ending once the recording at hand is recognised; the same again ends it at once."]
    assert list(tmp_path.iterdir()) == []


def test_who_speaks_is_heard_to_the_end(tmp_path: Path) -> None:
    """Of what came before the signal: a word after which nobody was silent yet."""
    endpoint = Endpoint(Service(ToneRecogniser(RATE), "tones", Options(), listen(RATE)))
    remarks, told = list[str](), list[tuple[list[dict[str, Any]], int, str]]()

    def speak(port: int) -> None:
        with speaking(port, LIVE) as client:
            word = np.round(32767 * tones(["LOW"], RATE)[: round(1.7 * RATE)])
            client.send(BYTES, word.astype("<i2").tobytes())
            while json.loads(client.frame()[1])["at"] < 1.65:
                pass
            signal.raise_signal(signal.SIGINT)
            told.append(client.told())

    place, begin = ServingPlace("127.0.0.1", 0, Limits(seconds=60), tmp_path), threading.Thread
    speaker = list[threading.Thread]()

    def ready(port: int) -> None:
        speaker.append(begin(target=speak, args=[port]))
        speaker[0].start()

    assert serve(endpoint, place, ready, remarks.append) is signal.SIGINT
    speaker[0].join(60)
    ((events, code, why),) = told
    assert [event["type"] for event in events[-2:]] == ["transcript.text.segment", "transcript.text.done"]
    assert (events[-1]["text"], code, why) == ("LOW", 1001, "The server is ending.")
    assert remarks == ["ending once what is being said is recognised; the same again ends it at once."]


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_whoever_asks_nothing_is_not_waited_for(number: signal.Signals, tmp_path: Path) -> None:
    """A client has connected and is silent, which it may be for an hour."""
    endpoint = Endpoint(Service(ToneRecogniser(RATE), "tones", Options(), listen(RATE)))
    links, remarks = list[socket.socket](), list[str]()

    def connect(port: int) -> None:
        links.append(socket.create_connection(("127.0.0.1", port), 60))
        asked(port)  # connections are taken in turn
        signal.raise_signal(number)

    place = ServingPlace("127.0.0.1", 0, Limits(seconds=3600), tmp_path)
    begin = threading.Thread
    assert serve(endpoint, place, lambda port: begin(target=connect, args=[port]).start(), remarks.append) is number
    with links[0] as link:
        assert link.recv(1) == b""
    assert remarks == []


SERVER = """
import sys
from pathlib import Path
from roundelay.transcription.serving.endpoint import Endpoint, Service
from roundelay.transcription.serving.http import Limits
from roundelay.transcription.serving.serve import ServingPlace, serve
from roundelay.transcription.transcribing import Options
from support.held import HeldRecogniser
from support.recogniser import listen
folder = Path(sys.argv[1])
say = lambda text: print(text, flush=True)
endpoint = Endpoint(Service(HeldRecogniser(), "held", Options(), listen(8000), folder=folder))
serve(endpoint, ServingPlace("127.0.0.1", 0, Limits(), folder), say, say)
"""


def test_a_second_signal_ends_it_at_once_and_leaves_no_recording(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    command = [sys.executable, "-c", SERVER, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server,
        ThreadPoolExecutor() as pool,
    ):
        try:
            assert server.stdout is not None
            reply = pool.submit(asked, int(server.stdout.readline()))
            until(lambda: any(folder.iterdir()))
            server.send_signal(signal.SIGINT)
            assert server.stdout.readline().startswith("ending once")
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 128 + signal.SIGTERM
        finally:
            server.kill()
        assert isinstance(reply.exception(60), OSError)
    assert not folder.exists()


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoint = Endpoint(Service(ToneRecogniser(RATE), "tones", Options(), listen(RATE)))
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} cannot be listened on"):
            serve(endpoint, ServingPlace("127.0.0.1", port, Limits(), tmp_path), print, print)
