"""A relay for hosts that no other can connect to: bytes, ends, strangers, damage, and a relay that moves."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay, Relay
from roundelay.runtime.hosts.transport.wire import (
    RELAY,
    USUAL_LINKS,
    Address,
    Link,
    LinkClosed,
    LinkTimeout,
    Tampered,
    UnknownPeer,
)
from support.links import HERE, SECRET
from support.until import until

PATIENCE = 10.0
HELLO = {"first": 3}


@contextmanager
def relaying(at: Address = HERE) -> Iterator[Address]:
    router = Router(Listener(at, SECRET, {"first": 0}, PATIENCE), [RELAY], PATIENCE)
    Relay(router, PATIENCE)
    yield router.listener.address
    router.close()


@contextmanager
def behind(relay: Address, name: str = "3-life", moves: bool = True) -> Iterator[Listener]:
    listener = Listener(BehindRelay(relay, name, SECRET, PATIENCE, USUAL_LINKS, moves), SECRET, HELLO, PATIENCE)
    yield listener
    listener.close()


@contextmanager
def connected(listener: Listener) -> Iterator[tuple[Link, Link]]:
    with Link.connect(listener.address, SECRET, {"first": 1}, PATIENCE, expected=HELLO) as ours:
        theirs = listener.accept(PATIENCE)
        assert theirs is not None
        assert theirs.hello == {"first": 1}
        with theirs:
            yield ours, theirs


def has_ipv6() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


V6 = pytest.param(("::1", 0), marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on the loopback here"))


@pytest.mark.parametrize("at", [HERE, V6])
def test_a_link_by_a_relay_is_a_link(at: Address) -> None:
    sent = np.arange(300_000, dtype=np.float32)
    with relaying(at) as relay, behind(relay) as listener, connected(listener) as first, connected(listener) as second:
        for ours, theirs in (first, second, first[::-1]):
            ours.send("row", {"of": 1}, [sent])
            frame = theirs.receive(PATIENCE)
            assert (frame.kind, frame.header) == ("row", {"of": 1})
            assert np.array_equal(np.frombuffer(frame.payload, np.float32), sent)
        first[0].close()
        with pytest.raises(LinkClosed):
            first[1].receive(PATIENCE)
        second[1].close()
        with pytest.raises(LinkClosed):
            second[0].receive(PATIENCE)


def test_a_name_that_nobody_has_is_not_found() -> None:
    with relaying() as (host, port), pytest.raises(LinkTimeout, match="no host answers at gone@"):
        Link.connect((f"gone@{host}", port), SECRET, {}, 0.3)


def test_the_relay_serves_those_who_know_the_secret() -> None:
    with relaying() as relay, behind(relay) as listener:
        with connected(listener):
            pass
        with pytest.raises(UnknownPeer):
            Link.connect(listener.address, b"another secret", {}, PATIENCE)


def test_a_relay_that_changes_a_byte_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    damage = bytearray(1)
    sendall = "roundelay.runtime.hosts.transport.relay._send"

    def send(target: object, data: memoryview) -> None:
        data[len(data) // 2] ^= damage[0]
        target.sendall(data)  # type: ignore[attr-defined]

    monkeypatch.setattr(sendall, send)
    with relaying() as relay, behind(relay) as listener, connected(listener) as (ours, theirs):
        damage[0] = 1
        ours.send("row", {}, [bytes(100)])
        with pytest.raises(Tampered):
            theirs.receive(PATIENCE)


def test_a_host_behind_a_relay_follows_it_to_another_address() -> None:
    with (
        relaying() as second,
        relaying() as first,
        behind(first) as listener,
        behind(first, "named", moves=False) as named,
    ):
        with connected(listener):
            pass
        assert listener.address == (f"3-life@{first[0]}", first[1])
        for one in (listener, named):
            assert isinstance(one.acceptor, BehindRelay)
            one.acceptor.move(second)
        assert listener.address == (f"3-life@{second[0]}", second[1])
        assert named.address[1] == first[1]
        with connected(listener) as (ours, theirs):
            ours.send("here", {})
            assert theirs.receive(PATIENCE).kind == "here"


def test_a_host_finds_its_relay_again() -> None:
    router = Router(Listener(HERE, SECRET, {"first": 0}, PATIENCE), [RELAY], PATIENCE)
    Relay(router, PATIENCE)
    with behind(router.listener.address) as listener:
        with connected(listener):
            pass
        address = router.listener.address
        router.close()
        again = Router(Listener(address, SECRET, {"first": 0}, PATIENCE), [RELAY], PATIENCE)
        relay = Relay(again, PATIENCE)
        until(lambda: bool(relay.names))
        with connected(listener):
            pass
        again.close()
