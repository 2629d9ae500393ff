"""Links between hosts: who may speak, frames, and what becomes of noise."""

import json
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from roundelay.runtime.hosts.transport import listener as listener_room
from roundelay.runtime.hosts.transport.handshake import ANSWER, GREETING, VERDICT, VERSION
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.seal import RECORD_BYTES, TAG_BYTES, cut
from roundelay.runtime.hosts.transport.wire import (
    BadFrame,
    Link,
    LinkClosed,
    LinkTimeout,
    RejectedConnections,
    Tampered,
    UnknownPeer,
)
from support.until import until

SECRET = b"a secret of this run, 32 bytes .."
HERE = ("127.0.0.1", 0)


@contextmanager
def listening(**options: Any) -> Iterator[Listener]:
    listener = Listener(HERE, SECRET, {"host": 0}, **{"handshake_seconds": 60.0, **options})
    try:
        yield listener
    finally:
        listener.close()


@contextmanager
def pair(**options: Any) -> Iterator[tuple[Link, Link, Listener]]:
    """Two ends of a link: of who connected, and of who listens."""
    with listening(**options) as listener:
        largest, encrypts = options.get("largest", 30_000_000), options.get("encrypts", True)
        near = Link.connect(listener.address, SECRET, {"host": 1}, 60.0, largest=largest, encrypts=encrypts)
        far = listener.accept(60.0)
        assert far is not None
        far.largest = largest
        try:
            yield near, far, listener
        finally:
            near.close()
            far.close()


def raw(listener: Listener) -> socket.socket:
    return socket.create_connection(listener.address, timeout=60)


def drain(stranger: socket.socket) -> bytes:
    """Everything that comes until the other side closes."""
    data = b""
    with suppress(ConnectionError):
        while piece := stranger.recv(65_536):
            data += piece
    return data


def still_open_to_ours(listener: Listener) -> None:
    near = Link.connect(listener.address, SECRET, {}, 60.0)
    far = listener.accept(60.0)
    assert far is not None
    near.send("word", {"n": 1})
    assert far.receive(60.0).header == {"n": 1}
    near.close()
    far.close()


def sealed(link: Link, kind: bytes = b"word", text: bytes = b"{}", payload: bytes = b"", **changed: Any) -> bytes:
    """The next frame of `link` as it would go over the wire, with other sizes than its own where they are given."""
    fields = {"kinds": len(kind), "texts": len(text), "size": len(payload)}
    parts = [struct.pack("!BIQ", *{**fields, **changed}.values()), kind + text, payload]
    data = b""
    for record in (memoryview(part) for part in parts if part):
        for piece in cut([record]):
            data += link._out.seal(piece, memoryview(bytearray(len(piece) + TAG_BYTES)))
    return data


def put(link: Link, data: bytes) -> None:
    """Onto the wire, as it is."""
    link.stream.write([memoryview(data)])


# Good frames ----------------------------------------------------------------------------------------------------------


def test_both_ends_say_who_they_are() -> None:
    with pair() as (near, far, listener):
        assert (near.hello, far.hello) == ({"host": 0}, {"host": 1})
        assert near.peer == f"{listener.address[0]}:{listener.address[1]}"
        assert (listener.rejected.strangers, listener.rejected.malformed) == (0, 0)


