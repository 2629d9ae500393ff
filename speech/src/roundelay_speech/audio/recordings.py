"""Recordings in a folder, known by their endings, and names for recordings."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundelay.core.errors import UserError

log = logging.getLogger(__name__)

KINDS = frozenset(
    "wav flac mp3 ogg oga opus m4a mp4 aac aif aiff au caf sph w64 wma webm mkv mov amr 3gp wv".split()  # noqa: SIM905
)
"""Endings of the names of recordings."""
TEXT_KINDS = frozenset(
    "txt text lab trn textgrid eaf ctm stm srt vtt json jsonl yaml yml xml csv tsv md html pdf log gz zip".split()  # noqa: SIM905
)
"""Endings of other files that may well lie beside recordings: texts and lists."""


def is_recording(path: Path) -> bool:
    """Return True if `path` is a file whose ending is known as that of a recording."""
    return path.suffix.lower()[1:] in KINDS and path.is_file()


def recordings_below(folder: Path) -> list[Path]:
    """Return all recordings in a folder and in those below it, sorted; warn of files that may be recordings, too, but
    are not known as such.

    Raises:
        UserError: there is no recording.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix and path.is_file())
    paths = [path for path in files if is_recording(path)]
    others = [path for path in files if path.name[0] != "." and path.suffix.lower()[1:] not in KINDS | TEXT_KINDS]
    if paths and others:
        log.warning(
            "%s: passed over %d file%s, such as %s, whose ending is not known as that of a recording. If it is one, "
            "name the file itself, or convert it.",
            folder,
            len(others),
            "s" * (len(others) > 1),
            others[0].relative_to(folder),
        )
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
