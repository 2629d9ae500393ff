"""Features of a corpus computed so far: safe from interrupts, and in the end the array itself.

Every finished utterance is in `partial.f32` and has a line in `partial.jsonl`; after an interrupt the work goes on
there.

Legend: F features.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, parse_json, unwritable
from roundelay_speech.data.arrays import HEADER_BYTES, Float32, npy_header
from roundelay_speech.features.store import FEATURES, INDEX

_PARTIAL, _JOURNAL = "partial.f32", "partial.jsonl"


@dataclass(frozen=True)
class Entry:
    """An utterance in the partial file; `reason` when it is left out."""

    key: str
    offset: int  # bytes
    frames: int
    width: int
    checksum: int
    reason: str

    @property
    def size(self) -> int:
        return 4 * self.frames * self.width


def finished_in(data: Path) -> int:
    """Return the number of utterances whose features are in a corpus's folders, in a store finished or not."""
    found = 0
    for folder in data.glob("*/"):
        try:
            if (folder / _JOURNAL).is_file():
                found += (folder / _JOURNAL).read_bytes().count(b"\n")
            elif (folder / INDEX).is_file() and (folder / FEATURES).is_file():
                found += len(parse_json((folder / INDEX).read_bytes()).get("utterances", ()))
        except (OSError, ValueError, AttributeError):
            continue
    return found


class Partial:
    """The file of features in the order of computation, and a journal with a line for each utterance, written after its
    features. The file begins with room for the header of a .npy file, so that it usually need not be copied."""

    def __init__(self, folder: Path, data: BinaryIO, journal: BinaryIO) -> None:
        self.folder, self._data, self._journal = folder, data, journal
        self.entries: dict[str, Entry] = {}
        self._end = HEADER_BYTES

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator["Partial"]:
        """Open the partial features of a folder, locked against other processes."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / _JOURNAL, "a+b") as journal, open(folder / _PARTIAL, "a+b") as data:
                try:
                    fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"{folder}: another process is computing these features. Wait for it, or end it."
                    ) from None
                yield cls(folder, data, journal)
        except OSError as error:
            raise unwritable(folder / FEATURES, error) from error

    @property
    def size(self) -> int:
        """Bytes of features in the file, whole or not."""
        return os.fstat(self._data.fileno()).st_size

    def keep(self, keys: Mapping[str, str]) -> None:
        """Read the features of an interrupted run, as far as they are whole; drop those with another key."""
        self._journal.seek(0)
        content = self._journal.read()
        whole = 0
        total = os.fstat(self._data.fileno()).st_size
        for line in content.splitlines(keepends=True):
            entry = _parsed(line, self._end)
            if entry is None or entry[1].offset + entry[1].size > total:
                break
            name, found = entry
            if zlib.crc32(self._read(found)) != found.checksum:
                break
            if keys.get(name) == found.key and not found.reason:  # a bad one may have been mended
                self.entries[name] = found
            self._end, whole = found.offset + found.size, whole + len(line)
        if not self.entries:
            self._end, whole = HEADER_BYTES, 0
        self._journal.truncate(whole)
        self._data.truncate(self._end)  # also makes room for the head

    def _read(self, entry: Entry) -> bytes:
        return os.pread(self._data.fileno(), entry.size, entry.offset)

    def add(self, name: str, key: str, features: Float32 | None, reason: str) -> None:
        """Add the features of an utterance, or the reason why it has none."""
        content = b"" if features is None else np.ascontiguousarray(features, "<f4").tobytes()
        frames, width = (0, 0) if features is None else features.shape
        entry = Entry(key, self._end, frames, width, zlib.crc32(content), reason)
        self._data.write(content)
        fields = [name, key, frames, width, entry.checksum, reason]
        self._data.flush()  # before the line that says so
        self._journal.write(json.dumps(fields).encode() + b"\n")
        self.entries[name] = entry
        self._end += len(content)

    def flush(self) -> None:
        """Write out everything added, so that it survives the death of this process."""
        self._journal.flush()

    def features(self, name: str) -> Float32:
        """Return the features of an utterance, (frames, F)."""
        entry = self.entries[name]
        return np.frombuffer(self._read(entry), "<f4").reshape(entry.frames, entry.width)

    def become(self, path: Path, names: Sequence[str], width: int) -> None:
        """Turn the features of `names` into a .npy file, by renaming if they are already in that order."""
        header = npy_header(sum(self.entries[name].frames for name in names), width)
        # Once the new array is safe on disk, and only then, the old store ceases to be one: its index goes before the
        # array is replaced, and the new index comes last.
        if self._in_order(names):
            descriptor = os.open(self.folder / _PARTIAL, os.O_RDWR)
            try:
                os.pwrite(descriptor, header, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            (self.folder / INDEX).unlink(missing_ok=True)
            os.replace(self.folder / _PARTIAL, path)
            return
        with atomic_write(path) as file:
            file.write(header)
            for name in names:
                file.write(self._read(self.entries[name]))
            file.flush()
            os.fsync(file.fileno())
            (self.folder / INDEX).unlink(missing_ok=True)

    def _in_order(self, names: Sequence[str]) -> bool:
        """Return True if the file holds these utterances one after the other and nothing else."""
        offset = HEADER_BYTES
        for name in names:
            if self.entries[name].offset != offset:
                return False
            offset += self.entries[name].size
        return offset == self._end

    def discard(self) -> None:
        """Remove the partial files, once the store is whole."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        (self.folder / _PARTIAL).unlink(missing_ok=True)


def _parsed(line: bytes, offset: int) -> tuple[str, Entry] | None:
    """Return the utterance and entry of a line of the journal; None if the line is not whole."""
    try:
        name, key, frames, width, checksum, reason = parse_json(line)
    except (ValueError, TypeError):
        return None
    if not line.endswith(b"\n") or not all(isinstance(n, int) and n >= 0 for n in (frames, width)):
        return None
    return str(name), Entry(str(key), offset, frames, width, checksum, str(reason))
