"""Requests of strangers: whatever a form, a sound or a connection is, others are answered, work that nobody waits for
is ended, and nothing is printed."""

import io
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from roundelay_speech.transcription.serving.endpoint import ENDPOINT, LIVE, MODELS
from roundelay_speech.transcription.serving.recognisers import Recognisers
from roundelay_speech.transcription.serving.wanted import USUAL_LIMITS
from support.asking import Server, message
from support.held import RATE, asked, begun, form
from support.processes import alive
from support.recogniser import tones
from support.served import Served, serving
from support.until import until
from support.websocket import BYTES, speaking

LIMITS = replace(USUAL_LIMITS, body=2_000_000, bodies=3_000_000, of_an_address=12, head_seconds=3600, body_seconds=3600)


@pytest.fixture
def server(recognisers: Recognisers, folder: Path) -> Iterator[Served]:
    """Recordings of two words hang."""
    for path in folder.iterdir():
        path.unlink()
    with serving(recognisers, LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def sound() -> bytes:
    """A recording that says LOW."""
    buffer = io.BytesIO()
    soundfile.write(buffer, tones(["LOW"], RATE), RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


# Forms --------------------------------------------------------------------------------------------------------------

FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"'
TYPE = "multipart/form-data; boundary=b"


def parts(*heads: bytes, sound: bytes) -> bytes:
    """A form of parts that all hold the sound."""
    return b"".join(b"--b\r\n" + head + b"\r\n\r\n" + sound + b"\r\n" for head in heads) + b"--b--\r\n"


def asks(server: Served, body: bytes, kind: str = TYPE) -> tuple[int, str]:
    """Status, and words or the error."""
    status, _, said = Server(server.port).ask("POST", ENDPOINT, body, Content_Type=kind)
    told = json.loads(said)
    return status, told["text"] if "text" in told else told["error"]["message"]


@pytest.mark.parametrize(
    "head",
    [
        FILE,
        FILE + b"\r\nContent-Type: audio/wav\r\nContent-Transfer-Encoding: binary",
        b"content-disposition:form-data;name=file;filename=../../etc/passwd",
        b'Content-Disposition: form-data; filename="a;name=\\"b\\".wav"; name="file"',
        b'Content-Disposition: form-data; name="file"; filename="a.wav"; filename*=UTF-8\'\'b.wav',
        b'X: y\r\nContent-Disposition: form-data; name="file"; filename="\xff\x00.wav"',
        FILE + b"; x=y" * 500,
    ],
)
def test_a_form_may_be_written_in_many_ways(server: Served, sound: bytes, head: bytes) -> None:
    other = b'--b\r\nContent-Disposition: form-data; name="response_format"\r\n\r\njson\r\n'
    assert asks(server, other + parts(head, sound=sound)) == (200, "LOW")


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_a_form_may_come_in_chunks_that_end_anywhere(server: Served, sound: bytes, chunk: int) -> None:
    body = parts(FILE, sound=sound[:2044] + b"\r\n--b\r--\r\n--c" + sound[2056:])
    head = f"POST {ENDPOINT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
    cut = [body[at : at + chunk] for at in range(len(body) - 600 if chunk == 1 else 0, len(body), chunk)]
    first = body[: len(body) - sum(map(len, cut))]
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(head.encode())
        for piece in filter(None, [first, *cut]):
            link.sendall(f'{len(piece):X};odd="a;b"\r\n'.encode() + piece + b"\r\n")
        link.sendall(b"0\r\nTrailer: x\r\n\r\n")
        assert link.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"", TYPE, "no `file`"),
        (b"--b--\r\n", TYPE, "no `file`"),
        (b"nothing of the kind", TYPE, "broken"),
        (parts(FILE, sound=b"x" * 99)[:-40], TYPE, "no `file`"),
        (parts(b'Content-Disposition: form-data; name="file"', sound=b"x"), TYPE, "without a file name"),
        (parts(b"Content-Disposition: form-data", sound=b"x"), TYPE, "must be provided"),
        (parts(b"X: y", sound=b"x"), TYPE, "must be provided"),
        (parts(FILE, FILE, sound=b"x"), TYPE, "Too many files"),
        (parts(FILE + b"\r\nContent-Transfer-Encoding: base64", sound=b"x"), TYPE, "Transfer-Encoding"),
        (parts(*[b'Content-Disposition: form-data; name="x"'] * 33, sound=b"x"), TYPE, "Too many fields"),
        (parts(b'Content-Disposition: form-data; name="x"', sound=bytes(70_000)), TYPE, "maximum size"),
        (parts(*[b"Content-Disposition: form-data"] * 9000, sound=b""), TYPE, "must be provided"),
        (parts(b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + FILE, sound=b"x"), TYPE, "broken"),
        (parts(FILE, sound=b"x"), "multipart/form-data", "boundary"),
        (parts(FILE, sound=b"x"), "multipart/form-data; boundary=", "broken"),
        (parts(FILE, sound=b"x"), "multipart/form-data; boundary=" + "b" * 9000, "broken"),
        (parts(FILE, sound=b"x"), "multipart/form-data; boundary=c", "broken"),
        (parts(FILE, sound=b"x"), TYPE + "; charset=idna", "The recording"),
        # Each of these once froze the server for good.
        (parts(FILE + b";" * 40_000, sound=b"x"), TYPE, "broken"),
        (parts(FILE + b"; x=y" * 200_000, sound=b"x"), TYPE, "broken"),
        (parts(b"Content-Disposition: form-data; name=" + b"(" * 1000, sound=b"x"), TYPE, "no `file`"),
        (parts(b"Content-Disposition: form-data; name=" + b"(" * 90_000, sound=b"x"), TYPE, "broken"),
        (parts(FILE, sound=b"\r\n--" * 200_000), TYPE, "The recording"),
        (b"--b\r" * 300_000, TYPE, "broken"),
        (b"\r\n" * 900_000, TYPE, "no `file`"),
        (parts(FILE, sound=b"x"), "multipart/form-data" + ";" * 20_000, "boundary"),
        (parts(FILE, sound=b"x"), "multipart/form-data; boundary=" + '"' + "\\" * 20_000, "broken"),
    ],
)
def test_a_broken_form_is_refused(server: Served, body: bytes, kind: str, why: str) -> None:
    """Also one that comes from any page: and the server is there for others."""
    status, told = asks(server, body, kind)
    assert (status, why in told) == (400, True), told
    assert "/" not in told.replace("multipart/form-data", "")
    until(lambda: not server.endpoint.recordings)


