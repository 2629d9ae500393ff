"""A language model in a file, ready to be asked for words: an ARPA file of any size, or a binary file of KenLM's.

KenLM (Heafield 2011) keeps an ARPA file in a hash table, some 20 bytes an n-gram, and maps its own binary files, which
its program build_binary makes. It comes with `pip install 'roundelay[ngram]'`. Without it, an ARPA file of at most
FEW n-grams is read into our own arrays, which give the same numbers and take longer and six times the memory to read;
so is a file of words alone (order 1), which KenLM does not take.

For the number of n-grams only the head of a file is read: the lines `ngram N=COUNT` of an ARPA file, plain or gzipped.
The bytes of an n-gram were measured (docs/log.md); they are for being warned in time, not for filling memory to the
last byte.
"""

import importlib
import re
import subprocess
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roundelay.core.cores import available_bytes
from roundelay.core.errors import UserError
from roundelay_speech.decode.lm.arpa_file import open_text, read_arpa
from roundelay_speech.decode.lm.scorer import NATS, ArpaScorer, Scorer
from roundelay_speech.ngrams.ngram import END, NEVER, UNKNOWN

FEW = 5_000_000
"""Most n-grams that are read without KenLM."""
EXTRA = "pip install 'roundelay[ngram]'"
_BINARY = b"mmap lm http://kheafield.com/code"  # how KenLM's binary files begin
_NEEDED = "Give decode.rescore an ARPA file, plain or gzipped, or a binary file of KenLM."


class KenlmScorer(Scorer):
    """A language model held by KenLM. Its probabilities are 32-bit floats: costs are within 1e-5 of those of
    the file."""

    def __init__(self, kenlm: Any, model: Any) -> None:
        self._state, self._model = kenlm.State, model

    @property
    def start(self) -> Hashable:
        state = self._state()
        self._model.BeginSentenceWrite(state)
        return state  # type: ignore[no-any-return]

    def knows(self, word: str) -> bool:
        return word in self._model and word not in UNKNOWN

    def word(self, state: Hashable, word: str) -> tuple[float, Hashable]:
        behind = self._state()
        return NATS * self._model.BaseScore(state, word, behind), behind

    def end(self, state: Hashable) -> float:
        log10 = self._model.BaseScore(state, END, self._state())
        return NATS * log10 if log10 > NEVER else float("inf")


def with_kenlm() -> bool:
    """Return True if KenLM is installed."""
    return find_spec("kenlm") is not None


def is_binary(path: Path) -> bool:
    """Return True if the file is a binary file of KenLM's.

    Raises:
        UserError: no such file.
    """
    try:
        with open(path, "rb") as file:
            return file.read(len(_BINARY)) == _BINARY
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {_NEEDED}") from None


def expected(path: Path) -> str:
    """Return the size, memory and time of loading a model, for people, after a check that it can be loaded.

    Raises:
        UserError: not a language model; KenLM is needed for it and is not installed; too little memory.
    """
    if is_binary(path):
        if not with_kenlm():
            raise UserError(f"{path}: a binary file of KenLM, which is not installed: {EXTRA}")
        return f"{path.name}: {gigabytes(path.stat().st_size)}, mapped"
    if not (counts := declared_counts(path)):
        with open_text(path, _NEEDED):
            raise UserError(f"{path}: neither an ARPA file (no `ngram 1=COUNT` at its head) nor KenLM's. {_NEEDED}")
    ngrams, by_kenlm = sum(counts), with_kenlm() and len(counts) > 1
    if not by_kenlm and ngrams > FEW:
        raise UserError(
            f"{path}: {ngrams:,} n-grams; without KenLM, which takes no model of order 1, at most {FEW:,} can be read. "
            f"Install it: {EXTRA}. Or give decode.rescore a smaller model."
        )
    needed = ngrams * (TABLE_BYTES if by_kenlm else READING_BYTES)
    check_fits(
        needed,
        f"decode.rescore={path}: its {ngrams:,} n-grams",
        "Give a smaller model, or a quantized trie made with KenLM's build_binary (`build_binary -q 8 -b 8 trie`), "
        "which takes about a third.",
    )
    seconds = max(1, round(ngrams * (TABLE_SECONDS if by_kenlm else READING_SECONDS)))
    return f"{path.name}: {ngrams:,} n-grams, about {gigabytes(needed)} of memory and {seconds} s to read"


def load_model(path: Path) -> Scorer:
    """Load a language model (`expected` first says the memory it takes).

    Raises:
        UserError: the file is damaged or cut short; names the file.
    """
    if not with_kenlm() or (not is_binary(path) and len(declared_counts(path)) == 1):
        return ArpaScorer(read_arpa(path))
    kenlm = importlib.import_module("kenlm")
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    with _plain(path) as source:
        try:
            model = kenlm.Model(source, config)
        except OSError as error:
            said = str(error).removeprefix(f"Cannot read model '{source}' ").strip("()")
            said = said.partition(" threw ")[2].partition(". ")[2] or said  # without its place in the C++ source
            raise UserError(
                f"{path}: KenLM cannot read it: {said.rstrip('. ')}. If the file is cut short, copy it again."
            ) from None
    return KenlmScorer(kenlm, model)


@contextmanager
def _plain(path: Path) -> Iterator[str]:
    """Provide the name of a file, or of a pipe with its contents unpacked: not every build of KenLM can unpack.

    Raises:
        UserError: a damaged gzip file.
    """
    with open(path, "rb", buffering=0) as file:  # the child reads on where this descriptor stands
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield str(path)
            return
        command = [sys.executable, "-m", "gzip", "-d", "-"]
        with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            failed: UserError | None = None
            try:
                yield f"/proc/self/fd/{child.stdout.fileno()}"
            except UserError as error:
                failed = error
            child.stdout.close()
            said = child.stderr.read().decode(errors="replace").strip().splitlines()
            if child.wait() and said and "BrokenPipe" not in said[-1]:
                raise UserError(f"{path}: damaged gzip file ({said[-1]}). Copy it again.")
            if failed is not None:
                raise failed


GRAPH_BYTES = 2000
"""Bytes that making a static decoding graph takes for each n-gram of its grammar."""
READING_BYTES = 150
"""Bytes that our own reader of ARPA files takes for each n-gram."""
READING_SECONDS = 3e-6
"""Seconds that our own reader takes for each n-gram."""
TABLE_BYTES = 26
"""Bytes that KenLM's hash table takes for each n-gram."""
TABLE_SECONDS = 1.5e-6
"""Seconds of filling this table, for each n-gram; a gzipped file takes about half as long again."""
_HEAD = 1000  # lines in which a file's counts must be


def declared_counts(path: Path) -> tuple[int, ...]:
    r"""Return the number of n-grams of order 1, 2, ... that the head of an ARPA file declares; empty if it has no such
    head.

    Raises:
        UserError: the file is missing or damaged.
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
    """Return a size in bytes as words, in gigabytes."""
    return f"{size / 1e9:.1f} GB"


def check_fits(needed: float, what: str, way_out: str, free: float | None = None) -> None:
    """Check, before a step starts, that its memory is available.

    Args:
        needed: bytes that the step needs.
        what: subject of the message, for example "decode.arpa=FILE: its static graph".
        way_out: a sentence that says what to do instead.
        free: bytes available; None: those of this machine now.

    Raises:
        UserError: the step needs more memory than is available.
    """
    free = available_bytes() if free is None else free
    if needed > free:
        raise UserError(
            f"{what} would take some {gigabytes(needed)} of memory, and {gigabytes(free)} are free. {way_out}"
        )
