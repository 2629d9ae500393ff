"""Lines of a text file with their numbers, and numbers in them, for readers whose errors name file and line."""

import math
from collections.abc import Iterator
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_text


def read_lines(path: Path, hint: str = "a file of words is needed") -> list[str]:
    """Return the lines of a UTF-8 text file, without their ends.

    Only a line feed (or carriage return and line feed) ends a line: a word may hold the other separators of Unicode.

    Args:
        hint: the command that makes such a file, for the message when it is missing.

    Raises:
        UserError: the file is missing, is no file, or is not UTF-8.
    """
    return [line.removesuffix("\r") for line in read_text(path, hint).split("\n")]


def content_lines(path: Path, hint: str = "a file of words is needed") -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of the lines that are neither blank nor a comment (`;;`, the mark of NIST's
    files)."""
    for number, line in enumerate(read_lines(path, hint), 1):
        if line.strip() and not line.lstrip().startswith(";;"):
            yield number, line


def seconds(text: str, name: str, where: str) -> float:
    """Parse a time in seconds: finite, 0 or more.

    Raises:
        UserError: `text` is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{where}: the {name} is {text!r}; it must be 0 or more seconds.")
    return value