@pytest.mark.parametrize("header", [{}, {"a": [1, 2.5, None, "é ˈ"], "b": {"c": -1e-300}}])
@pytest.mark.parametrize("size", [0, 1, 65_537, 5_000_000])
def test_frames_arrive_as_they_were_sent(header: dict[str, Any], size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with pair() as (near, far, _):
        for here, there in ((near, far), (far, near)):
            thread = threading.Thread(target=here.send, args=("row", header, [data]))
            thread.start()
            message = there.receive(60.0)
            thread.join()
            assert (message.kind, message.header) == ("row", header)
            assert bytes(message.payload) == data.tobytes()
            assert here.sent_bytes == there.received_bytes > size


def test_a_payload_is_gathered_from_many_buffers_and_laid_into_one() -> None:
    parts = [np.arange(n, dtype=np.float32) for n in (*range(600), 0, 70_000)]
    whole = np.concatenate(parts)
    into = np.full(len(whole) + 5, -1, np.float32)
    with pair() as (near, far, _):
        thread = threading.Thread(target=near.send, args=("row", {}, parts))
        thread.start()
        message = far.receive(60.0, into=into)
        thread.join()
        assert len(message.payload) == whole.nbytes
        assert np.shares_memory(np.frombuffer(message.payload, np.float32), into)
        assert np.array_equal(into[:-5], whole)
        assert (into[-5:] == -1).all()


def test_both_directions_at_once() -> None:
    """Neither end reads before it has written far more than the kernel keeps."""
    data = bytes(20_000_000)
    with pair() as (near, far, _):
        threads = [threading.Thread(target=link.send, args=("row", {}, [data])) for link in (near, far)]
        for thread in threads:
            thread.start()
        sizes = [len(link.receive(60.0).payload) for link in (near, far)]
        for thread in threads:
            thread.join()
        assert sizes == [len(data)] * 2


def test_frames_that_may_not_be_are_not_sent() -> None:
    with pair(largest=100) as (near, far, _):
        far_limits = ({"kind": ""}, {"kind": "k" * 256}, {"header": {"a": "b" * (1 << 20)}}, {"payload": [bytes(101)]})
        for wrong in far_limits:
            with pytest.raises(ValueError, match="no frame"):
                far.send(**{"kind": "word", "header": {}, **wrong})  # type: ignore[arg-type]
        far.send("word", {})
        assert near.receive(60.0).kind == "word"


# Silence and ends -----------------------------------------------------------------------------------------------------


def test_silence_does_not_hurt_a_link() -> None:
    with pair() as (near, far, _):
        with pytest.raises(LinkTimeout):
            far.receive(0.0)
        near.send("word", {})
        assert far.receive(None).kind == "word"


def test_whoever_closes_wakes_whoever_waits_here_and_there() -> None:
    with pair() as (near, far, _):
        ends: list[str] = []

        def listen(link: Link) -> None:
            try:
                link.receive(None)
            except LinkClosed as error:
                ends.append(str(error))

        threads = [threading.Thread(target=listen, args=(link,)) for link in (near, far)]
        for thread in threads:
            thread.start()
        near.close()
        for thread in threads:
            thread.join()
        assert len(ends) == 2
        for link in (near, far):
            link.close()
            with pytest.raises(LinkClosed):
                link.send("word", {})
            with pytest.raises(LinkClosed):
                link.receive(0.0)


def test_nobody_waits_for_one_who_takes_nothing() -> None:
    with pair() as (near, _, _):
        near.patience, near.largest = 0.2, 100_000_000
        with pytest.raises(LinkClosed, match="has taken nothing"):
            near.send("row", {}, [bytes(100_000_000)])
        assert near.closed


def test_nobody_waits_for_one_who_stops_in_the_middle_of_a_frame() -> None:
    with pair(patience=0.2) as (near, far, _):
        put(near, sealed(near, payload=bytes(50))[:-1])
        with pytest.raises(LinkClosed, match="stands still"):
            far.receive(None)
        with pytest.raises(LinkClosed):
            near.receive(60.0)


def test_nobody_waits_where_nobody_listens() -> None:
    with socket.create_server(HERE) as taken:
        address = taken.getsockname()
    with pytest.raises(LinkTimeout, match=f"nobody answers at 127.0.0.1:{address[1]}"):
        Link.connect(address, SECRET, {}, 0.1)


def test_who_connects_first_waits_for_who_listens_later() -> None:
    with socket.create_server(HERE) as taken:
        address = taken.getsockname()
    found: list[Link] = []
    thread = threading.Thread(target=lambda: found.append(Link.connect(address, SECRET, {}, 60.0)))
    thread.start()
    listener = Listener(address, SECRET)
    far = listener.accept(60.0)
    thread.join()
    assert far is not None
    for link in (far, *found):
        link.close()
    listener.close()


def test_a_closed_listener_keeps_nobody_waiting() -> None:
    with listening() as listener:
        found: list[Link | None] = []
        threads = [threading.Thread(target=lambda: found.append(listener.accept(None))) for _ in range(2)]
        for thread in threads:
            thread.start()
        mute = raw(listener)
        drain_one = mute.recv(1)
        assert drain_one
        listener.close()
        listener.close()
        for thread in threads:
            thread.join()
        assert found == [None, None]
        drain(mute)
        mute.close()
        with pytest.raises(LinkTimeout):
            Link.connect(listener.address, SECRET, {}, 0.1)


# Strangers ------------------------------------------------------------------------------------------------------------


def test_a_wrong_secret_opens_nothing() -> None:
    with listening() as listener:
        with pytest.raises(UnknownPeer, match="is the run's secret the same there"):
            Link.connect(listener.address, b"another", {"host": 1}, 60.0)
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None
        still_open_to_ours(listener)


def test_whoever_listens_must_prove_itself_too() -> None:
    """It gets our proof, sends it back as its own, and learns nothing of us."""
    with socket.create_server(HERE) as impostor:
        heard = []

        def pretend() -> None:
            connection, _ = impostor.accept()
            connection.sendall(GREETING.pack(b"RNDL", VERSION, 1, b"n" * 32))
            answer = connection.recv(ANSWER.size, socket.MSG_WAITALL)
            connection.sendall(b"\0" + answer[-32:])
            heard.append(drain(connection))
            connection.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(UnknownPeer, match="does not know the run's secret"):
            Link.connect(impostor.getsockname(), SECRET, {"host": 1}, 60.0)
        thread.join()
        assert heard == [b""]


def test_a_recorded_handshake_opens_nothing() -> None:
    """All that one of ours has ever sent, sent again."""
    with listening() as listener, socket.create_server(HERE) as tap:
        said = bytearray()

        def relay() -> None:
            ours, _ = tap.accept()
            theirs = raw(listener)
            back = threading.Thread(target=_pump, args=(theirs, ours, bytearray()))
            back.start()
            _pump(ours, theirs, said)
            back.join()
            ours.close()
            theirs.close()

        thread = threading.Thread(target=relay)
        thread.start()
        near = Link.connect(tap.getsockname(), SECRET, {"host": 1}, 60.0)
        far = listener.accept(60.0)
        assert far is not None
        near.send("quit", {})
        assert far.receive(60.0).kind == "quit"
        near.close()
        far.close()
        thread.join()
        thief = raw(listener)
        thief.sendall(said)
        assert len(drain(thief)) <= GREETING.size + VERDICT.size  # a nonce, and that it is refused
        thief.close()
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while piece := source.recv(65_536):
            kept += piece
            sink.sendall(piece)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            end.shutdown(how)


@pytest.mark.parametrize("seed", range(30))
def test_noise_at_the_door(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    with listening() as listener:
        stranger = raw(listener)
        with suppress(OSError):  # it may be closed already
            stranger.sendall(numbers.bytes(int(numbers.integers(0, 300))))
            stranger.shutdown(socket.SHUT_WR)
        drain(stranger)
        stranger.close()
        until(lambda: listener.rejected.strangers == 1)
        still_open_to_ours(listener)


def test_one_who_stands_still_at_the_door_is_sent_away_and_keeps_nobody_waiting() -> None:
    with listening(handshake_seconds=1.5) as listener:
        mute = [raw(listener) for _ in range(3)]
        mute[1].sendall(b"RNDL")
        still_open_to_ours(listener)
        until(lambda: listener.rejected.strangers == 3)
        for stranger in mute:
            drain(stranger)
            stranger.close()


def test_a_crowd_at_the_door_is_thinned_from_its_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_room, "MOST_UNADMITTED", 3)
    with listening(handshake_seconds=100.0) as listener:
        crowd = []
        for _ in range(10):
            stranger = raw(listener)
            assert stranger.recv(1)
            crowd.append(stranger)
        until(lambda: listener.rejected.strangers >= 7)
        still_open_to_ours(listener)
        for stranger in crowd:
            stranger.close()


# Malformed frames from one of ours ------------------------------------------------------------------------------------


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    "bad",
    [
        {"kinds": 0},
        {"texts": (1 << 20) + 1},
        {"size": 1001},
        {"size": 2**64 - 1},
        {"kind": b"\xff\xfe"},
        {"text": b"[1]"},
        {"text": b"{"},
        {"text": b"\xff\xff"},
        {"text": b'"' + b"\xed\xa0\x80" + b'"'},
        {"text": DEEP},
        {"text": b"7" * 100_000},
        {"text": b""},
    ],
)
def test_a_malformed_frame_closes_its_link_and_no_other(bad: dict[str, Any]) -> None:
    with pair(largest=1000) as (near, far, listener):
        put(near, sealed(near, **bad))
        with pytest.raises(BadFrame) as found:
            far.receive(60.0)
        assert not isinstance(found.value, Tampered)
        assert far.closed
        assert (listener.rejected.malformed, listener.rejected.tampered) == (1, 0)
        with pytest.raises(LinkClosed):
            near.receive(60.0)
        still_open_to_ours(listener)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", bytes(29), b"\xff" * 100])
