"""Phones of the lexicon but silence: a blank is all the silence there is."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.units.base import UnitsConfig, UnitSet


@dataclass(frozen=True)
class Phones(UnitsConfig):
    """Phones of the lexicon; every word of a transcript is said by its first pronunciation."""

    name: Literal["phones"] = field(default="phones", kw_only=True)

    def units(self, lexicon: Lexicon, transcripts: Iterable[str]) -> UnitSet:
        del transcripts
        return UnitSet(lexicon.phones[1:])
