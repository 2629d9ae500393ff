"""Units of a model that needs no alignment: phones of a lexicon, or characters and longer pieces of words.

Phones may be hidden Markov models (states.py). Column 0 of any other such model is a blank, which is no unit. Pieces
are joined by merges (bpe.py); a word begins with the mark WORD_START, so words can be read off a row of pieces.
Characters are pieces without merges.

Legend: U units.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.units.states import PhoneStates

BLANK = "<blk>"
WORD_START = "\u2581"
"""Mark of the beginning of a word, as other programs write it."""


@dataclass(frozen=True)
class UnitSet:
    """A set of units, in the order of a model's columns, with the rules by which words are written in them."""

    names: tuple[str, ...]  # of the U units, columns 1 to U
    spelled: bool = False  # units are pieces of written words; else they are phones, and a lexicon has the words
    merges: tuple[str, ...] = ()  # of pieces, `LEFT RIGHT`, in the order in which they are made
    # the columns, where phones are hidden Markov models; None: there is a blank, and a column for each unit.
    hmm: PhoneStates | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, (U + 1,): the blank first; or those of hidden Markov models."""
        return (BLANK, *self.names) if self.hmm is None else self.hmm.columns(self.names)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each unit, from 1: its column, if there is a blank."""
        return {name: number for number, name in enumerate((BLANK, *self.names))}

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        pairs = [merge.split(" ") for merge in self.merges]
        return {(left, right): rank for rank, (left, right) in enumerate(pairs)}

    def spell(self, word: str) -> tuple[str, ...] | None:
        """Split a word into pieces; return None if one of its characters is no unit, or units are phones."""
        if not self.spelled:
            return None
        pieces = [WORD_START, *word]
        if any(piece not in self.numbers for piece in pieces):
            return None
        while len(pieces) > 1:
            ranks = [self._ranks.get(pair, len(self.merges)) for pair in pairwise(pieces)]
            if (first := min(ranks)) == len(self.merges):
                break
            left, right = self.merges[first].split(" ")
            pieces = merged(pieces, left, right)
        return tuple(pieces)

    def lexicon(self, words: Iterable[str]) -> Lexicon | None:
        """Return the lexicon of words by their spelling, for those that can be spelled; None if units are phones."""
        if not self.spelled:
            return None
        return Lexicon({word: (pieces,) for word in words if (pieces := self.spell(word)) is not None})

    def written(self, words: Sequence[str], lexicon: Lexicon) -> tuple[str, ...] | None:
        """Return the units of words: by spelling, or by their first pronunciation without silence; None if one cannot
        be written."""
        found: list[str] = []
        for word in words:
            units = self.spell(word) if self.spelled else lexicon.pronunciations.get(word, (None,))[0]
            if units is None:
                return None
            found += [unit for unit in units if unit != lexicon.silence]
        return tuple(found) if all(unit in self.numbers for unit in found) else None

    def words(self, units: Sequence[str]) -> tuple[str, ...]:
        """Return the words that pieces spell.

        Raises:
            ValueError: units are phones.
        """
        if not self.spelled:
            raise ValueError("phones spell no words")
        return tuple("".join(units).replace(WORD_START, " ").split())


class UnitsConfig(ABC):
    """A kind of units: the section `units` of a recipe, a frozen dataclass whose first field is `name`."""

    name: str
    """Units that transcripts are written in, for objectives that need no alignment (`roundelay list units`,
    docs/objectives.md)."""

    def __post_init__(self) -> None:
        check_values(self, "units")

    @abstractmethod
    def units(self, lexicon: Lexicon, transcripts: Iterable[str]) -> UnitSet:
        """Return the units of a corpus: a function of its lexicon and training transcripts alone.

        Raises:
            UserError: a unit would have a reserved name.
        """


def merged(pieces: Sequence[str], left: str, right: str) -> list[str]:
    """Merge every `left` followed by `right` in `pieces` into one, from the left."""
    found: list[str] = []
    at = 0
    while at < len(pieces):
        pair = pieces[at] == left and at + 1 < len(pieces) and pieces[at + 1] == right
        found.append(left + right if pair else pieces[at])
        at += 1 + pair
    return found


def characters_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the mark of a word's beginning, then all characters of the words, sorted.

    Raises:
        UserError: a word has that mark in it; names the word.
    """
    every: set[str] = set()
    for word in words:
        if WORD_START in word:
            raise UserError(f"The word {word} has {WORD_START} in it, which marks beginnings of words. Replace it.")
        every.update(word)
    return (WORD_START, *sorted(every))