def test_noise_on_a_link_of_ours_closes_it(noise: bytes) -> None:
    with pair() as (near, far, listener):
        put(near, noise)
        with pytest.raises(Tampered, match="changed, left out, repeated or put in on its way"):
            far.receive(60.0)
        assert (listener.rejected.malformed, listener.rejected.tampered) == (0, 1)
        assert near.stream is not None
        assert f"127.0.0.1:{near.stream._socket.getsockname()[1]}" in listener.rejected.reasons[-1]
        still_open_to_ours(listener)


def test_a_payload_too_large_for_its_buffer_is_not_written_beyond_it() -> None:
    with pair() as (near, far, listener):
        into = bytearray(10)
        near.send("row", {}, [bytes(11)])
        with pytest.raises(BadFrame, match="11 bytes of row where 10 fit"):
            far.receive(60.0, into=into)
        assert into == bytearray(10)
        assert listener.rejected.malformed == 1


@pytest.mark.parametrize("kept", [0, 1, 17, 28, 29, 30, 45, 51, 60])
def test_a_frame_cut_short_is_an_end(kept: int) -> None:
    with pair() as (near, far, listener):
        put(near, sealed(near, payload=bytes(20))[:kept])
        near.close()
        with pytest.raises(LinkClosed):
            far.receive(60.0)
        assert listener.rejected.malformed == 0


