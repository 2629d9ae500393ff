"""Files from the network, whole and as published; archives of free corpora, unpacked in SOURCE and nowhere else.

A download goes into FOLDER/NAME.part, beside NAME.part.json, with the server's name for this version of the file
(ETag or Last-Modified). A download that broke off goes on from its last byte (Range, with If-Range where the server
named the version); a server that ignores the range, or has another version by now, is read from the start. Only a file
of the announced length and the known checksum is renamed to NAME. FOLDER/downloads.json keeps the checksum of every
file.

The record of downloads in a folder, downloads.json: checksums of files, and which archives are unpacked.

A file has the published checksum or that of its first download, so that a file that changes later is noticed.

The addresses of a corpus stand in the file of its reader. Checksums are published ones where there are any. Where there
is none, the first download's is kept and held to, which is trust on first use, and said so.
"""

import fcntl
import hashlib
import os
import re
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from roundelay.core.errors import UserError
from roundelay.core.files import parse_json, read_json, unwritable, write_json
from roundelay.core.progress import Progress, mention

RECORD = "downloads.json"
BLOCK = 1 << 20


def megabytes(size: int) -> int:
    """Return whole megabytes of `size` bytes."""
    return size // 1_000_000


class DownloadRecord:
    """The record of downloads (downloads.json): by file, checksum, and size and time of change at the last check."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = read_json(path) if path.is_file() else {}
        self._entries: dict[str, dict[str, Any]] = found if isinstance(found, dict) else {}

    def digest(self, path: Path) -> str | None:
        return self._entries.get(path.name, {}).get("digest")

    def unchanged(self, path: Path) -> bool:
        """Return True if a file has not changed since its checksum was last verified."""
        return self._entries.get(path.name, {}).get("seen") == _seen(path)

    def keep(self, path: Path, file: Path, digest: str) -> None:
        """Record the checksum of `file`, which is, or will be renamed to, `path`."""
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
    """Return `ALGORITHM:HEX` of a file; progress advances with every megabyte."""
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


ATTEMPTS = 5
"""Attempts in a row without any new byte before a download is given up."""
STALL_SECONDS = 60.0
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Remote:
    """One file on a server."""

    url: str
    # `md5:...` or `sha256:...` as published; None: that of the first download is kept and held to.
    digest: str | None = None

    @property
    def name(self) -> str:
        return self.url.rsplit("/", maxsplit=1)[-1]


def fetch(
    remote: Remote,
    folder: Path,
    progress: Progress,
    *,
    attempts: int = ATTEMPTS,
    stall_seconds: float = STALL_SECONDS,
) -> Path:
    """Download a file into `folder`, or go on with it, unless it is there with the right checksum; return its path.

    Args:
        attempts: attempts in a row without any new byte before the download is given up.
        stall_seconds: seconds without a byte after which a connection counts as broken.

    Raises:
        UserError: the download failed; names the address, the fault, and what to do. Useful bytes stay for the next
            call.
    """
    path = folder / remote.name
    record = DownloadRecord(folder / RECORD)
    if path.exists():
        _check_present(path, remote, record, progress)
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _part(path, remote) as part:
            for last in (False, True):
                _load(part, remote, progress, attempts, stall_seconds)
                wanted = remote.digest or record.digest(path)
                found = digest_of(part.path, (wanted or "sha256:").partition(":")[0], progress)
                if wanted is None or found == wanted:
                    break
                part.forget()
                if last:
                    raise UserError(
                        f"{remote.url}: what comes from there is not the file it should be, twice (found {found}, "
                        f"expected {wanted}). Something on the way alters it, or it was replaced: load it by hand, see "
                        f"that its checksum is right, and put it at {path}."
                    )
            record.keep(path, part.path, found)
            part.finish()
            if remote.digest is None and wanted is None:
                _say_trusted(remote, found, progress)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def _say_trusted(remote: Remote, found: str, progress: Progress) -> None:
    """Say that the first download is taken on trust, as no checksum is published, and how to check it."""
    plain = ", and it came unencrypted (http)" if remote.url.startswith("http:") else ""
    mention(progress, f"{remote.name}: no checksum is published{plain}; kept, and held to from now on", found)


class _Again(Exception):
    """An attempt broke off, and the next may go on; the message is for the case that no attempt is left."""


@dataclass
class _Part:
    """An unfinished download: its file, and the facts known of it."""

    final: Path
    file: BinaryIO
    url: str

    @property
    def path(self) -> Path:
        return self.final.with_name(f"{self.final.name}.part")

    @property
    def note(self) -> Path:
        return self.final.with_name(f"{self.final.name}.part.json")

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def version(self) -> Mapping[str, Any]:
        """Return the server's headers that identify the version being loaded; empty if the address has changed."""
        if not self.note.is_file():
            return {}
        try:
            found = parse_json(self.note.read_text(encoding="utf-8"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) and found.get("url") == self.url else {}

    def restart(self, version: Mapping[str, Any]) -> None:
        self.file.seek(0)
        self.file.truncate()
        write_json(self.note, {"url": self.url, **version})

    def forget(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.note.unlink(missing_ok=True)

    def finish(self) -> None:
        os.fsync(self.file.fileno())
        os.replace(self.path, self.final)
        self.note.unlink(missing_ok=True)


@contextmanager
def _part(path: Path, remote: Remote) -> Iterator[_Part]:
    """Open the unfinished file, for one process at a time."""
    with open(path.with_name(f"{path.name}.part"), "ab+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path}: another process is downloading it. Wait for that one, or stop it.") from None
        yield _Part(path, file, remote.url)


def _load(part: _Part, remote: Remote, progress: Progress, attempts: int, stall_seconds: float) -> None:
    """Load a file, by several attempts, until it has the announced length."""
    furthest, in_vain = part.size, 0
    try:
        while True:
            try:
                return _attempt(part, remote, progress, stall_seconds)
            except _Again as error:
                in_vain = 0 if part.size > furthest else in_vain + 1
                furthest = max(furthest, part.size)
                if in_vain >= attempts:
                    raise UserError(
                        f"{remote.url}: {error}; {attempts} attempts in a row brought nothing new. {part.size} bytes "
                        f"are kept in {part.path}: run the same command again later to go on, or load the file by hand "
                        f"and put it at {part.final}."
                    ) from None
    finally:
        progress.finish()


def _attempt(part: _Part, remote: Remote, progress: Progress, stall_seconds: float) -> None:
    """Download the rest of a file in one request. Raise `_Again` if the server or the connection fails."""
    version = part.version()
    # Bytes of an unknown version are of use only where a checksum will tell whether they belong to the rest.
    if part.size and not (version.get("validator") or (version and remote.digest)):
        part.forget()
    begin = part.size
    headers = {"Accept-Encoding": "identity", "User-Agent": "roundelay"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
        if validator := version.get("validator"):
            headers["If-Range"] = str(validator)
    request = urllib.request.Request(remote.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=stall_seconds) as response:
            if remote.digest is None and remote.url.startswith("https:") and response.url.startswith("http:"):
                raise UserError(
                    f"{remote.url}: leads to {response.url}, which is not encrypted, and no checksum is published: "
                    "anybody on the way could alter it. Load it by hand, see that it is right, and put it at "
                    f"{part.final}."
                )
            total = _begin(part, response, begin)
            progress.start(f"downloading {remote.name} (MB)", None if total is None else megabytes(total))
            progress.advance(megabytes(part.size))
            _copy(part, response, progress, total)
    except urllib.error.HTTPError as error:
        with error:
            _refused(part, remote, error, begin)
    except TimeoutError:
        raise _Again(f"no data for {stall_seconds:g} s") from None
    except urllib.error.URLError as error:
        raise _Again(f"no connection ({error.reason})") from None
    except (HTTPException, ConnectionError, ssl.SSLError) as error:
        raise _Again(f"the connection broke off ({error!r})") from None


def _begin(part: _Part, response: HTTPResponse, begin: int) -> int | None:
    """Find the position where the answer begins; start over if that is 0. Return the length of the whole file."""
    if response.headers.get_content_type() == "text/html":
        raise UserError(
            f"{response.url}: a web page comes from there, not the file; a network may want you to log in first. "
            f"Look at it with a browser, or load the file by hand and put it at {part.final}."
        )
    length = response.headers.get("Content-Length", "")
    here = int(length) if length.isdecimal() else None
    if response.status == 206:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if match is None or int(match[1]) != begin:
            part.forget()
            raise _Again(f"the server sent another range than bytes {begin} and on")
        return int(match[2]) if match[2] != "*" else None if here is None else begin + here
    etag = response.headers.get("ETag", "")
    # A weak tag (W/) says "much the same file": not enough to join bytes.
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")
    part.restart({"validator": validator, "size": here})
    return here


def _copy(part: _Part, response: HTTPResponse, progress: Progress, total: int | None) -> None:
    while block := response.read1(BLOCK):
        before = part.size
        view = memoryview(block)
        while view:
            view = view[part.file.write(view) :]
        progress.advance(megabytes(part.size) - megabytes(before))
    if total is not None and part.size < total:
        raise _Again(f"the connection ended after {part.size} of {total} bytes")
    if total is not None and part.size > total:
        size = part.size
        part.forget()
        raise _Again(f"the server sent {size} bytes, more than the {total} it announced")


def _refused(part: _Part, remote: Remote, error: urllib.error.HTTPError, begin: int) -> None:
    """Handle an HTTP error: raise to try again, return when nothing is left to load, or raise for good."""
    if error.code == 416 and begin:
        if error.headers.get("Content-Range", "").strip() == f"bytes */{begin}":
            return  # broken off between the last byte and the renaming
        part.forget()
        raise _Again("the server's file is shorter than what is here")
    if error.code in _AGAIN:
        raise _Again(f"the server answers {error.code} {error.reason}")
    raise UserError(
        f"{remote.url}: the server answers {error.code} {error.reason}. Look with a browser whether the file moved; "
        f"load it by hand and put it at {part.final}, or name the folder of the corpus with `--source`."
    )


def _check_present(path: Path, remote: Remote, record: DownloadRecord, progress: Progress) -> None:
    wanted = remote.digest or record.digest(path)
    if wanted is not None and record.digest(path) == wanted and record.unchanged(path):
        return
    found = digest_of(path, (wanted or "sha256:").partition(":")[0], progress)
    if wanted is not None and found != wanted:
        raise UserError(
            f"{path}: not the file that {remote.url} gives (found {found}, expected {wanted}). Delete it, and run the "
            "same command again to load it anew."
        )
    record.keep(path, path, found)


OPENSLR = "https://www.openslr.org/resources"


@dataclass(frozen=True)
class Wanted:
    """The files of a corpus on the network."""

    archives: tuple[Remote, ...]
    lexicon: Remote | None = None


def download(corpus: Wanted, source: Path, progress: Progress, *, with_lexicon: bool = True) -> Path | None:
    """Download and unpack all files of a corpus into `source`; return the path of its dictionary, if it has one."""
    for remote in corpus.archives:
        extract(fetch(remote, source, progress), source, progress)
    return fetch(corpus.lexicon, source, progress) if corpus.lexicon and with_lexicon else None


def parts_of(resource: int, known: Mapping[str, str], parts: Sequence[str]) -> tuple[Remote, ...]:
    """Return the archives of some `parts` of a resource of OpenSLR; `known` has the checksum of each part.

    Raises:
        UserError: there is no such part.
    """
    if odd := [part for part in parts if part not in known]:
        raise UserError(f"--download: there is no part {', '.join(odd)}; choose from {', '.join(known)}.")
    return tuple(Remote(f"{OPENSLR}/{resource}/{part}.tar.gz", known[part]) for part in dict.fromkeys(parts))


def extract(archive: Path, folder: Path, progress: Progress) -> None:
    """Unpack a tar archive into `folder`, once; only files and folders, and none outside `folder`.

    It is unpacked beside its place, and moved there once it is complete.

    Raises:
        UserError: the archive is damaged; a member is a link or a device, or would lie outside `folder`.
    """
    record = DownloadRecord(archive.with_name(RECORD))
    if record.extracted(archive, folder):
        return
    staging = folder / f".{archive.name}.unpacking"
    progress.start(f"unpacking {archive.name}")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                _refuse(archive, member)
                tar.extract(member, staging, filter="data")
                progress.advance()
            # The checksum of a packed archive is behind its last member.
            while tar.fileobj is not None and tar.fileobj.read(BLOCK):
                pass
        _merge(staging, folder)
        record.keep_extracted(archive, folder)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UserError(
            f"{archive}: not a sound archive ({error}). Delete it and run the same command again."
        ) from error
    except OSError as error:
        if type(error).__name__ == "BadGzipFile":
            raise UserError(f"{archive}: a damaged gzip file. Delete it and run the same command again.") from error
        raise unwritable(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        progress.finish()


def _refuse(archive: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    reason = None
    if name.is_absolute() or ".." in name.parts:
        reason = "would lie outside the folder"
    elif not (member.isfile() or member.isdir()):
        reason = "is a link or a device"
    if reason is not None:
        raise UserError(
            f"{archive}: its member {member.name!r} {reason}; no corpus needs such members, so this is not the archive "
            "it should be. Nothing of it was kept."
        )


def _merge(source: Path, target: Path) -> None:
    """Move everything in `source` to `target`, over files that are there."""
    for path in sorted(source.iterdir()):
        there = target / path.name
        if path.is_dir() and there.is_dir() and not there.is_symlink():
            _merge(path, there)
        else:
            os.replace(path, there)
