"""Recordings in a folder, known by their endings, and names for recordings."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError

KINDS = frozenset(
    "wav flac mp3 ogg oga opus m4a mp4 aac aif aiff au caf sph w64 wma webm mkv mov amr 3gp wv".split()  # noqa: SIM905
)
"""Endings of the names of recordings."""


def recordings_below(folder: Path) -> list[Path]:
    """Return all recordings in a folder and in those below it, sorted.

    Raises:
        UserError: there is no recording.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower()[1:] in KINDS and path.is_file())
    if not paths:
        raise UserError(
            f"{folder}: no recording in this folder; they are known by their endings: .wav, .flac, .mp3 ..."
        )
    return paths


def unique_names(found: Sequence[tuple[str, Path]]) -> Mapping[str, Path]:
    """Return recordings by unique names: with the folder in front where it takes that, with the ending where they are
    files of one folder, then with a number behind.

    Args:
        found: names that users know, and the files; each file counts once.
    """
    unique = dict.fromkeys(found)
    everywhere = Counter(one_word(name) for name, _ in unique)
    in_folder = Counter((one_word(name), path.parent) for name, path in unique)
    result: dict[str, Path] = {}
    for name, path in unique:
        word = one_word(name)
        alike = everywhere[word]
        if in_folder[word, path.parent] > 1 and name == path.stem:  # talk.wav beside talk.mp3
            word = one_word(path.name)
        if alike > 1 and path.parent.name not in ("", ".."):
            word = f"{one_word(path.parent.name)}/{word}"
        number, candidate = 1, word
        while candidate in result:
            number += 1
            candidate = f"{word}.{number}"
        result[candidate] = path
    return result


def one_word(name: str) -> str:
    """Return a name that formats of transcripts can hold: no blanks, brackets or slashes, no `@` (behind it stands a
    channel), and never `.`, `..` or `;;`."""
    word = re.sub(r"[^\w.+=~%#,-]", "_", name).lstrip(".;")
    return word or "recording"
