"""Outcomes that readers may have with damaged files."""

from collections.abc import Callable
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_json


def refused_or_read(reader: Callable[[Path], object], path: Path) -> None:
    """Read; an error must be one that a user can mend and name the file."""
    try:
        reader(path)
    except UserError as error:
        if str(path) not in str(error):
            raise AssertionError(f"an error that does not name {path}") from error


def forget_checksums(path: Path) -> None:
    """Make a JSON one of an earlier version, which knew none."""
    value = read_json(path)
    del value["checksums"]
    write_json(path, value)
