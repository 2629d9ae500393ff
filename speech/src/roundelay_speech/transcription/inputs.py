"""Recordings to transcribe: files, folders, lists of files, standard input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, final

from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay_speech.audio.recordings import recordings_below, unique_names

LISTS = frozenset({".txt", ".lst", ".list", ".scp"})
STANDARD_INPUT = "-"
MOST_BYTES = 8 << 30
"""Most bytes that are read from standard input."""


@final
@dataclass(frozen=True)
class Recording:
    """A file to transcribe."""

    name: str  # one word without brackets, unique among all; it may hold slashes, where files of folders have one name
    path: Path  # the file
    given: str = ""  # the user's name for it, where that is not the file

    @property
    def source(self) -> str:
        """The recording's path as the user gave it."""
        return self.given or str(self.path)


def recordings(arguments: Sequence[str], standard_input: Path | None = None) -> list[Recording]:
    """Return all recordings that the arguments name, in order, each once.

    A folder stands for the recordings below it, sorted; a list (.txt, .lst, .list, .scp) for those it names, a line
    each, `PATH` or `ID PATH`, relative to the list. Files that do not exist are kept, and reported by name later.

    Args:
        arguments: paths, or `-`.
        standard_input: the file with the bytes of standard input.

    Raises:
        UserError: a list cannot be read, or a line of it names nothing; a folder has no recording.
    """
    found: list[tuple[str, Path]] = []
    for text in arguments:
        path = Path(text)
        if text == STANDARD_INPUT and standard_input is not None:
            found.append(("stdin", standard_input))
        elif path.is_dir():
            found += ((one.stem, one) for one in recordings_below(path))
        elif path.suffix.lower() in LISTS:
            found += _in_list(path)
        else:
            found.append((path.stem, path))
    named = [Recording(name, path) for name, path in unique_names(found).items()]
    return [replace(one, given=STANDARD_INPUT) if one.path == standard_input else one for one in named]


def spooled(stream: BinaryIO, path: Path, most: int = MOST_BYTES) -> Path:
    """Write all bytes of a stream to `path`, and return it.

    Raises:
        UserError: the stream is empty, or has more than `most` bytes.
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
