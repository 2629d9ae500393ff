r"""Number of n-grams that a language model declares, and what it takes to work with so many.

Only the head of the file is read: the lines `ngram N=COUNT` of an ARPA file, plain or gzipped.

The bytes of an n-gram were measured (docs/log.md); they are for being warned in time, not for filling
memory to the last byte.
"""

import re
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.memory import available_bytes
from roundelay_speech.decode.lm.arpa_file import open_text

GRAPH_BYTES = 2000
"""Bytes of a static decoding graph while it is made, for each n-gram of its grammar."""
READING_BYTES = 150
"""Bytes of our own reader of ARPA files while it reads, for each n-gram."""
READING_SECONDS = 3e-6
"""Seconds of our own reader, for each n-gram."""
TABLE_BYTES = 26
"""Bytes of KenLM's hash table, for each n-gram."""
TABLE_SECONDS = 1.5e-6
"""Seconds of filling this table, for each n-gram; a gzipped file takes about half as long again."""
_HEAD = 1000  # lines in which a file's counts must be


def declared_counts(path: Path) -> tuple[int, ...]:
    r"""Return the number of n-grams of order 1, 2, ... that the head of an ARPA file promises; empty if it has no such
    head.

    Raises:
        UserError: no such file, damaged.
    """
    counts: list[int] = []
    with open_text(path, "Give an ARPA language model.") as lines:
        for line, _ in zip(lines, range(_HEAD), strict=False):
            if match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)\s*", line):
                counts.append(int(match[2]))
            elif counts and line.strip():
                break
    return tuple(counts)


def gigabytes(size: float) -> str:
    """Return a size for people."""
    return f"{size / 1e9:.1f} GB"


def check_fits(needed: float, what: str, way_out: str, free: float | None = None) -> None:
    """Refuse a step that needs more memory than there is, before it starts.

    Args:
        needed: bytes.
        what: subject of the message, for example "decode.arpa=FILE: its static graph".
        way_out: a sentence that says what to do instead.
        free: bytes that can be had; by default what this machine can give now.

    Raises:
        UserError: it does not fit.
    """
    free = available_bytes() if free is None else free
    if needed > free:
        raise UserError(
            f"{what} would take some {gigabytes(needed)} of memory, and {gigabytes(free)} are free. {way_out}"
        )
