"""Pronunciation dictionaries and word lists as other people publish them: packed or not, larger than a corpus needs."""

import gzip
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.speech.lexicon import Lexicon, LexiconCase, parse_lexicon


def read_dictionary(path: Path, *, strip_stress: bool = False, case: LexiconCase = "keep") -> Lexicon:
    """`read_lexicon`, of a file that may be packed with gzip.

    Raises:
        UserError: as `read_lexicon`; the packed file is cut short or damaged.
    """
    what = "a pronunciation dictionary is needed (CMU format: WORD PHONE PHONE ...)"
    return parse_lexicon(_text(path, what), str(path), strip_stress=strip_stress, case=case)


def read_vocabulary(path: Path, size: int = 0) -> frozenset[str]:
    """The `size` most frequent words of a text or word list, which may be packed with gzip; 0: all of them.

    Words are what blanks separate; of equally frequent ones the alphabetically first are taken.

    Raises:
        UserError: the file is missing, damaged, not UTF-8, or without words.
    """
    if size < 0:
        raise UserError(f"--vocabulary-size {size}: give a number of words, or 0 for all of them.")
    counts = Counter(_text(path, "a text or a list of words is needed").split())
    if not counts:
        raise UserError(f"{path}: no words in it.")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return frozenset(ranked[:size] if size else ranked)


def restricted(lexicon: Lexicon, words: Collection[str]) -> Lexicon:
    """The entries of these words; those that are not in the lexicon are passed over."""
    chosen = {word: found for word in words if (found := lexicon.pronunciations.get(word)) is not None}
    return Lexicon(chosen, lexicon.silence)


def _text(path: Path, needed: str) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {needed}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: a damaged gzip file ({error}); get it again.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); convert it, e.g. with iconv.") from None
