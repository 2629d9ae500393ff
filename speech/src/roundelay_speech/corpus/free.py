"""Downloads of free corpora: files into SOURCE, archives unpacked there.

The addresses of a corpus stand in the file of its reader. Checksums are published ones where there are any. Where there
is none, the first download's is kept and held to, which is trust on first use, and said so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.download import Remote, fetch
from roundelay_speech.corpus.unpacking import extract

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
