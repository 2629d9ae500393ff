"""Words of somebody who speaks, and of a recording, sent as they are found; and nobody can ask for too much."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from roundelay_speech.transcription.serving.endpoint import ENDPOINT, LIVE
from roundelay_speech.transcription.serving.wanted import Limits
from support.asking import Server, message
from support.recogniser import Samples, tones
from support.served import served
from support.websocket import BYTES, PING, PONG, TEXT, speaking

RATE = 8000
LIMITS = Limits(body=600_000, head_seconds=60.0, connections=8, of_an_address=8)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """It recognises tones; limits are low."""
    with served(limits=LIMITS) as found:
        yield Server(found.port)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """It waits for two seconds for what does not come."""
    with served(limits=replace(LIMITS, seconds=2.0)) as found:
        yield Server(found.port)


def pcm(samples: Samples) -> bytes:
    return np.round(32767 * samples).astype("<i2").tobytes()


def wav(words: list[str], pause: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tones(words, RATE, pause), RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


@pytest.mark.parametrize("rate", [RATE, 11_025])
def test_words_come_while_somebody_speaks(server: Server, rate: int) -> None:
    """The first before the second is said; at the end all, with their times."""
    with speaking(server.port, f"{LIVE}?rate={rate}") as client:
        first, second = (pcm(tones([word], rate)) for word in ("LOW", "TOP"))
        for at in range(0, len(first), 4000):
            client.send(BYTES, first[at : at + 4000])
        partial = json.loads(client.frame()[1])
        assert (partial["type"], partial["text"]) == ("transcript.text.partial", "LOW")
        client.send(BYTES, second)
        client.end()
        events, code, _ = client.told()
    segments = [event for event in events if event["type"] == "transcript.text.segment"]
    assert [(one["id"], one["text"]) for one in segments] == [(0, "LOW"), (1, "TOP")]
    assert [one["words"][0]["start"] for one in segments] == pytest.approx([1.0, 3.6], abs=0.1)
    done = {"type": "transcript.text.done", "text": "LOW TOP", "duration": 5.2}
    assert (events[-1], code) == (done, 1000)


def test_a_speaker_says_when_an_utterance_ends(server: Server) -> None:
    """And which words to favour; one that the model does not know is named at the end."""
    for pause, segments in ((0.5, ["LOW", "TOP"]), (2.5, ["LOW TOP"])):
        with speaking(server.port, f"{LIVE}?pause={pause}&favour=top,Xyzzy&nbest=3") as client:
            client.send(BYTES, pcm(tones(["LOW", "TOP"], RATE)))
            client.end()
            events, _, _ = client.told()
        assert [one["text"] for one in events if one["type"] == "transcript.text.segment"] == segments
        assert events[-1]["unknown_words"] == ["Xyzzy"]
    for query in ("pause=99", "nbest=x"):
        status, text = message(server.ask("GET", f"{LIVE}?{query}", b"", **asking()))
        assert (status, text.startswith(query.partition("=")[0])) == (400, True)


def test_messages_may_come_in_pieces_with_pings_between(server: Server) -> None:
    sound = pcm(tones(["HIGH"], RATE))
    with speaking(server.port, LIVE) as client:
        client.send(BYTES, sound[:7], last=False)
        client.send(PING, b"there?")
        assert client.frame() == (PONG, b"there?")
        client.send(0, sound[7:])
        client.end()
        assert client.told()[0][-1]["text"] == "HIGH"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([(BYTES, b"ab", {"masked": False})], 1002),
        ([(3, b"ab", {})], 1002),
        ([(PING, b"ab", {"last": False})], 1002),
        ([(PING, bytes(126), {})], 1002),
        ([(0, b"ab", {})], 1002),
        ([(BYTES, b"ab", {"last": False}), (BYTES, b"ab", {})], 1002),
        ([(BYTES, bytes((1 << 20) + 2), {})], 1009),
        ([(BYTES, bytes(1 << 19), {"last": False}), (0, bytes((1 << 19) + 2), {})], 1009),
        ([(TEXT, b"\xff", {})], 1007),
    ],
)
def test_broken_frames_end_a_connection(
    server: Server, sent: list[tuple[int, bytes, dict[str, bool]]], code: int
) -> None:
    with speaking(server.port, LIVE) as client:
        for kind, payload, how in sent:
            client.send(kind, payload, **how)
        assert client.told()[:2] == ([], code)


@pytest.mark.parametrize(
    ("sent", "code", "why"),
    [
        ([(BYTES, b"abc")], 1002, "within a sample"),
        ([(TEXT, b"{")], 1008, "Send samples"),
        ([(TEXT, b"[" * 5000)], 1008, "Send samples"),
        ([(BYTES, bytes(2 * RATE * 21))], 1009, "longer than 20 s"),
        ([], 1008, "Nothing has come for 2 s"),
    ],
)
def test_a_speaker_who_breaks_the_rules_is_told(
    sent: list[tuple[int, bytes]], code: int, why: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue("server" if sent else "hasty")
    with speaking(server.port, LIVE) as client:
        for kind, payload in sent:
            client.send(kind, payload)
        events, found, reason = client.told()
    assert (found, why in reason) == (code, True), reason
    assert events[-1] == {"type": "error", "error": {"message": reason}}


def test_a_speaker_cannot_stay_by_saying_little(hasty: Server) -> None:
    """A sample now and then: less than a second of sound in each second."""
    with speaking(hasty.port, LIVE) as client:
        while not client.has_said(0.05):
            client.send(BYTES, bytes(2))
        _, code, why = client.told()
    assert (code, why) == (1008, "Sound comes more slowly than time goes by.")


def asking(**changed: str) -> dict[str, str]:
    usual = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13"}
    return {**usual, "Sec_WebSocket_Key": "c" * 22 + "==", **changed}


def test_who_is_refused(server: Server) -> None:
    """A page from elsewhere above all: a browser sends what it wants to a WebSocket, and says only where it is from."""
    assert message(server.ask("GET", LIVE, b"", **asking(Origin="http://evil.example")))[0] == 403
    assert message(server.ask("GET", LIVE, b"", **asking(Origin="null")))[0] == 403
    assert message(server.ask("GET", LIVE, b"", **asking(Host="evil.example")))[0] == 403
    assert message(server.ask("GET", LIVE)) == (400, f"{LIVE} is for a WebSocket.")
    assert message(server.ask("GET", LIVE, b"", **asking(Sec_Fetch_Site="cross-site")))[0] == 403
    assert server.ask("GET", LIVE, b"", **asking(Sec_WebSocket_Version="8"))[0] == 400
    assert server.ask("GET", LIVE, b"", **asking(Sec_WebSocket_Key="short"))[0] == 400
    assert server.ask("GET", "/elsewhere", b"", **asking())[0] in (403, 404)
    many = {f"X_{number}": "y" for number in range(90)}
    for broken in (
        asking(X="y" * 9000),
        asking(**many, **{f"Z_{n}": "" for n in range(90)}),
        asking(Content_Length="5"),
    ):
        assert message(server.ask("GET", LIVE, b"", **broken)) == (400, "This is no request for a WebSocket.")
    assert message(server.ask("POST", LIVE, b"x", **asking())) == (400, "This is no request for a WebSocket.")
    assert message(server.ask("POST", LIVE, b"x"))[0] == 405
    for rate in ("abc", "-1", "9" * 50, "1"):
        status, text = message(server.ask("GET", f"{LIVE}?rate={rate}&x", b"", **asking()))
        assert (status, "give that of the samples" in text) == (400, True)
    with speaking(server.port, LIVE, Origin=f"http://localhost:{server.port}") as client:
        client.end()
        assert client.told()[1] == 1000


def test_only_so_many_may_speak(server: Server) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(speaking(server.port, LIVE)) for _ in range(Limits().speakers)]
        status, why = message(server.ask("GET", LIVE, b"", **asking()))
        assert (status, why) == (503, "Too many people are speaking. Try again later.")
        for client in clients:
            client.end()
            client.told()
    with speaking(server.port, LIVE) as client:
        client.end()
        assert client.told()[0][-1]["text"] == ""


def test_a_recording_is_streamed(server: Server) -> None:
    """In the shape that clients know: deltas make the text."""
    status, headers, body = server.post(wav(["LOW", "TOP", "HIGH"]), stream="true")
    assert (status, headers["content-type"], headers["connection"]) == (200, "text/event-stream", "close")
    assert "content-length" not in headers
    found = re.findall(r"event: (\S+)\ndata: (.+)\n\n", body.decode())
    events = [json.loads(data) for _, data in found]
    assert [event["type"] for event in events] == [name for name, _ in found]
    assert [event["delta"] for event in events[:-1]] == ["LOW", " TOP", " HIGH"]
    assert events[-1] == {"type": "transcript.text.done", "text": "LOW TOP HIGH", "duration": 5.8}
    assert json.loads(server.post(wav(["LOW"]), stream="false")[2]) == {"text": "LOW"}


def test_a_recording_that_cannot_be_streamed(server: Server) -> None:
    status, text = message(server.post(b"RIFF, but no sound, WAVE", stream="true"))
    assert (status, text.startswith("The recording: cannot be read as audio")) == (400, True)
    status, text = message(server.post(wav(["LOW"] * 8, 2.0), stream="true"))
    assert (status, "lasts longer than 20 s" in text) == (400, True)
    assert server.ask("GET", ENDPOINT)[0] == 405
