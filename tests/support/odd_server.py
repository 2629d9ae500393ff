"""A web server on this machine that does what a test tells it: one answer for each request, the last one for ever."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class OddServer:
    """A server: where it listens, what it is to answer, and the headers of the requests it had."""

    address: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[Mapping[str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str = "file.bin") -> str:
        return f"{self.address}/{name}"


@contextmanager
def odd_server() -> Iterator[OddServer]:
    """Run a server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(dict(self.headers.items()))
            state.released.set()  # a new request: whoever stalls the last one may go home
            state.released = threading.Event()
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = OddServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _begin(handler: BaseHTTPRequestHandler, status: int, length: int | None, headers: Mapping[str, str]) -> None:
    handler.send_response(status)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()


def whole(data: bytes, **headers: str) -> Answer:
    """Return an answer with all of `data`, for any range that is asked for."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, 200, len(data), headers)
        handler.wfile.write(data)

    return answer


def truncated(data: bytes, at: int, **headers: str) -> Answer:
    """Return an answer that announces all of `data` and ends after `at` bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, 200, len(data), headers)
        handler.wfile.write(data[:at])

    return answer


def stalled(server: OddServer, data: bytes, at: int, **headers: str) -> Answer:
    """Return an answer that stops after `at` bytes, until the next request or the end of the test."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        released = server.released
        _begin(handler, 200, len(data), headers)
        handler.wfile.write(data[:at])
        handler.wfile.flush()
        released.wait(60)

    return answer


def ranged(data: bytes, etag: str, at: int | None = None, claimed: int = 0) -> Answer:
    """Return an answer by the standard: the range, unless If-Range names another version; ends after `at` bytes if
    given.

    `claimed` is added to the range that the answer says it is.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if asked is None or handler.headers.get("If-Range", etag) != etag:
            return truncated(data, len(data) if at is None else at, ETag=etag)(handler)
        first = int(asked[1])
        if first >= len(data):
            return _begin(handler, 416, 0, {"Content-Range": f"bytes */{len(data)}"})
        content = {"Content-Range": f"bytes {first + claimed}-{len(data) - 1}/{len(data)}", "ETag": etag}
        _begin(handler, 206, len(data) - first, content)
        handler.wfile.write(data[first : None if at is None else first + at])
        return None

    return answer


def refusing(status: int) -> Answer:
    """Return an answer with the error `status`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, status, 0, {})

    return answer
