"""Links between hosts: frames, silence and ends."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.stream import LONG_BYTES, Stream
from roundelay.runtime.hosts.transport.wire import Link, LinkClosed, LinkTimeout
from support.links import HERE, SECRET, drain, listening, pair, put, raw, sealed
from support.until import meanwhile, until

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
            with meanwhile(partial(here.send, "row", header, [data])):
                message = there.receive(60.0)
            assert (message.kind, message.header) == ("row", header)
            assert bytes(message.payload) == data.tobytes()
            assert here.sent_bytes == there.received_bytes > size


def test_a_payload_is_gathered_from_many_buffers_and_laid_into_one() -> None:
    parts = [np.arange(n, dtype=np.float32) for n in (*range(600), 0, 70_000)]
    whole = np.concatenate(parts)
    into = np.full(len(whole) + 5, -1, np.float32)
    with pair() as (near, far, _):
        with meanwhile(partial(near.send, "row", {}, parts)):
            message = far.receive(60.0, into=into)
        assert len(message.payload) == whole.nbytes
        assert np.shares_memory(np.frombuffer(message.payload, np.float32), into)
        assert np.array_equal(into[:-5], whole)
        assert (into[-5:] == -1).all()


def test_both_directions_at_once() -> None:
    """Neither end reads before it has written far more than the kernel keeps."""
    data = bytes(20_000_000)
    with pair() as (near, far, _):
        with meanwhile(*(partial(link.send, "row", {}, [data]) for link in (near, far))):
            sizes = [len(link.receive(60.0).payload) for link in (near, far)]
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

        with meanwhile(*(partial(listen, link) for link in (near, far))):
            near.close()
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


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of one."""
    with socket.create_server(HERE) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            yield here, there


def test_a_record_that_comes_in_drops_is_progress_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is woken when much has come; who has patience for less must not take a slow link for one that stands
    still."""
    with connection() as (here, there), Stream(here, 0.1) as stream:
        view, wait, waits = memoryview(bytearray(LONG_BYTES)), stream._wait, list[float | None]()

        def dripping(for_: int, seconds: float | None) -> None:
            if seconds:  # a drop comes while it is waited for, and no other before that is taken
                there.sendall(bytes([1]) * (LONG_BYTES // 8))
                waits.append(seconds)
            wait(for_, seconds)

        monkeypatch.setattr(stream, "_wait", dripping)
        stream.fill(view)
        assert bytes(view) == bytes([1]) * LONG_BYTES
        assert len(waits) == 8


def test_the_kernel_gives_a_link_up_no_sooner_than_its_owner() -> None:
    """The side that connects has less patience for that than for a link that is there."""
    with pair(patience=70.0) as (near, far, _):
        near.patience = 70.0
        for link in (near, far):
            assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 140_000


def test_after_a_long_record_one_byte_wakes_whoever_waits() -> None:
    with connection() as (here, there), Stream(here, 60.0) as stream:
        with meanwhile(partial(stream.fill, memoryview(bytearray(4 * LONG_BYTES)))):
            until(lambda: here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) > 1)
            there.sendall(bytes(4 * LONG_BYTES))
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        there.sendall(b"!")
        stream.wait(60.0)


@pytest.mark.parametrize(("seconds", "said"), [(0.1, " within 0.1 s ("), (-4.86e-07, " (")])
def test_nobody_waits_where_nobody_listens(seconds: float, said: str) -> None:
    """And where the time is over, that is not called so many seconds below zero."""
    with socket.create_server(HERE) as taken:
        address = taken.getsockname()
    with pytest.raises(LinkTimeout) as error:
        Link.connect(address, SECRET, {}, seconds)
    assert str(error.value).startswith(f"no host answers at 127.0.0.1:{address[1]}{said}")


def test_who_connects_first_waits_for_who_listens_later() -> None:
    with socket.create_server(HERE) as taken:
        address = taken.getsockname()
    found: list[Link] = []
    with meanwhile(lambda: found.append(Link.connect(address, SECRET, {}, 60.0))):
        listener = Listener(address, SECRET)
        far = listener.accept(60.0)
    assert far is not None
    for link in (far, *found):
        link.close()
    listener.close()


def test_a_closed_listener_keeps_nobody_waiting() -> None:
    with listening() as listener:
        found: list[Link | None] = []
        with meanwhile(*(lambda: found.append(listener.accept(None)) for _ in range(2))):
            mute = raw(listener)
            drain_one = mute.recv(1)
            assert drain_one
            listener.close()
            listener.close()
        assert found == [None, None]
        drain(mute)
        mute.close()
        with pytest.raises(LinkTimeout):
            Link.connect(listener.address, SECRET, {}, 0.1)
