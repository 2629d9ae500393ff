"""The handshake of two hosts: each proves that it knows the run's secret, and both derive keys that no other process
has.

    listener     magic, version, mode, a nonce
    connector    magic, version, mode, a nonce of its own, and a proof
    listener     a verdict, and if that is good its own proof
    both         their identities, in a first frame under the first keys
    both         change to keys that depend on all that was said so far, the identities included
    connector    that it has taken the link; before that the listener gives it to no part of the run

A proof is a keyed hash (HMAC-SHA256, RFC 2104) over all that was said before. It names the role it is made in, so it
cannot be sent back as the other's, and nonces are fresh, so a recorded conversation opens nothing. Keys come from the
secret, which never travels, and both nonces, one for each role. A process that merely passes the handshake on has no
key, and bytes that it changes, leaves out or puts in afterwards have no good tag. The mode says whether
records are encrypted; both ends must have the same, and since proofs and keys depend on it no attacker can talk them
into the other.

Sealed bytes between two hosts: a change, gap, repetition or insertion on the way is noticed.

All that one end sends is cut into records of at most RECORD_BYTES. Each is sealed by AES-256-GCM (NIST SP 800-38D)
under a key of that direction, with the number of the record as nonce, so a record is good once, and only in its place.
Its tag of 16 bytes follows it. Records are encrypted, or, where that is switched off, go in the clear as associated
data, and only the tag is computed (GMAC). After RECORDS_A_KEY records both ends change to a key derived from the last.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from roundelay.core.extras import Binding

_aead = Binding("cryptography.hazmat.primitives.ciphers.aead", "hosts")
_exceptions = Binding("cryptography.exceptions", "hosts")
_hashes = Binding("cryptography.hazmat.primitives.hashes", "hosts")
_hkdf = Binding("cryptography.hazmat.primitives.kdf.hkdf", "hosts")

RECORD_BYTES = 1 << 20
"""Bytes of data in one record: few enough to stay in cache between the socket and their place."""
TAG_BYTES = 16
KEY_BYTES = 32
RECORDS_A_KEY = 1 << 18
"""Records that are sealed with one key: 256 GiB, far below the limit of AES-GCM."""

_NONCE_BYTES = 12


class Forged(Exception):
    """Error: a record does not have the tag that it should have in its place."""


def derive(secret: bytes, salt: bytes, label: bytes) -> bytes:
    """Return a key of KEY_BYTES for the purpose in `label`, from a shared secret and a salt that was never used before
    (HKDF with SHA-256, RFC 5869)."""
    key: bytes = _hkdf.HKDF(algorithm=_hashes.SHA256(), length=KEY_BYTES, salt=salt, info=label).derive(secret)
    return key


class Sealer:
    """Sealer of records for one direction of a link, at the end that sends or the one that receives: both count alike.

    Args:
        key: key of this direction and link alone, KEY_BYTES.
        encrypts: False to authenticate records without hiding them.
    """

    def __init__(self, key: bytes, encrypts: bool = True) -> None:
        self.encrypts, self._number = encrypts, 0
        self._use(key)

    def _use(self, key: bytes) -> None:
        self._cipher = _aead.AESGCM(_expand(key, b"roundelay record"))
        self._next_key, self._number = _expand(key, b"roundelay next key"), 0

    def _nonce(self) -> bytes:
        if self._number == RECORDS_A_KEY:
            self._use(self._next_key)
        self._number += 1
        return self._number.to_bytes(_NONCE_BYTES, "big")

    def seal(self, data: memoryview, room: memoryview) -> memoryview:
        """Return the next record, of `data`: the part of `room` that it fills, which needs TAG_BYTES more than `data`.
        The record has `data` as it was at one moment, even if a thread writes it meanwhile."""
        size, nonce = len(data), self._nonce()
        filled = room[: size + TAG_BYTES]
        if self.encrypts:
            self._cipher.encrypt_into(nonce, data, None, filled)
        else:
            filled[:size] = data
            self._cipher.encrypt_into(nonce, b"", filled[:size], filled[size:])
        return filled

    def open(self, record: memoryview, room: memoryview) -> memoryview:
        """Return the data of the next record, which is in `room` or in `record`, until either is used again.

        Raises:
            Forged: `record` is not the next record that was sent.
        """
        size = len(record) - TAG_BYTES
        if not self.encrypts:
            self.verify(record[:size], record[size:])
            return record[:size]
        nonce = self._nonce()  # first, for it may change the key
        try:
            self._cipher.decrypt_into(nonce, record, None, room[:size])
        except _exceptions.InvalidTag as error:
            raise Forged from error
        return room[:size]

    def verify(self, data: memoryview, tag: memoryview) -> None:
        """Verify that the next record has this data and this tag, where records are not encrypted.

        Raises:
            Forged: data or tag are not those of the next record that was sent.
        """
        nonce = self._nonce()
        try:
            self._cipher.decrypt(nonce, tag, data)
        except _exceptions.InvalidTag as error:
            raise Forged from error


def _expand(key: bytes, label: bytes) -> bytes:
    derived: bytes = _hkdf.HKDFExpand(algorithm=_hashes.SHA256(), length=KEY_BYTES, info=label).derive(key)
    return derived


def cut(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cut the bytes of `views`, one after the other, into the data of records: each is good until the next is asked
    for. Only data that does not lie in one piece is copied."""
    joint, filled = memoryview(b""), 0
    for number, view in enumerate(views):
        at = 0
        while at < len(view):
            last = number == len(views) - 1 and not filled
            if not filled and (last or len(view) - at >= RECORD_BYTES):
                yield view[at : at + RECORD_BYTES]
                at += RECORD_BYTES
                continue
            joint = joint or memoryview(bytearray(RECORD_BYTES))
            taken = min(RECORD_BYTES - filled, len(view) - at)
            joint[filled : filled + taken] = view[at : at + taken]
            filled, at = filled + taken, at + taken
            if filled == RECORD_BYTES:
                yield joint
                filled = 0
    if filled:
        yield joint[:filled]


