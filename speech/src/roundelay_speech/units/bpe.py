"""Pieces of words by byte pair encoding (Sennrich et al. 2016), on characters.

Every word of the training transcripts is written as the mark of its beginning and its characters. Again and again the
pair of neighbouring pieces that is most frequent, words counted as often as they are said, becomes one piece, until
there are as many as asked for. Of equally frequent pairs the first in alphabetical order is taken; a pair that occurs
once is not worth a piece. Single characters stay units, so every word of known characters can be written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from roundelay.core.bounds import Bounds
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.units.base import WORD_START, UnitsConfig, UnitSet, characters_of, merged


@dataclass(frozen=True)
class Bpe(UnitsConfig):
    """Pieces of words learned from the training transcripts (byte pair encoding); no lexicon is needed."""

    name: Literal["bpe"] = field(default="bpe", kw_only=True)
    size: Annotated[int, Bounds(least=2)] = 200
    """Pieces of words, at most; characters are among them."""

    def units(self, lexicon: Lexicon, transcripts: Iterable[str]) -> UnitSet:
        del lexicon
        counts = Counter(word for text in transcripts for word in text.split())
        characters = characters_of(counts)
        merges = learned(counts, max(0, self.size - len(characters)))
        names = dict.fromkeys([*characters, *("".join(pair) for pair in merges)])  # two ways to a piece make one unit
        return UnitSet(tuple(names), True, tuple(map(" ".join, merges)))


def learned(counts: Mapping[str, int], number: int) -> list[tuple[str, str]]:
    """Return the pairs that become one piece, in order, until there are `number` new pieces; `counts` are of words."""
    words = {word: [WORD_START, *word] for word in counts}
    frequency: Counter[tuple[str, str]] = Counter()
    users: dict[tuple[str, str], set[str]] = {}  # words that a pair has been seen in

    def count(word: str, sign: int) -> None:
        for pair in pairwise(words[word]):
            frequency[pair] += sign * counts[word]
            users.setdefault(pair, set()).add(word)

    for word in words:
        count(word, 1)
    found: list[tuple[str, str]] = []
    new: set[str] = set()
    while len(new) < number and frequency:
        best = min(frequency, key=lambda pair: (-frequency[pair], pair))
        if frequency[best] < 2:
            break
        for word in users[best]:
            count(word, -1)
            words[word] = merged(words[word], *best)
            count(word, 1)
        del frequency[best]
        found.append(best)
        new.add("".join(best))
    return found
