"""Recordings to transcribe: files, folders, lists of files, standard input."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

from roundelay.core.errors import UserError
from roundelay.core.files import read_text

KINDS = frozenset(
    "wav flac mp3 ogg oga opus m4a mp4 aac aif aiff au caf sph w64 wma webm mkv mov amr 3gp wv".split()  # noqa: SIM905
)
"""Endings by which a folder's recordings are known."""
LISTS = frozenset({".txt", ".lst", ".list", ".scp"})
STANDARD_INPUT = "-"
MOST_BYTES = 8 << 30
"""Of standard input."""


@final
@dataclass(frozen=True)
class Recording:
    """A file to transcribe.

    Attributes:
        name: one word without brackets, unique among all; it may hold slashes, where files of folders have one name.
        path: the file.
    """

    name: str
    path: Path


def recordings(arguments: Sequence[str], standard_input: Path | None = None) -> list[Recording]:
    """All recordings that are named, in order, each once.

    A folder stands for the recordings below it, sorted; a list (.txt, .lst, .list, .scp) for those it names, a line
    each, `PATH` or `ID PATH`, relative to the list. Files that do not exist stay, to be complained of by name later.

    Args:
        arguments: paths, or `-`.
        standard_input: the file with what came from there.

    Raises:
        UserError: a list that cannot be read, or a line of it that names nothing; a folder without a recording.
    """
    found: list[tuple[str, Path]] = []
    for text in arguments:
        path = Path(text)
        if text == STANDARD_INPUT and standard_input is not None:
            found.append(("stdin", standard_input))
        elif path.is_dir():
            found += _in_folder(path)
        elif path.suffix.lower() in LISTS:
            found += _in_list(path)
        else:
            found.append((path.stem, path))
    return _named(found)


def spooled(stream: BinaryIO, path: Path, most: int = MOST_BYTES) -> Path:
    """`path`, with all that comes from a stream.

    Raises:
        UserError: nothing comes, or more than `most` bytes.
    """
    size = 0
    with open(path, "wb") as file:
        while block := stream.read(1 << 20):
            size += len(block)
            if size > most:
                raise UserError(f"Standard input holds more than {most:,} bytes. Write it into a file, and name that.")
            file.write(block)
    if not size:
        raise UserError("Nothing comes from standard input. Give a recording: roundelay transcribe MODEL - < talk.wav")
    return path


def _in_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower()[1:] in KINDS and path.is_file())
    if not paths:
        raise UserError(
            f"{folder}: no recording in this folder; they are known by their endings: .wav, .flac, .mp3 ..."
        )
    yield from ((path.stem, path) for path in paths)


def _in_list(path: Path) -> Iterator[tuple[str, Path]]:
    lines = read_text(path, "it is to name recordings, one a line").splitlines()
    named = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not named:
        raise UserError(f"{path}: an empty list; write a recording a line.")
    for number, line in named:
        if line.endswith("|"):
            raise UserError(
                f"{path}:{number}: a command, where a recording is expected. Commands are not run: write their output "
                "into files."
            )
        whole = path.parent / line
        name, _, rest = line.partition(" ")
        # `ID PATH`, as Kaldi's wav.scp has it, unless the line as it stands is a file whose name has a blank.
        if rest.strip() and not whole.exists():
            yield name, path.parent / rest.strip()
        else:
            yield whole.stem, whole


def _named(found: Sequence[tuple[str, Path]]) -> list[Recording]:
    """Recordings with unique names: with the folder in front where it takes that, then with a number behind."""
    unique = dict.fromkeys(found)
    stems: dict[str, int] = {}
    for name, _ in unique:
        stems[_word(name)] = stems.get(_word(name), 0) + 1
    result: dict[str, Recording] = {}
    for name, path in unique:
        word = _word(name)
        if stems[word] > 1 and path.parent.name not in ("", ".."):
            word = f"{_word(path.parent.name)}/{word}"
        number, candidate = 1, word
        while candidate in result:
            number += 1
            candidate = f"{word}.{number}"
        result[candidate] = Recording(candidate, path)
    return list(result.values())


def _word(name: str) -> str:
    """A name as the formats of words take it: no blanks, brackets or slashes, no `@` (behind
    it stands a channel), and never `.`, `..` or `;;`."""
    word = re.sub(r"[^\w.+=~%#,-]", "_", name).lstrip(".;")
    return word or "recording"
