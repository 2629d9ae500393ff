"""Locations of objects in script files: `FILE`, `FILE:BYTE`, and after either a range of rows and columns.

A script file (`.scp`) has a line `KEY LOCATION` for each object. A range is `[FIRST:LAST]` of rows, or
`[FIRST:LAST,FIRST:LAST]` of rows and columns, both ends included (kaldi/src/util/kaldi-table). No command is run.
"""

from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay_speech.data.problems import counted, listing
from roundelay_speech.kaldi_io.tables import read_table


class ArchiveError(UserError):
    """An archive or script file cannot be used; the message names the file, and the byte or the line."""


@dataclass(frozen=True)
class Location:
    """The location of an object: a file, the byte where it begins (None: the whole file), and the range of rows and
    columns."""

    path: Path
    offset: int | None = None
    rows: tuple[int, int] | None = None  # first and last, both included
    columns: tuple[int, int] | None = None


def parse_location(where: str, folder: Path = Path()) -> Location:
    """Parse a location `FILE[:BYTE][RANGE]`; a relative FILE is in `folder`.

    Raises:
        ArchiveError: the location is a pipe or the standard input, or its range is invalid.
    """
    if where.startswith("|") or where.endswith("|"):
        raise ArchiveError(
            f"`{where}` is a pipe, and commands in script files are not run: run it yourself and name the file it makes"
        )
    rest, rows, columns = where.strip(), None, None
    if rest.endswith("]"):
        rest, _, inside = rest[:-1].rpartition("[")
        parts = inside.split(",")
        if not rest or len(parts) > 2 or not all(parts):
            raise ArchiveError(f"`{where}`: not FILE[FIRST:LAST] or FILE[FIRST:LAST,FIRST:LAST]")
        rows = _range(parts[0], where)
        columns = _range(parts[1], where) if len(parts) == 2 else None
    path, colon, offset = rest.rpartition(":")
    if colon and path and offset.isascii() and offset.isdecimal() and len(offset) < 20:
        return Location(_file(path, folder), int(offset), rows, columns)
    if rest in ("", "-"):
        raise ArchiveError(f"`{where}`: name a file, not the standard input")
    return Location(_file(rest, folder), None, rows, columns)


def _range(text: str, where: str) -> tuple[int, int] | None:
    if text == ":":
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isascii() and part.isdecimal() and len(part) < 11 for part in (first, last)):
        raise ArchiveError(f"`{where}`: the range `{text}` is not FIRST:LAST, two whole numbers from 0")
    if int(last) < int(first):
        raise ArchiveError(f"`{where}`: the range `{text}` ends before it begins")
    return int(first), int(last)


def _file(name: str, folder: Path) -> Path:
    if "\0" in name:
        raise ArchiveError(f"{name!r}: not the name of a file")
    return folder / name


def read_scp(path: Path) -> dict[str, str]:
    """Read a script file: key -> the rest of its line (see `parse_location`), in the order of the file.

    Raises:
        ArchiveError: no such file, not text, an empty file, a key twice or alone on its line; all faults are listed.
    """
    problems: list[str] = []
    table = read_table(path, problems)
    if problems:
        raise ArchiveError(f"{path}: {counted(len(problems), 'fault')} in the script file:\n{listing(problems)}")
    return dict(table.values)
