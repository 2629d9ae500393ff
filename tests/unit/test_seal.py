"""Records: what is opened is what was sealed, in its order, or nothing."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.runtime.hosts.transport import handshake
from roundelay.runtime.hosts.transport.handshake import (
    RECORD_BYTES,
    TAG_BYTES,
    Forged,
    Keys,
    Sealer,
    cut,
    derive,
    sizes,
)

KEY = bytes(range(32))
BOTH = pytest.mark.parametrize("encrypts", [True, False], ids=["encrypted", "tagged"])


def sealed(sealer: Sealer, data: bytes) -> bytes:
    return bytes(sealer.seal(memoryview(data), memoryview(bytearray(len(data) + TAG_BYTES))))


def opened(sealer: Sealer, record: bytes) -> bytes:
    return bytes(sealer.open(memoryview(record), memoryview(bytearray(max(0, len(record) - TAG_BYTES)))))


@BOTH
@pytest.mark.parametrize("size", [0, 1, 13, RECORD_BYTES])
def test_what_is_opened_is_what_was_sealed(size: int, encrypts: bool) -> None:
    out, in_ = Sealer(KEY, encrypts), Sealer(KEY, encrypts)
    data = np.random.default_rng(0).bytes(size)
    for _ in range(3):
        record = sealed(out, data)
        assert len(record) == size + TAG_BYTES
        assert (data in record) == (not encrypts or not size)
        assert opened(in_, record) == data


@BOTH
def test_a_record_is_good_once_and_in_its_place(encrypts: bool) -> None:
    out = Sealer(KEY, encrypts)
    first, second = sealed(out, b"first"), sealed(out, b"second")
    in_ = Sealer(KEY, encrypts)
    assert opened(in_, first) == b"first"
    with pytest.raises(Forged):
        opened(in_, first)
    with pytest.raises(Forged):
        opened(Sealer(KEY, encrypts), second)
    with pytest.raises(Forged):
        opened(Sealer(bytes(32), encrypts), first)
    with pytest.raises(Forged):
        opened(Sealer(KEY, not encrypts), first)


@BOTH
@given(data=st.binary(max_size=40), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_every_bit_is_covered(encrypts: bool, data: bytes, at: int, bit: int) -> None:
    record = bytearray(sealed(Sealer(KEY, encrypts), data))
    record[at % len(record)] ^= 1 << bit
    with pytest.raises(Forged):
        opened(Sealer(KEY, encrypts), bytes(record))


@BOTH
def test_keys_are_renewed_and_the_old_ones_do_not_open_what_comes_after(
    encrypts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "RECORDS_A_KEY", 4)
    out, in_ = Sealer(KEY, encrypts), Sealer(KEY, encrypts)
    records = [sealed(out, b"the same") for _ in range(13)]
    assert len(set(records)) == 13
    assert [opened(in_, record) for record in records] == [b"the same"] * 13


def test_a_record_is_of_one_moment_whatever_happens_to_what_was_sealed() -> None:
    for encrypts in (True, False):
        live = bytearray(b"before")
        room = memoryview(bytearray(100))
        record = Sealer(KEY, encrypts).seal(memoryview(live), room)
        live[:] = b"later."
        assert opened(Sealer(KEY, encrypts), bytes(record)) == b"before"


def test_keys_are_those_of_rfc_5869() -> None:
    """Worked out by hand: extract, then one block of expand."""
    extracted = hmac.digest(b"salt", b"secret", "sha256")
    assert derive(b"secret", b"salt", b"label") == hmac.digest(extracted, b"label\x01", "sha256")


def test_each_direction_stage_role_and_conversation_has_keys_of_its_own() -> None:
    keys = [
        derived
        for salt in (b"one", b"other")
        for said in (b"this", b"that")
        for stage in ("hello", "run")
        for facts in ([b"a", b"b"], [b"b", b"a"], [b"ab", b""])
        for derived in Keys("connector", b"secret", salt, True, said).sealers(stage, facts)
    ]
    records = {sealed(sealer, b"the same") for sealer in keys}
    assert len(records) == len(keys) == 2 * 2 * 2 * 3 * 2
    out, in_ = Keys("connector", b"secret", b"salt", True, b"said").sealers("run")
    there_out, there_in = Keys("listener", b"secret", b"salt", True, b"said").sealers("run")
    assert opened(there_in, sealed(out, b"x")) == b"x"
    assert opened(in_, sealed(there_out, b"x")) == b"x"


def test_a_proof_depends_on_the_secret_the_role_and_all_that_was_said() -> None:
    def proof(secret: bytes, role: handshake.Role, said: bytes) -> bytes:
        return handshake._prove(secret, role, said)

    first = proof(b"s", "connector", b"said")
    words = f"roundelay {handshake.PROTOCOL_VERSION} proof of the connector".encode()
    assert first == hmac.new(b"s", words + b"\0said", hashlib.sha256).digest()
    others = [proof(b"t", "connector", b"said"), proof(b"s", "listener", b"said"), proof(b"s", "connector", b"")]
    assert len({first, *others}) == 4


@given(st.lists(st.integers(0, 3 * RECORD_BYTES), max_size=5))
def test_records_are_cut_alike_however_the_data_lies(lengths: list[int]) -> None:
    whole = np.random.default_rng(len(lengths)).bytes(sum(lengths))
    views, at = [], 0
    for length in lengths:
        views.append(memoryview(whole)[at : at + length])
        at += length
    pieces = [bytes(piece) for piece in cut(views)]
    assert b"".join(pieces) == whole
    assert [len(piece) for piece in pieces] == list(sizes(len(whole)))
