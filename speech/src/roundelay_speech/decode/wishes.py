"""Wishes of a request beside the best words: alternatives, and words to favour."""

import re
from dataclasses import dataclass
from typing import final

from roundelay.core.errors import UserError

MOST_STRINGS = 100
"""Word strings that may be asked for: those that confidences are summed over."""
USUAL_BONUS, MOST_BONUS = 2.0, 20.0


@final
@dataclass(frozen=True)
class Wishes:
    """Alternatives and words to favour."""

    strings: int = 0  # how many word strings, and at most how many words in the place of each word; 0 for none
    favoured: tuple[str, ...] = ()  # words that cost less, as the model spells them (`Model.in_vocabulary`)
    bonus: float = USUAL_BONUS  # by how much, in nats

    def __post_init__(self) -> None:
        if not 0 <= self.strings <= MOST_STRINGS:
            raise UserError(f"{self.strings} alternatives: 0 to {MOST_STRINGS} can be asked for.")
        if not 0.0 <= self.bonus <= MOST_BONUS:
            raise UserError(f"A bonus of {self.bonus:g} nats: 0 to {MOST_BONUS:g} can be given; 1 to 3 is usual.")


WORDS_ALONE = Wishes()


def words_of(text: str) -> list[str]:
    """Return words that are parted by blanks or commas, each once."""
    return [*dict.fromkeys(word for word in re.split(r"[\s,]+", text) if word)]
