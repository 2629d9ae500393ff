"""A model behind HTTP: what clients ask is answered in their shape, and nobody can ask for too much."""

import io
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.transcription.serving import endpoint
from roundelay_speech.transcription.serving.endpoint import ABOUT_MODEL, ENDPOINT, MODELS
from roundelay_speech.transcription.serving.wanted import REPLIES, Limits
from roundelay_speech.transcription.transcript import ChannelTranscript, Segment
from support.asking import Server, message
from support.recogniser import tones
from support.served import served

RATE = 8000
LIMITS = Limits(body=600_000, head_seconds=60.0, connections=8, of_an_address=8)
PAGE = Path(endpoint.__file__).with_name("page.html").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """It recognises tones; limits are low."""
    with served(limits=LIMITS) as found:
        yield Server(found.port)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """It waits for a second for what does not come."""
    with served(limits=replace(LIMITS, seconds=1.0, head_seconds=1.0)) as found:
        yield Server(found.port)


def wav(words: list[str], pause: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tones(words, RATE, pause), RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def test_every_format_that_clients_know(server: Server) -> None:
    talk = wav(["LOW", "TOP"])
    status, headers, body = server.post(talk, model="whisper-1", language="en", temperature="0")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {"text": "LOW TOP"}
    assert server.post(talk, response_format="text")[2] == b"LOW TOP\n"
    assert server.post(talk, response_format="srt")[2].startswith(b"1\n00:00:01,0")
    status, headers, body = server.post(talk, response_format="vtt")
    assert headers["content-type"].startswith("text/vtt")
    assert body.startswith(b"WEBVTT\n")


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_recording_that_ffmpeg_reads(server: Server, tmp_path: Path) -> None:
    """As browsers and telephones send them; a broken one is refused without a path in the message."""
    (tmp_path / "a.wav").write_bytes(wav(["LOW", "TOP"]))
    for name in ("a.m4a", "a.webm"):
        subprocess.run(["ffmpeg", "-v", "error", "-i", tmp_path / "a.wav", tmp_path / name], check=True, timeout=60)
        sound = (tmp_path / name).read_bytes()
        assert json.loads(server.post(sound)[2]) == {"text": "LOW TOP"}
        status, told = message(server.post(sound[:40] + bytes(len(sound) - 40)))
        assert (status, "cannot be read" in told or "damaged" in told) == (400, True), told
        assert "/" not in told


def test_verbose_json(server: Server) -> None:
    found = json.loads(server.post(wav(["LOW", "TOP"]), response_format="verbose_json")[2])
    assert (found["task"], found["text"]) == ("transcribe", "LOW TOP")
    assert found["duration"] == pytest.approx(len(tones(["LOW", "TOP"], RATE)) / RATE, abs=1e-3)
    assert [(word["word"], word["confidence"]) for word in found["words"]] == [("LOW", 0.5), ("TOP", 0.5)]
    assert found["words"][1]["start"] == pytest.approx(2.6, abs=0.05)
    (segment,) = found["segments"]
    assert segment["text"] == "LOW TOP"
    assert segment["avg_logprob"] == pytest.approx(-0.693, abs=1e-3)


def test_alternatives_and_words_to_favour_are_fields_of_the_form(server: Server) -> None:
    """Words that the model does not know are named; clients have `prompt` for words."""
    how = {"nbest": "2", "favour": "low, Xyzzy", "prompt": "top", "bonus": "1.5"}
    found = json.loads(server.post(wav(["LOW"]), response_format="verbose_json", **how)[2])
    assert found["segments"][0]["alternatives"] == [{"text": "LOW TOP", "cost": 1.5, "posterior": 1.0}]
    assert found["unknown_words"] == ["Xyzzy"]
    assert json.loads(server.post(wav(["LOW"]), prompt="top Xyzzy")[2]) == {"text": "LOW", "unknown_words": ["Xyzzy"]}
    assert "alternatives" not in json.loads(server.post(wav(["LOW"]), response_format="verbose_json")[2])["segments"][0]


def test_the_end_of_an_utterance_is_a_field_of_the_form(server: Server) -> None:
    """A recording of more than ten seconds is cut at pauses of so many seconds."""
    talk = wav(["LOW", "TOP", "LOW", "TOP"], 2.0)
    for fields, segments in (({}, 4), ({"pause": "3"}, 1), ({"pause": "3", "longest": "6"}, 2)):
        found = json.loads(server.post(talk, response_format="verbose_json", **fields)[2])
        assert (len(found["segments"]), found["text"]) == (segments, "LOW TOP LOW TOP")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"nbest": "101"}, "nbest '101': give 0 to 100."),
        ({"nbest": "1.5"}, "nbest '1.5': give a whole number."),
        ({"nbest": "nan"}, "nbest 'nan': give 0 to 100."),
        ({"nbest": "2"}, "nbest: json has no place for it; give response_format=verbose_json."),
        ({"nbest": "2", "stream": "true"}, "nbest: a stream has no place for it; give response_format=verbose_json"),
        ({"bonus": "x"}, "bonus 'x': give 0 to 20."),
        ({"pause": "0"}, "pause '0': give 0.1 to 10."),
        ({"stream": "maybe"}, "stream 'maybe': give true or false."),
        ({"longest": "1e9"}, "longest '1e9': give 1 to 60."),
        ({"favour": "a" * 6000, "prompt": "b" * 6000}, "favour, prompt: 12,001 characters; 10,000 are the most."),
    ],
)
def test_wishes_that_cannot_be_granted(server: Server, fields: dict[str, str], why: str) -> None:
    status, told = message(server.post(wav(["LOW"]), **fields))
    assert (status, told.startswith(why)) == (400, True), told


