"""Sealed bytes between two hosts: a change, gap, repetition or insertion on the way is noticed.

All that one end sends is cut into records of at most RECORD_BYTES. Each is sealed by AES-256-GCM (NIST SP 800-38D)
under a key of that direction, with the number of the record as nonce, so a record is good once, and only in its place.
Its tag of 16 bytes follows it. Records are encrypted, or, where that is switched off, go in the clear as associated
data, and only the tag is computed (GMAC). After RECORDS_A_KEY records both ends change to a key derived from the last.
"""

from collections.abc import Iterator, Sequence

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
"""256 GiB: so far below what AES-GCM bears under one key that nobody has to count."""

_NONCE_BYTES = 12


class Forged(Exception):
    """A record does not have the tag that it should have in its place."""


def derive(secret: bytes, salt: bytes, label: bytes) -> bytes:
    """Return a key of KEY_BYTES for what `label` names, from a shared secret and a salt that was never used before
    (HKDF with SHA-256, RFC 5869)."""
    key: bytes = _hkdf.HKDF(algorithm=_hashes.SHA256(), length=KEY_BYTES, salt=salt, info=label).derive(secret)
    return key


class Sealer:
    """One direction of a link, at the end that sends or at the end that receives: both count alike.

    Args:
        key: of this direction and link alone, KEY_BYTES.
        encrypts: False: records are authenticated and not hidden.
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
        What is sealed is what `data` was at one moment, whoever writes it meanwhile."""
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
            Forged: it is not what was sent as the next.
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
            Forged: it is not what was sent as the next.
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
    """Yield sizes of the data of the records that `size` bytes are cut into."""
    for at in range(0, size, RECORD_BYTES):
        yield min(RECORD_BYTES, size - at)
