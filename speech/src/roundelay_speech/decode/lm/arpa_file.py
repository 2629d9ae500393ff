r"""ARPA files, plain or gzipped, read and written line by line.

    \data\          ngram 1=COUNT, ngram 2=COUNT, ...
    \1-grams:        log10 probability, the words, and below the highest order maybe a log10 weight; a line each
    ...
    \end\
"""

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa, Floats, Ints, build

_GZIP = b"\x1f\x8b"
LONGEST_LINE = 1 << 24
"""Most characters of a line of text; a whole book has a few million."""


def arpa_lines(model: Arpa) -> Iterator[str]:
    """Yield the lines of a model's ARPA file, without line ends."""
    yield "\\data\\"
    yield from (f"ngram {n}={count}" for n, count in enumerate(model.counts, 1))
    for n, (level, ids) in enumerate(zip(model.levels(), model.spelled(), strict=True), 1):
        yield ""
        yield f"\\{n}-grams:"
        place = slice(level.start - 1, level.stop - 1)
        columns = [[model.words[i] for i in column.tolist()] for column in ids.T]
        logs, weights = model.log10[place].tolist(), model.backoff[place].tolist()
        for log, weight, *words in zip(logs, weights, *columns, strict=True):
            gram = " ".join(words)
            yield f"{log:.6f}\t{gram}\t{weight:.6f}" if weight else f"{log:.6f}\t{gram}"
    yield from ("", "\\end\\")


def to_text(model: Arpa) -> str:
    """Return a model as the text of an ARPA file."""
    return "".join(f"{line}\n" for line in arpa_lines(model))


def write_arpa(path: Path, model: Arpa) -> None:
    """Write a model as an ARPA file, atomically; gzipped if its name ends in .gz."""
    with atomic_write(path) as file:
        # No name and no time in the header of a gzip file: the same model is the same file.
        packed = gzip.GzipFile("", "wb", 1, file, mtime=0) if path.suffix == ".gz" else nullcontext(file)
        with packed as sink:
            for lines in _blocks(arpa_lines(model)):
                sink.write("".join(f"{line}\n" for line in lines).encode())


def _blocks(lines: Iterator[str], size: int = 4096) -> Iterator[list[str]]:
    while block := list(islice(lines, size)):
        yield block


@contextmanager
def open_text(path: Path, missing: str) -> Iterator[Iterator[str]]:
    """Open the lines of UTF-8 text, plain or gzipped, without a byte order mark.

    Raises:
        UserError: no such file (`missing` says what to do), not text, a line of more than LONGEST_LINE characters, a
            damaged or cut gzip file; also while read.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP
        with gzip.open(path, "rt", encoding="utf-8-sig") if packed else open(path, encoding="utf-8-sig") as text:
            yield _lines(path, text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. {missing}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, not a file. {missing}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start} of a block): {error.reason}.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}). Copy it again.") from error


def _lines(path: Path, text: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; one endless line, which may be small when packed, is not read into memory."""
    number = 0
    while line := text.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UserError(f"{path}:{number}: a line of more than {LONGEST_LINE:,} characters; is it the right file?")
        yield line


def read_arpa(path: Path) -> Arpa:
    """Read an ARPA file and check it.

    Raises:
        UserError: missing file; missing or repeated sections; wrong counts; a line that is not an n-gram; a probability
            above one; an n-gram twice or with a word that is no unigram; names file and line.
    """
    with open_text(path, "Give an ARPA language model, or none to estimate one.") as file:
        return _Reader(path, enumerate(file, 1)).read()


class _Reader:
    """A reader of an ARPA file's lines in one pass, which knows its place for messages."""

    def __init__(self, path: Path, lines: Iterable[tuple[int, str]]) -> None:
        self.path, self.lines, self.number = path, iter(lines), 0
        self.words: dict[str, int] = {}
        self.places: list[array[int]] = []  # by order, the line of each n-gram

    def read(self) -> Arpa:
        self._find(lambda line: line == "\\data\\", "\\data\\")
        declared, line = self._declared()
        levels: list[tuple[Ints, Floats, Floats]] = []
        for n, count in enumerate(declared, 1):
            if line != f"\\{n}-grams:":
                raise self._error(f"expected \\{n}-grams:, found {line!r}")
            level, line = self._section(n, len(declared))
            if len(level[1]) != count:
                raise self._error(
                    f"\\data\\ promises {count} {n}-grams and there are {len(level[1])}; the file may be cut short"
                )
            levels.append(level)
            if missing := [word for word in (BEGIN, END) if word not in self.words]:
                raise self._error(f"{' and '.join(missing)} not among the 1-grams")
        if line != "\\end\\":
            raise self._error(f"expected \\end\\, found {line!r}")
        words = [*self.words]
        model, twice = build(words, levels)
        for n, again in enumerate(twice):
            if len(again):
                gram = " ".join(words[i] for i in levels[n][0][again[0]])
                self.number = self.places[n][int(again[0])]
                raise self._error(f"the {n + 1}-gram {gram!r} comes twice")
        return model

    def _error(self, message: str) -> UserError:
        return UserError(f"{self.path}:{self.number}: {message}.")

    def _find(self, wanted: Callable[[str], bool], name: str) -> str:
        for self.number, raw in self.lines:  # noqa: B020  the position is kept for messages
            if wanted(line := raw.strip()):
                return line
        raise self._error(f"the file ends before {name}; the file may be cut short or not be an ARPA file")

    def _declared(self) -> tuple[list[int], str]:
        declared: list[int] = []
        while (line := self._find(bool, "\\end\\")).startswith("ngram"):
            match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
            if match is None or int(match[1]) != len(declared) + 1:
                raise self._error(f"expected `ngram {len(declared) + 1}=COUNT`, found {line!r}")
            declared.append(int(match[2]))
        if not declared:
            raise self._error("\\data\\ declares no n-grams")
        return declared, line

    def _section(self, n: int, order: int) -> tuple[tuple[Ints, Floats, Floats], str]:
        """Read the n-grams of order `n`; return them, and the line after them."""
        ids, places = array("q"), array("q")
        logs, weights = array("d"), array("d")
        lengths = (n + 1, n + 2) if n < order else (n + 1,)
        words = self.words
        for self.number, raw in self.lines:  # noqa: B020  the position is kept for messages
            fields = raw.split()
            if not fields:
                continue
            if fields[0].startswith("\\"):
                break
            if len(fields) not in lengths:
                raise self._error(
                    f"expected a log10 probability, {n} words{' and maybe a weight' * (n < order)}, "
                    f"found {raw.strip()!r}"
                )
            try:
                log, weight = float(fields[0]), float(fields[n + 1]) if len(fields) == n + 2 else 0.0
            except ValueError:
                raise self._error(f"not numbers where they should be: {raw.strip()!r}") from None
            if not log <= 1e-6 or not math.isfinite(weight):  # NaN fails the comparison too
                raise self._error(f"a log10 probability must be 0 or less and a weight finite: {raw.strip()!r}")
            if n == 1:
                if fields[1] in words:
                    raise self._error(f"the 1-gram {fields[1]!r} comes twice")
                words[fields[1]] = len(words)
            try:
                ids.extend([words[word] for word in fields[1 : n + 1]])
            except KeyError as error:
                raise self._error(f"{error.args[0]!r} is not among the 1-grams") from None
            places.append(self.number)
            logs.append(log)
            weights.append(weight)
        else:
            raise self._error("the file ends before \\end\\; the file may be cut short or not be an ARPA file")
        self.places.append(places)
        level = (np.array(ids, np.int64).reshape(-1, n), np.array(logs), np.array(weights))
        return level, raw.strip()
