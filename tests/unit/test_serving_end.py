"""A server ends at a signal, whether or not a shell had it ignored, and whatever it does: what is at hand is answered
or told, and nothing is left behind, not even where it is killed outright."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay_speech.transcription.serving import serve as module
from roundelay_speech.transcription.serving.endpoint import LIVE, Endpoint
from roundelay_speech.transcription.serving.recognisers import Recognisers
from roundelay_speech.transcription.serving.serve import ENDING_SIGNALS, listening, serve
from support.held import RATE, asked, begun, form
from support.preloaded import environment
from support.processes import alive
from support.recogniser import tones
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


@pytest.fixture(autouse=True)
def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def ended(
    recognisers: Recognisers, clients: Callable[[int], None], endpoint: Endpoint | None = None
) -> tuple[signal.Signals, list[str]]:
    """The signal that ends a server whose clients do this in a thread of their own, and its remarks."""
    remarks, threads = list[str](), list[threading.Thread]()

    def ready(port: int) -> None:
        threads.append(threading.Thread(target=clients, args=[port]))
        threads[0].start()

    endpoint = endpoint or Endpoint(recognisers, "held")
    number = serve(endpoint, listening("127.0.0.1", 0), ready, remarks.append, lambda: None)
    threads[0].join(60)
    return number, remarks


@pytest.mark.parametrize(("number", "answered"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_what_is_at_hand_is_answered_or_told(
    recognisers: Recognisers, folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, answered: bool
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 60.0 if answered else 0.1)
    reply: list[Future[tuple[int, str]]] = []

    def clients(port: int) -> None:
        reply.append(pool.submit(asked, port))
        until(lambda: bool(begun(folder)))
        signal.raise_signal(number)
        if answered:
            (folder / "go_on").touch()

    with ThreadPoolExecutor() as pool:
        found, (remark,) = ended(recognisers, clients)
        ending = (503, "The server is ending. Ask it again once it is back.")
        assert reply[0].result(60) == ((200, "LOW TOP") if answered else ending)
    assert found is number
    assert remark.startswith("ending; what is at hand has ")
    until(lambda: not any(map(alive, begun(folder))))


def test_who_speaks_is_heard_to_the_end(recognisers: Recognisers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what came before the signal: a word after which nobody was silent yet."""
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    told = list[tuple[list[dict[str, Any]], int, str]]()

    def speak(port: int) -> None:
        with speaking(port, LIVE) as client:
            word = np.round(32767 * tones(["LOW"], RATE)[: round(1.7 * RATE)])
            client.send(BYTES, word.astype("<i2").tobytes())
            while json.loads(client.frame()[1])["at"] < 1.65:
                pass
            signal.raise_signal(signal.SIGINT)
            told.append(client.told())

    number, remarks = ended(recognisers, speak)
    assert number is signal.SIGINT
    ((events, code, why),) = told
    assert [event["type"] for event in events[-2:]] == ["transcript.text.segment", "transcript.text.done"]
    assert (events[-1]["text"], code, why) == ("LOW", 1001, "The server is ending.")
    assert remarks == ["ending; what is being said has 60 s. The same again ends it at once."]


def test_a_client_that_asks_nothing_is_not_waited_for(recognisers: Recognisers) -> None:
    """One that is silent, and one that has not said all."""
    links, endpoint = list[socket.socket](), Endpoint(recognisers, "held")

    def connect(port: int) -> None:
        for sent in (b"", b"GET / HT", b"POST /v1/audio/transcriptions HTTP/1.1\r\nContent-Length: 9\r\n\r\n1"):
            links.append(socket.create_connection(("127.0.0.1", port), 60))
            links[-1].sendall(sent)
        asked(port, ["LOW"])  # connections are taken in turn
        until(lambda: not endpoint.at_hand)  # its answer is here before it is over there
        signal.raise_signal(signal.SIGTERM)

    assert ended(recognisers, connect, endpoint) == (signal.SIGTERM, [])
    for link in links:
        with link:
            while link.recv(1 << 16):
                pass


SERVER = """
import sys
from functools import partial
from pathlib import Path
from roundelay_speech.transcription.serving.endpoint import Endpoint
from roundelay_speech.transcription.serving import serve as module
from roundelay_speech.transcription.serving.recognisers import Recognisers
from roundelay_speech.transcription.serving.serve import listening, serve
from support.held import held_worker
module.PATIENCE = 60.0
say = lambda text: print(text, flush=True)
if __name__ == "__main__":
    recognisers = Recognisers(partial(held_worker, Path(sys.argv[1])))
    say(recognisers.process_id)
    serve(Endpoint(recognisers, "held"), listening("127.0.0.1", 0), say, say, recognisers.close)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_server_that_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """By a second signal, or killed: no process and no file, neither of a form at hand nor of one that comes."""
    folder, kept = tmp_path / "held", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    with (
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment(TMPDIR=kept)
        ) as server,
        ThreadPoolExecutor() as pool,
    ):
        try:
            assert server.stdout is not None
            loaded, port = (int(server.stdout.readline()) for _ in range(2))
            reply = pool.submit(asked, port)
            until(lambda: bool(begun(folder)))
            with socket.create_connection(("127.0.0.1", port), 60) as link:
                body, headers = form(["LOW"])
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n{lines}"
                link.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-9])
                if number is signal.SIGTERM:
                    server.send_signal(signal.SIGINT)
                    assert server.stdout.readline().startswith("ending; what is at hand")
                server.send_signal(number)
                assert server.wait(60) == (143 if number is signal.SIGTERM else -9)
        finally:
            server.kill()
        assert isinstance(reply.exception(60), OSError)
    until(lambda: not any(map(alive, [loaded, *begun(folder)])))
    assert list(kept.iterdir()) == []


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} cannot be listened on"):
            listening("127.0.0.1", port)
