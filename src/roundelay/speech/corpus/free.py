"""Addresses of the free corpora for `--download`: files go into SOURCE, archives are unpacked there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.speech.corpus.download import Remote, fetch
from roundelay.speech.corpus.unpacking import extract

# Checksums: OpenSLR publishes md5 sums; those of LibriSpeech here are the sha256 sums that torchaudio's loader carries,
# and that of FSDD is the one of TensorFlow Datasets; CMUdict is that of one commit. Where there is none, the first
# download's is kept and held to, which is trust on first use, and said so. AN4 is published by http.
_LIBRISPEECH: Mapping[str, str] = {
    "train-clean-100": "sha256:d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "sha256:146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "sha256:ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
    "dev-clean": "sha256:76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "sha256:12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "sha256:39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "sha256:d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
}
_MINI: Mapping[str, str] = {
    "train-clean-5": "md5:5df7d4e78065366204ca6845bb08f490",
    "dev-clean-2": "md5:6d7ab67ac6a1d2c993d050e16d61080d",
}
OPENSLR = "https://www.openslr.org/resources"
_FSDD = Remote(
    "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz",
    "sha256:8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0",
)
_AN4 = Remote("http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz")
_CMUDICT = Remote(
    "https://raw.githubusercontent.com/cmusphinx/cmudict/0f8072f814306c5ee4fbf992ed853601b12c01f9/cmudict.dict",
    "sha256:81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
)
_LIBRISPEECH_LEXICON = Remote(f"{OPENSLR}/11/librispeech-lexicon.txt")

DOWNLOADED_PARTS = ("train-clean-100", "dev-clean", "test-clean", "test-other")
"""Of LibriSpeech, unless splits are chosen: 7.3 GB; all parts are 60 GB."""


@dataclass(frozen=True)
class Wanted:
    """Files of a corpus on the network."""

    archives: tuple[Remote, ...]
    lexicon: Remote | None = None


def wanted(corpus: str, parts: Sequence[str] = ()) -> Wanted:
    """Files that `--download` loads for a corpus; `parts` of LibriSpeech or mini LibriSpeech, where some are chosen.

    Raises:
        UserError: the corpus is not free, or has no such part.
    """
    if corpus == "fsdd":
        return Wanted((_FSDD,))
    if corpus == "an4":
        return Wanted((_AN4,))
    if corpus == "librispeech":
        return Wanted(_parts(12, _LIBRISPEECH, parts or DOWNLOADED_PARTS), _LIBRISPEECH_LEXICON)
    if corpus == "mini-librispeech":
        return Wanted(_parts(31, _MINI, parts or tuple(_MINI)), _CMUDICT)
    raise UserError(f"--download: {corpus} is not free to load; name its folder with `--source`.")


def download(corpus: Wanted, source: Path, progress: Progress, *, with_lexicon: bool = True) -> Path | None:
    """Bring and unpack everything into `source`; return where the pronunciation dictionary is, if one is brought."""
    for remote in corpus.archives:
        extract(fetch(remote, source, progress), source, progress)
    return fetch(corpus.lexicon, source, progress) if corpus.lexicon and with_lexicon else None


def _parts(resource: int, known: Mapping[str, str], parts: Sequence[str]) -> tuple[Remote, ...]:
    if odd := [part for part in parts if part not in known]:
        raise UserError(f"--download: there is no part {', '.join(odd)}; choose from {', '.join(known)}.")
    return tuple(Remote(f"{OPENSLR}/{resource}/{part}.tar.gz", known[part]) for part in dict.fromkeys(parts))
