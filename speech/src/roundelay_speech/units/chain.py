"""Phones as hidden Markov models of the chain topology, for lattice-free MMI: monophones, or left biphones where they
are frequent enough (Hadian et al. 2018)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from roundelay.core.bounds import Count
from roundelay_speech.lexicon.lexicon import CLOSING, OPENING, Lexicon, expected_ngrams, ways_to_say
from roundelay_speech.units.base import UnitsConfig, UnitSet
from roundelay_speech.units.states import PhoneStates


@dataclass(frozen=True)
class Chain(UnitsConfig):
    """Phones of the lexicon and silence, as hidden Markov models of one state that may last; for lattice-free MMI."""

    name: Literal["chain"] = field(default="chain", kw_only=True)
    states: Literal[1, 2] = 2
    """Columns of a phone; 2, its first frame and all further ones; 1, all of them one."""
    context: Literal[1, 2] = 1
    """1, phones behind any phone; 2, with columns of their own after each phone (left biphones)."""
    least: Count = 20
    """Times that a phone must be said after another to have such columns."""

    def units(self, lexicon: Lexicon, transcripts: Iterable[str]) -> UnitSet:
        silence, *spoken = lexicon.phones
        pairs: tuple[str, ...] = ()
        if self.context > 1:
            counts: Counter[tuple[str, ...]] = Counter()
            for text, times in Counter(transcripts).items():
                if (said := ways_to_say(text.split(), lexicon)) is not None:
                    for pair, mean in expected_ngrams(said, 2).items():
                        counts[pair] += times * mean
            frequent = (pair for pair, mean in counts.items() if mean >= self.least)
            pairs = tuple(sorted(f"{left} {phone}" for left, phone in frequent if left != OPENING and phone != CLOSING))
        return UnitSet(tuple(spoken), hmm=PhoneStates(silence, self.states, pairs))
