"""Links between hosts: who may speak, and what becomes of strangers and crowds."""

import socket
import struct
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from roundelay.runtime.hosts.transport import listener as listener_room
from roundelay.runtime.hosts.transport.handshake import ANSWER, GREETING, PROTOCOL_VERSION, VERDICT
from roundelay.runtime.hosts.transport.wire import Link, LinkOptions, LinkTimeout, UnknownPeer
from support.links import HERE, SECRET, drain, listening, pump, raw, still_open_to_ours
from support.relay import relay
from support.until import meanwhile, until


def test_a_wrong_secret_opens_nothing() -> None:
    with listening() as listener:
        with pytest.raises(UnknownPeer, match="the run's secret is another one there"):
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
            connection.sendall(GREETING.pack(b"RNDL", PROTOCOL_VERSION, 1, b"n" * 32))
            answer = connection.recv(ANSWER.size, socket.MSG_WAITALL)
            connection.sendall(b"\0" + answer[-32:])
            heard.append(drain(connection))
            connection.close()

        with meanwhile(pretend), pytest.raises(UnknownPeer, match="does not know the run's secret"):
            Link.connect(impostor.getsockname(), SECRET, {"host": 1}, 60.0)
        assert heard == [b""]


def test_a_recorded_handshake_opens_nothing() -> None:
    """All that one of ours has ever sent, sent again."""
    with listening() as listener, relay(listener.address) as between:
        near = Link.connect(between.address, SECRET, {"host": 1}, 60.0)
        far = listener.accept(60.0)
        assert far is not None
        near.send("quit", {})
        assert far.receive(60.0).kind == "quit"
        near.close()
        far.close()
        thief = raw(listener)
        thief.sendall(between.said)
        assert len(drain(thief)) <= GREETING.size + VERDICT.size  # a nonce, and that it is refused
        thief.close()
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None


@pytest.mark.parametrize("seed", range(10))
def test_noise_before_the_handshake(seed: int) -> None:
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


def test_one_who_stands_still_before_the_handshake_is_sent_away_and_keeps_nobody_waiting() -> None:
    with listening(handshake_seconds=1.5) as listener:
        mute = [raw(listener) for _ in range(3)]
        mute[1].sendall(b"RNDL")
        still_open_to_ours(listener)
        until(lambda: listener.rejected.strangers == 3)
        for stranger in mute:
            drain(stranger)
            stranger.close()


def test_of_a_crowd_those_who_came_first_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Who speaks what ------------------------------------------------------------------------------------------------------


def test_both_ends_say_that_one_encrypts_and_the_other_does_not() -> None:
    for here in (True, False):
        with listening(LinkOptions(here)) as listener:
            with pytest.raises(UnknownPeer, match=r"training\.encrypt"):
                Link.connect(listener.address, SECRET, {}, 60.0, LinkOptions(not here))
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

        with meanwhile(relay), pytest.raises(UnknownPeer):
            Link.connect(tap.getsockname(), SECRET, {}, 60.0, LinkOptions(False))
        until(lambda: listener.rejected.strangers == 1)
        assert listener.accept(0.0) is None


@pytest.mark.parametrize("version", [1, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_another_version_is_called_that(version: int) -> None:
    with socket.create_server(HERE) as other:

        def speak() -> None:
            connection, _ = other.accept()
            connection.sendall(struct.pack("!4sB32s", b"RNDL", version, bytes(32)))
            drain(connection)
            connection.close()

        wanted = f"speaks version {version} .* this host version {PROTOCOL_VERSION}: install the same"
        with meanwhile(speak), pytest.raises(UnknownPeer, match=wanted):
            Link.connect(other.getsockname(), SECRET, {}, 60.0)
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
        assert (magic, version) == (b"RNDL", PROTOCOL_VERSION)
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
                    ours.sendall(GREETING.pack(b"RNDL", PROTOCOL_VERSION, 1, bytes(32))[: 10 * number])
                    ours.close()
                    continue
                theirs = raw(listener)
                with meanwhile(partial(pump, theirs, ours, bytearray())):
                    pump(ours, theirs, bytearray())
                ours.close()
                theirs.close()

        with meanwhile(stand):
            near = Link.connect(front.getsockname(), SECRET, {}, 60.0)
            far = listener.accept(60.0)
            assert far is not None
            near.close()
            far.close()
        assert met == [0, 1, 2, 3]


def test_who_is_always_sent_away_hears_so_and_not_of_a_wrong_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    reach = Link._reach
    with socket.create_server(HERE) as front:

        def sent_away(*given: Any) -> socket.socket:
            found = reach(*given)
            front.accept()[0].close()
            return found

        monkeypatch.setattr(Link, "_reach", sent_away)
        with pytest.raises(LinkTimeout, match=r"no host answers at .* within 0\.3 s \(.*(closed|broken)"):
            Link.connect(front.getsockname(), SECRET, {}, 0.3)


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
