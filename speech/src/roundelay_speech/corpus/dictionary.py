"""Vocabularies: the words of a text, and of a dictionary that is larger than a corpus needs."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_text
from roundelay_speech.lexicon.lexicon import Lexicon


def read_vocabulary(path: Path, size: int = 0) -> frozenset[str]:
    """Return the `size` most frequent words of a text or word list, which may be packed with gzip; 0: all of them.

    Words are what blanks separate; of equally frequent ones the alphabetically first are taken.

    Raises:
        UserError: the file is missing, damaged, not UTF-8, or without words.
    """
    if size < 0:
        raise UserError(f"--vocabulary-size {size}: give a number of words, or 0 for all of them.")
    counts = Counter(read_text(path, "a text or a list of words is needed").split())
    if not counts:
        raise UserError(f"{path}: no words in it.")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return frozenset(ranked[:size] if size else ranked)


def restricted(lexicon: Lexicon, words: Collection[str]) -> Lexicon:
    """Return the entries of these words; those that are not in the lexicon are passed over."""
    chosen = {word: found for word in words if (found := lexicon.pronunciations.get(word)) is not None}
    return Lexicon(chosen, lexicon.silence)
