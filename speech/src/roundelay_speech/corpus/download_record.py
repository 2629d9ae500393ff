"""The record of downloads in a folder, downloads.json: checksums of files, and which archives are unpacked.

A file has the published checksum or that of its first download, so that a file that changes later is noticed.
"""

import hashlib
from pathlib import Path
from typing import Any

from roundelay.core.files import read_json, write_json
from roundelay.core.progress import Progress

RECORD = "downloads.json"
BLOCK = 1 << 20


def megabytes(size: int) -> int:
    """Return whole megabytes of `size` bytes."""
    return size // 1_000_000


class DownloadRecord:
    """downloads.json: by file name its checksum, and size and time of change when it was last checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = read_json(path) if path.is_file() else {}
        self._entries: dict[str, dict[str, Any]] = found if isinstance(found, dict) else {}

    def digest(self, path: Path) -> str | None:
        return self._entries.get(path.name, {}).get("digest")

    def unchanged(self, path: Path) -> bool:
        """Return True if the file is as it was when its checksum was last verified."""
        return self._entries.get(path.name, {}).get("seen") == _seen(path)

    def keep(self, path: Path, file: Path, digest: str) -> None:
        """Note the checksum of `file`, which is, or is going to be, `path`."""
        self._entries[path.name] = {"digest": digest, "seen": _seen(file)}
        write_json(self.path, self._entries)

    def extracted(self, path: Path, folder: Path) -> bool:
        entry = self._entries.get(path.name, {})
        return entry.get("extracted") == [str(folder.absolute()), _seen(path)]

    def keep_extracted(self, path: Path, folder: Path) -> None:
        self._entries.setdefault(path.name, {})["extracted"] = [str(folder.absolute()), _seen(path)]
        write_json(self.path, self._entries)


def _seen(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def digest_of(path: Path, algorithm: str, progress: Progress) -> str:
    """Return `ALGORITHM:HEX` of a file; progress is told of every megabyte."""
    digest = hashlib.new(algorithm)
    progress.start(f"checking {path.name.removesuffix('.part')} (MB)", megabytes(path.stat().st_size))
    done = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            progress.advance(megabytes(done + len(block)) - megabytes(done))
            done += len(block)
    progress.finish()
    return f"{algorithm}:{digest.hexdigest()}"