# Recognition --------------------------------------------------------------------------------------------------------


def hangs(server: Served, folder: Path) -> tuple[socket.socket, int]:
    """Somebody who waits for a recognition that never ends, and its process."""
    before = set(begun(folder))
    body, headers = form(["LOW", "TOP"])
    link = socket.create_connection(("127.0.0.1", server.port), 60)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {ENDPOINT} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    link.sendall(head.encode() + body)
    until(lambda: bool(set(begun(folder)) - before))
    (process,) = set(begun(folder)) - before
    return link, process


def test_a_recognition_that_hangs_stops_no_other(server: Served, folder: Path) -> None:
    """And it ends when its client hangs up."""
    waiting = [hangs(server, folder) for _ in range(LIMITS.recordings - 1)]
    assert asked(server.port, ["LOW"]) == (200, "LOW")
    with speaking(server.port, LIVE) as client:
        client.end()
        assert client.told()[1] == 1000
    waiting.append(hangs(server, folder))
    assert asked(server.port, ["LOW"]) == (503, "Too many recordings are waiting. Try again later.")
    for link, process in waiting:
        assert alive(process)
        link.close()
    until(lambda: not any(alive(process) for _, process in waiting))
    until(lambda: not server.endpoint.recordings)
    assert asked(server.port, ["LOW"]) == (200, "LOW")


def test_a_recognition_has_its_time(recognisers: Recognisers, folder: Path) -> None:
    with serving(recognisers, replace(LIMITS, work_seconds=0.5)) as server:
        status, why = asked(server.port)
    assert (status, why) == (422, "The recognition took longer than 0.5 s, and was ended.")
    until(lambda: not any(map(alive, begun(folder))))


def test_a_speaker_who_hangs_up_leaves_no_process(server: Served) -> None:
    with speaking(server.port, LIVE) as client:
        client.send(BYTES, bytes(2000))
        assert server.endpoint.speakers == 1
    until(lambda: not server.endpoint.speakers)


# Connections --------------------------------------------------------------------------------------------------------

POST = f"POST {ENDPOINT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\nContent-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nX: ", POST, POST + "--b\r\n"])
def test_slow_clients_keep_nobody_out(server: Served, sent: str) -> None:
    """Those who send little give way to those who come."""
    links = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(3 * LIMITS.of_an_address)]
    for link in links:
        with suppress(OSError):  # it has given way
            link.sendall(sent.encode())
    for _ in range(3):
        assert asked(server.port, ["LOW"]) == (200, "LOW")
    for link in links:
        link.close()


def test_all_bodies_together_have_a_bound(server: Served) -> None:
    """Two of a million and a half bytes are one too many; then there is room again."""
    sent = POST.replace("1000000", "1900000").encode() + bytes(1_600_000)
    with socket.create_connection(("127.0.0.1", server.port), 60) as first:
        first.sendall(sent)
        until(lambda: server.endpoint.held == 1_600_000)
        with socket.create_connection(("127.0.0.1", server.port), 60) as second:
            second.sendall(sent)
            assert second.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
        assert server.endpoint.held == 1_600_000
    until(lambda: server.endpoint.held == 0)


def test_a_client_may_hang_up_at_any_time(server: Served, sound: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """By an end, or by a reset: nothing is printed of it."""
    body = parts(FILE, sound=sound)
    whole = POST.replace("1000000", str(len(body))).encode() + body
    body = b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n' + body
    streamed = POST.replace("1000000", str(len(body))).encode() + body
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "c" * 22 + "=="
    speaks = f"GET {LIVE} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n"
    asked = [b"", b"x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", POST.encode() + b"--b", whole, streamed]
    for sent in (*asked, whole[:20], whole[:300], speaks.encode(), speaks.encode() + b"\x82\xfe\x10"):
        for reset in (False, True):
            link = socket.create_connection(("127.0.0.1", server.port), 60)
            if reset:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.sendall(sent)
            link.close()
    assert message(Server(server.port).ask("GET", "/nothing"))[0] == 404
    until(lambda: not server.endpoint.recordings + server.endpoint.speakers)
    assert Server(server.port).ask("GET", MODELS)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_process_that_dies_is_an_error_of_its_request(server: Served, folder: Path) -> None:
    """By want of memory, or by a library that a recording breaks. And so is the death of the one that had loaded the
    model, with all that it had forked."""
    other, _ = hangs(server, folder)
    with other:
        for number in (signal.SIGKILL, signal.SIGSEGV):
            link, process = hangs(server, folder)
            with link:
                os.kill(process, number)
                assert link.makefile("rb").read().startswith(b"HTTP/1.1 500 ")
            assert asked(server.port, ["LOW"]) == (200, "LOW")
        os.kill(server.recognisers.process_id, signal.SIGKILL)
        assert other.makefile("rb").read().startswith(b"HTTP/1.1 500 ")
        assert asked(server.port, ["LOW"]) == (200, "LOW")