def test_one_who_begins_with_anything_but_hello() -> None:
    with listening() as listener:
        near = Link(raw(listener), 10.0, RejectedConnections())
        near._exchange_hellos = lambda *_: near.send("quit", {})  # type: ignore[method-assign]
        near.prove(lambda deadline: near._introduce(SECRET, {}, True, {}, deadline), 10.0)
        until(lambda: listener.rejected.malformed == 1)
        assert listener.accept(0.0) is None
        near.close()


@pytest.mark.parametrize("encrypts", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_random_changes_of_good_frames(seed: int, encrypts: bool) -> None:
    """All that comes before the change arrives, and nothing of what comes after it."""
    numbers = np.random.default_rng(seed)
    with pair(patience=0.2, largest=1 << 20, encrypts=encrypts) as (near, far, listener):
        frames = [
            sealed(near, b"row", json.dumps({"n": n, "name": "x" * n}).encode(), bytes(range(n)) * 1000)
            for n in (0, 3, 40, 200)
        ]
        good = b"".join(frames)
        ends = np.cumsum([len(one) for one in frames])
        data, at = bytearray(good), int(numbers.integers(len(good)))
        data[at] ^= 1 << int(numbers.integers(8))
        put(near, bytes(data))
        for n in range(int(np.searchsorted(ends, at, "right"))):
            assert far.receive(60.0).header["n"] == (0, 3, 40, 200)[n]
        with pytest.raises(Tampered):
            far.receive(60.0)
        assert far.closed
        assert (listener.rejected.malformed, listener.rejected.tampered, listener.rejected.strangers) == (0, 1, 0)


# Sizes that are claimed -----------------------------------------------------------------------------------------------


def test_memory_grows_with_what_has_come_and_not_with_what_is_announced() -> None:
    gigabytes = 1 << 33
    with pair() as (near, far, _):
        far.largest = gigabytes
        put(near, sealed(near, size=gigabytes))
        thread = threading.Thread(target=lambda: _suppressed(far))
        tracemalloc.start()
        thread.start()
        put(near, sealed_payload(near, bytes(3 * RECORD_BYTES)))
        until(lambda: far.received_bytes > 3 * RECORD_BYTES)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        near.close()
        thread.join()
        assert peak < 100 * RECORD_BYTES


def _suppressed(link: Link) -> None:
    with suppress(LinkClosed):
        link.receive(60.0)


def sealed_payload(link: Link, data: bytes) -> bytes:
    return b"".join(
        bytes(link._out.seal(piece, memoryview(bytearray(len(piece) + TAG_BYTES)))) for piece in cut([memoryview(data)])
    )


def test_nothing_unverified_is_written_into_the_buffer_of_the_receiver() -> None:
    for encrypts in (True, False):
        with pair(encrypts=encrypts) as (near, far, _):
            into = bytearray(3 * RECORD_BYTES)
            data = bytearray(sealed(near, payload=b"x" * len(into)))
            data[-RECORD_BYTES // 2] ^= 1  # in the last record
            thread = threading.Thread(target=put, args=(near, bytes(data)))
            thread.start()
            with pytest.raises(Tampered):
                far.receive(60.0, into=into)
            thread.join()
            assert into == b"x" * 2 * RECORD_BYTES + bytes(RECORD_BYTES)


# Who speaks what ------------------------------------------------------------------------------------------------------


def test_both_ends_say_that_one_encrypts_and_the_other_does_not() -> None:
    for here in (True, False):
        with listening(encrypts=here) as listener:
            with pytest.raises(UnknownPeer, match=r"training\.encrypt"):
                Link.connect(listener.address, SECRET, {}, 60.0, encrypts=not here)
            until(lambda: listener.rejected.strangers == 1)
            assert "training.encrypt" in listener.rejected.reasons[-1]


def test_who_asks_for_less_than_the_secret_allows_is_noticed() -> None:
    """Somebody between the two would have them go without encryption: the proofs do not fit any more."""
    with listening() as listener, socket.create_server(HERE) as tap:

        def relay() -> None:
            ours, _ = tap.accept()
            theirs = raw(listener)
            greeting = bytearray(theirs.recv(GREETING.size, socket.MSG_WAITALL))
            greeting[5] = 0
            ours.sendall(greeting)
            answer = bytearray(ours.recv(ANSWER.size, socket.MSG_WAITALL))
            theirs.sendall(answer)
            ours.sendall(drain(theirs))
            for end in (ours, theirs):
                end.close()

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(UnknownPeer):
            Link.connect(tap.getsockname(), SECRET, {}, 60.0, encrypts=False)
        thread.join()
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_another_version_is_called_that(version: int) -> None:
    with socket.create_server(HERE) as other:

        def speak() -> None:
            connection, _ = other.accept()
            connection.sendall(struct.pack("!4sB32s", b"RNDL", version, bytes(32)))
            drain(connection)
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(
            UnknownPeer, match=f"speaks version {version} .* this host version {VERSION}: install the same"
        ):
            Link.connect(other.getsockname(), SECRET, {}, 60.0)
        thread.join()
    with listening() as listener:
        stranger = raw(listener)
        stranger.sendall(struct.pack("!4sB", b"RNDL", version) + bytes(64))
        drain(stranger)
        stranger.close()
        until(lambda: listener.rejected.strangers == 1)
        assert f"speaks version {version}" in listener.rejected.reasons[-1]


def test_a_first_version_host_is_told_our_version_before_anything_else() -> None:
    """It reads 37 bytes, looks at the fifth, and says that the other does not speak its version."""
    with listening() as listener:
        old = raw(listener)
        magic, version, _ = struct.unpack("!4sB32s", old.recv(37, socket.MSG_WAITALL))
        assert (magic, version) == (b"RNDL", VERSION)
        assert version != 1
        old.close()


# Crowds ---------------------------------------------------------------------------------------------------------------


def test_who_is_sent_away_by_a_crowd_comes_back_and_is_not_called_a_stranger() -> None:
    """Three times the door closes in the middle of the handshake, as it does when others press."""
    with listening() as listener, socket.create_server(HERE) as front:
        met: list[int] = []

        def stand() -> None:
            for number in range(4):
                ours, _ = front.accept()
                met.append(number)
                if number < 3:
                    ours.sendall(GREETING.pack(b"RNDL", VERSION, 1, bytes(32))[: 10 * number])
                    ours.close()
                    continue
                theirs = raw(listener)
                back = threading.Thread(target=_pump, args=(theirs, ours, bytearray()))
                back.start()
                _pump(ours, theirs, bytearray())
                back.join()
                ours.close()
                theirs.close()

        thread = threading.Thread(target=stand)
        thread.start()
        near = Link.connect(front.getsockname(), SECRET, {}, 60.0)
        far = listener.accept(60.0)
        assert far is not None
        near.close()
        far.close()
        thread.join()
        assert met == [0, 1, 2, 3]


def test_who_is_always_sent_away_hears_so_and_not_of_a_wrong_secret() -> None:
    with socket.create_server(HERE) as front:
        over = threading.Event()

        def stand() -> None:
            front.settimeout(0.05)
            while not over.is_set():
                with suppress(TimeoutError):
                    front.accept()[0].close()

        thread = threading.Thread(target=stand)
        thread.start()
        with pytest.raises(LinkTimeout, match=r"nobody answers at .* within 0\.3 s \(.*(closed|broken)"):
            Link.connect(front.getsockname(), SECRET, {}, 0.3)
        over.set()
        thread.join()


def test_a_crowd_from_one_address_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_room, "MOST_UNADMITTED", 5)
    with listening(handshake_seconds=100.0) as listener:
        guest = socket.create_connection(listener.address, timeout=60, source_address=("127.0.0.2", 0))
        assert guest.recv(GREETING.size, socket.MSG_WAITALL)
        crowd = []
        for _ in range(20):
            stranger = raw(listener)
            with suppress(ConnectionError):
                stranger.recv(1)
            crowd.append(stranger)
        until(lambda: listener.rejected.strangers >= 16)
        guest.settimeout(0.05)
        with pytest.raises(TimeoutError):
            guest.recv(1)
        for stranger in (guest, *crowd):
            stranger.close()
