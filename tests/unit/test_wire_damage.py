"""Links between hosts: malformed frames and noise close their link, and no other."""

import json
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from roundelay.runtime.hosts.transport import handshake
from roundelay.runtime.hosts.transport.handshake import RECORD_BYTES
from roundelay.runtime.hosts.transport.wire import BadFrame, Link, LinkClosed, LinkError, RejectedConnections, Tampered
from support.links import SECRET, listening, pair, put, putting, raw, sealed, sealed_payload, still_open_to_ours
from support.until import meanwhile, until

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
        with putting(near, sealed(near, **bad)), pytest.raises(BadFrame) as found:
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
        assert f"127.0.0.1:{near._socket.getsockname()[1]}" in listener.rejected.reasons[-1]
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
        with suppress(LinkError):  # it may hear so at once
            near.prove(lambda deadline: near._introduce(SECRET, {}, True, {}, deadline), 10.0)
        until(lambda: listener.rejected.malformed == 1)
        assert listener.accept(0.0) is None
        near.close()


def test_a_connection_that_was_given_up_is_no_link_however_late_it_comes_through() -> None:
    """All that the other end has said before is heard, and it may have connected anew since."""
    with listening() as listener:
        late = Link(raw(listener), 10.0, RejectedConnections())
        keys = late._agree(handshake.introduce, SECRET, True, time.monotonic() + 60)
        late._exchange_hellos({"host": 1}, keys, time.monotonic() + 60)
        late.close()
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None
        still_open_to_ours(listener)


@pytest.mark.parametrize("encrypts", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_random_changes_of_good_frames(seed: int, encrypts: bool) -> None:
    """All that comes before the change arrives, and nothing of what comes after it."""
    numbers = np.random.default_rng(seed)
    with pair(largest=1 << 20, encrypts=encrypts) as (near, far, listener):
        frames = [
            sealed(near, b"row", json.dumps({"n": n, "name": "x" * n}).encode(), bytes(range(n)) * 1000)
            for n in (0, 3, 40, 200)
        ]
        good = b"".join(frames)
        ends = np.cumsum([len(one) for one in frames])
        data, at = bytearray(good), int(numbers.integers(len(good)))
        data[at] ^= 1 << int(numbers.integers(8))
        with putting(near, bytes(data)):
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
        tracemalloc.start()
        with meanwhile(lambda: _suppressed(far)):
            put(near, sealed_payload(near, bytes(3 * RECORD_BYTES)))
            until(lambda: far.received_bytes > 3 * RECORD_BYTES)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            near.close()
        assert peak < 100 * RECORD_BYTES


def _suppressed(link: Link) -> None:
    with suppress(LinkClosed):
        link.receive(60.0)


@pytest.mark.parametrize("encrypts", [True, False])
def test_what_is_opened_in_place_is_what_was_sent_or_nothing_is_received(encrypts: bool) -> None:
    """Payloads of whole records and of a rest, in a buffer that is larger; then one whose last record was changed."""
    with pair(encrypts=encrypts) as (near, far, listener):
        into = bytearray(3 * RECORD_BYTES)
        for size in (0, 5, RECORD_BYTES, 2 * RECORD_BYTES + 7):
            sent = np.random.default_rng(size).bytes(size)
            with putting(near, sealed(near, payload=sent)):
                assert bytes(far.receive(60.0, into=into).payload) == sent
        data = bytearray(sealed(near, payload=bytes(2 * RECORD_BYTES)))
        data[-RECORD_BYTES // 2] ^= 1
        with putting(near, bytes(data)), pytest.raises(Tampered):
            far.receive(60.0, into=into)
        assert far.closed
        assert listener.rejected.tampered == 1
