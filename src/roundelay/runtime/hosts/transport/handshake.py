"""The handshake of two hosts: each proves that it knows the run's secret, and both derive keys that nobody else has.

    listener     magic, version, mode, a nonce
    connector    magic, version, mode, a nonce of its own, and a proof
    listener     a verdict, and if that is good its own proof
    both         their identities, in a first frame under the first keys
    both         change to keys that depend on all that was said so far, the identities included

A proof is a keyed hash (HMAC-SHA256, RFC 2104) over all that was said before. It names the role it is made in, so it
cannot be sent back as the other's, and nonces are fresh, so a recorded conversation opens nothing. Keys come from the
secret, which never travels, and both nonces, one for each role. Whoever merely passes the handshake on has no key, and
what it changes, leaves out or puts in afterwards has no good tag (seal.py). The mode says whether records are
encrypted; both ends must have the same, and since proofs and keys depend on it nobody can talk them into the other.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from roundelay.runtime.hosts.transport.seal import Sealer, derive

MAGIC = b"RNDL"
PROTOCOL_VERSION = 7
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING = struct.Struct(f"!4sBB{NONCE_BYTES}s")
ANSWER = struct.Struct(f"!4sBB{NONCE_BYTES}s{PROOF_BYTES}s")
VERDICT = struct.Struct(f"!B{PROOF_BYTES}s")
HEAD = struct.Struct("!4sB")
"""The first bytes of every version."""

WELCOME, UNPROVED, OTHER_MODE = 0, 1, 2
"""Verdicts."""

Role = Literal["connector", "listener"]
Hear = Callable[[int], bytes]
Say = Callable[[bytes], None]


class Refused(Exception):
    """The other end is not one of ours, or takes us for none; says why, as what follows its name."""


@dataclass(frozen=True)
class Keys:
    """The result of the proofs, the same at both ends but for the role. `said`: all of the handshake, in order."""

    role: Role
    secret: bytes = field(repr=False)
    salt: bytes
    encrypts: bool
    said: bytes

    def sealers(self, stage: str, facts: Sequence[bytes] = ()) -> tuple[Sealer, Sealer]:
        """Return sealers for what this end sends, and for what it receives.

        Args:
            stage: of the conversation; each has keys of its own.
            facts: what else both ends agree on, the connector's first: the keys depend on it.
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
    """Return the part of the connector.

    Raises:
        Refused.
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
        raise Refused("takes us for a stranger: is the run's secret the same there?")
    if verdict != WELCOME or not hmac.compare_digest(_prove(secret, "listener", greeting + answer), found):
        raise Refused("does not know the run's secret")
    return Keys("connector", secret, theirs + ours, encrypts, greeting + answer)


def admit(hear: Hear, say: Say, secret: bytes, encrypts: bool) -> Keys:
    """Return the part of the listener.

    Raises:
        Refused.
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
