"""Downloads of free corpora: files into SOURCE, archives unpacked there without letting them out of it.

The addresses of a corpus stand in the file of its reader. Checksums are published ones where there are any. Where there
is none, the first download's is kept and held to, which is trust on first use, and said so.
"""

import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from roundelay.core.errors import UserError
from roundelay.core.files import unwritable
from roundelay.core.progress import Progress
from roundelay_speech.corpus.download import BLOCK, RECORD, DownloadRecord, Remote, fetch

OPENSLR = "https://www.openslr.org/resources"


@dataclass(frozen=True)
class Wanted:
    """The files of a corpus on the network."""

    archives: tuple[Remote, ...]
    lexicon: Remote | None = None


def download(corpus: Wanted, source: Path, progress: Progress, *, with_lexicon: bool = True) -> Path | None:
    """Bring and unpack everything into `source`; return where the pronunciation dictionary is, if one is brought."""
    for remote in corpus.archives:
        extract(fetch(remote, source, progress), source, progress)
    return fetch(corpus.lexicon, source, progress) if corpus.lexicon and with_lexicon else None


def parts_of(resource: int, known: Mapping[str, str], parts: Sequence[str]) -> tuple[Remote, ...]:
    """Return the archives of these parts of a resource of OpenSLR; `known` has the checksum of each part.

    Raises:
        UserError: there is no such part.
    """
    if odd := [part for part in parts if part not in known]:
        raise UserError(f"--download: there is no part {', '.join(odd)}; choose from {', '.join(known)}.")
    return tuple(Remote(f"{OPENSLR}/{resource}/{part}.tar.gz", known[part]) for part in dict.fromkeys(parts))


def extract(archive: Path, folder: Path, progress: Progress) -> None:
    """Unpack a tar archive into `folder`, once; only files and folders, and none outside `folder`.

    It is unpacked beside its place and moved there when all of it is there.

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
            f"{archive}: its member {member.name!r} {reason}; a corpus needs none such, so this is not the archive it "
            "should be. Nothing of it was kept."
        )


def _merge(source: Path, target: Path) -> None:
    """Move everything in `source` to `target`, over what is there."""
    for path in sorted(source.iterdir()):
        there = target / path.name
        if path.is_dir() and there.is_dir() and not there.is_symlink():
            _merge(path, there)
        else:
            os.replace(path, there)