def test_a_segment_without_confidences_tells_none() -> None:
    """0 would say that all its words are certain."""
    segment = Segment(0.0, 1.0, (TimedWord("LOW", 0.0, 0.5), TimedWord("TOP", 0.5, 0.5)))
    reply = REPLIES["verbose_json"](ChannelTranscript("a", "a.wav", 1, 1.0, (segment,)), [])
    assert json.loads(reply.body)["segments"][0]["avg_logprob"] is None


def test_models_and_page(server: Server) -> None:
    assert [model["id"] for model in json.loads(server.ask("GET", MODELS)[2])["data"]] == ["tones"]
    about = json.loads(server.ask("GET", ABOUT_MODEL)[2])
    assert (about["model"], about["words"], about["some_words"]) == ("tones", 4, ["HIGH", "LOW", "MIDDLE", "TOP"])
    status, headers, body = server.ask("GET", "/")
    assert (status, body.decode()) == (200, PAGE)
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    status, headers, body = server.ask("HEAD", "/")
    assert (status, headers["content-length"], body) == (200, str(len(PAGE.encode())), b"")


def test_the_page_asks_nobody_else() -> None:
    assert not re.search(r"https?://|//[a-z]|@import|\bimport\b|src=|innerHTML|url\(", PAGE)
    assert f'fetch("{ENDPOINT}"' in PAGE
    assert re.search(r'<html lang="en">', PAGE)
    assert set(re.findall(r'\$\("(\w+)"\)', PAGE)) <= set(re.findall(r'id="(\w+)"', PAGE))


def test_what_is_refused(server: Server) -> None:
    assert message(server.ask("GET", "/nothing")) == (404, f"Nothing is here; POST a recording to {ENDPOINT}.")
    assert message(server.ask("GET", ENDPOINT))[0] == 405
    assert message(server.ask("PUT", "/"))[0] == 405
    assert message(server.ask("POST", ENDPOINT, b"{}", Content_Type="application/json"))[0] == 415
    for empty in (server.post(None, model="x"), server.post(b"")):
        assert message(empty) == (400, "The form has no `file`, or an empty one, or ends within it.")
    status, text = message(server.post(b"RIFF, but no sound, WAVE"))
    assert status == 400
    assert text.startswith("The recording: cannot be read as audio")
    assert message(server.post(wav(["LOW"]), response_format="docx")) == (
        400,
        "response_format 'docx': there are json, text, srt, vtt, verbose_json.",
    )
    status, text = message(server.post(wav(["LOW"] * 8, 2.0)))
    assert (status, "lasts longer than 20 s" in text) == (400, True)
    assert message(server.post(bytes(700_000)))[0] == 413
    assert message(server.ask("GET", "/", Host="evil.example")) == (
        403,
        "This server is for this machine: ask for localhost.",
    )
    for name in ("localhost:1", "[::1]:80", "127.0.0.1"):
        assert server.ask("GET", "/", Host=name)[0] == 200


POST = f"POST {ENDPOINT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n".encode()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, 431),
        (POST + b"Content-Length: 0\r\ncontent-length : 0\r\n\r\n", 400),
        (POST + b"Content-Length: 0\r\ncontent-length:0\r\n\r\n", 400),
        (POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
        (POST + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a=" * 50_000, 400),
        (POST + b'Transfer-Encoding: chunked\r\n\r\n0;odd="x"\r\n\r\n', 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (POST + b"Content-Length: 99999999999\r\n\r\n", 413),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", 415),
        (b"GET / HTTP/1.1\r\nHost: lo", 408),
        (POST + b"Content-Length: 10\r\n\r\n123", 408),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12", 408),
        (b"", None),
    ],
)
def test_broken_requests(sent: bytes, status: int | None, request: pytest.FixtureRequest) -> None:
    """Answered in the shape that clients know, or, where nothing comes, closed; and the next is answered."""
    server: Server = request.getfixturevalue("hasty" if status in (408, None) else "server")
    with socket.create_connection(("127.0.0.1", server.port), 30) as link:
        link.sendall(sent)
        reply = b""
        while more := link.recv(1 << 16):
            reply += more
    if status is None:
        assert reply == b""
    else:
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert server.ask("GET", MODELS)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Origin": "http://localhost:80", "Host": "localhost:80", "Sec_Fetch_Site": "same-origin"}, 415),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({}, 415),
    ],
)
def test_what_costs_work_no_other_page_may_ask(server: Server, headers: dict[str, str], status: int) -> None:
    assert message(server.ask("POST", ENDPOINT, b"x", **headers))[0] == status
