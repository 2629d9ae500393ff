"""Characters of the training transcripts, and a mark where a word begins."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.units.base import UnitsConfig, UnitSet, characters_of


@dataclass(frozen=True)
class Characters(UnitsConfig):
    """Characters of the training transcripts; no lexicon is needed."""

    name: Literal["characters"] = field(default="characters", kw_only=True)

    def units(self, lexicon: Lexicon, transcripts: Iterable[str]) -> UnitSet:
        del lexicon
        return UnitSet(characters_of(word for text in transcripts for word in text.split()), spelled=True)