def sizes(size: int) -> Iterator[int]:
    """Yield the sizes, in bytes, of the data of the records into which `size` bytes are cut."""
    for at in range(0, size, RECORD_BYTES):
        yield min(RECORD_BYTES, size - at)


MAGIC = b"RNDL"
PROTOCOL_VERSION = 10
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING = struct.Struct(f"!4sBB{NONCE_BYTES}s")
ANSWER = struct.Struct(f"!4sBB{NONCE_BYTES}s{PROOF_BYTES}s")
VERDICT = struct.Struct(f"!B{PROOF_BYTES}s")
HEAD = struct.Struct("!4sB")
"""Format of the first bytes of a handshake, the same in every version: magic and version."""

WELCOME, UNPROVED, OTHER_MODE = 0, 1, 2
"""Verdicts of the listener on the connector's proof."""

Role = Literal["connector", "listener"]
Hear = Callable[[int], bytes]
Say = Callable[[bytes], None]


class Refused(Exception):
    """Error: one end does not accept the other; says why, in words that follow the name of the other end."""


@dataclass(frozen=True)
class Keys:
    """Result of the proofs, the same at both ends but for `role`; `said` is all of the handshake, in order."""

    role: Role
    secret: bytes = field(repr=False)
    salt: bytes
    encrypts: bool
    said: bytes

    def sealers(self, stage: str, facts: Sequence[bytes] = ()) -> tuple[Sealer, Sealer]:
        """Return the sealer of sent records, and that of received ones.

        Args:
            stage: name of the stage of the conversation; each stage has keys of its own.
            facts: other facts on which both ends agree, the connector's first: the keys depend on them.
        """
        agreed = hashlib.sha256(self.said)
        for fact in facts:
            agreed.update(len(fact).to_bytes(8, "big") + fact)
        roles: tuple[Role, Role] = ("connector", "listener")
        out, in_ = (
            Sealer(derive(self.secret, self.salt, _label(f"{stage}: from the {role}") + agreed.digest()), self.encrypts)
            for role in (roles if self.role == "connector" else roles[::-1])
        )
        return out, in_


def introduce(hear: Hear, say: Say, secret: bytes, encrypts: bool) -> Keys:
    """Do the connector's part of the handshake, and return the keys.

    Raises:
        Refused: the listener does not prove that it knows the secret, refuses this end, or has another mode.
    """
    head = hear(HEAD.size)
    _check_version(*HEAD.unpack(head))
    greeting = head + hear(GREETING.size - HEAD.size)
    _, _, mode, theirs = GREETING.unpack(greeting)
    ours = os.urandom(NONCE_BYTES)
    answer = ANSWER.pack(MAGIC, PROTOCOL_VERSION, int(encrypts), ours, bytes(PROOF_BYTES))[:-PROOF_BYTES]
    answer += _prove(secret, "connector", greeting + answer)
    say(answer)
    verdict, found = VERDICT.unpack(hear(VERDICT.size))
    if verdict == OTHER_MODE or mode != encrypts:
        raise Refused(_other_mode(encrypts))
    if verdict == UNPROVED:
        raise Refused("takes us for a stranger: the run's secret is another one there")
    if verdict != WELCOME or not hmac.compare_digest(_prove(secret, "listener", greeting + answer), found):
        raise Refused("does not know the run's secret")
    return Keys("connector", secret, theirs + ours, encrypts, greeting + answer)


def admit(hear: Hear, say: Say, secret: bytes, encrypts: bool) -> Keys:
    """Do the listener's part of the handshake, and return the keys.

    Raises:
        Refused: the connector does not prove that it knows the secret, or has another version or mode.
    """
    ours = os.urandom(NONCE_BYTES)
    greeting = GREETING.pack(MAGIC, PROTOCOL_VERSION, int(encrypts), ours)
    say(greeting)
    head = hear(HEAD.size)
    _check_version(*HEAD.unpack(head))
    answer = head + hear(ANSWER.size - HEAD.size)
    _, _, mode, theirs, found = ANSWER.unpack(answer)
    if not hmac.compare_digest(_prove(secret, "connector", greeting + answer[:-PROOF_BYTES]), found):
        say(VERDICT.pack(UNPROVED, bytes(PROOF_BYTES)))
        raise Refused("does not know the run's secret")
    if mode != encrypts:
        say(VERDICT.pack(OTHER_MODE, bytes(PROOF_BYTES)))
        raise Refused(_other_mode(encrypts))
    say(VERDICT.pack(WELCOME, _prove(secret, "listener", greeting + answer)))
    return Keys("listener", secret, ours + theirs, encrypts, greeting + answer)


def _check_version(magic: bytes, version: int) -> None:
    if magic != MAGIC:
        raise Refused("is not Roundelay")
    if version != PROTOCOL_VERSION:
        raise Refused(
            f"speaks version {version} of the language between hosts, and this host version {PROTOCOL_VERSION}: "
            "install the same version of Roundelay on all hosts"
        )


def _other_mode(encrypts: bool) -> str:
    here, there = ("encrypts", "does not") if encrypts else ("does not encrypt", "does")
    return f"has other rules: this host {here} what it sends and that one {there}. Give all the same training.encrypt"


def _prove(secret: bytes, role: Role, said: bytes) -> bytes:
    return hmac.digest(secret, _label(f"proof of the {role}") + said, "sha256")


def _label(of: str) -> bytes:
    return f"roundelay {PROTOCOL_VERSION} {of}".encode() + b"\0"
