"""Other words that a search considers possible: strings for a whole piece, words in place of each of its words, and the
wishes of users.

Strings come from the lattice, each with the cost of its best path and its posterior among all that were listed, P_k =
exp(-c_k) / sum_j exp(-c_j) of costs c. A word stands in the place of another if an alignment of fewest errors pairs
them; its posterior is the sum of P_k over the strings that have it there.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from roundelay.core.errors import UserError
from roundelay_speech.decode.lattice import WordString
from roundelay_speech.decode.search import Hypothesis
from roundelay_speech.scoring.score import align_words


@final
@dataclass(frozen=True)
class StringAlternative:
    """A possible word string of a piece, with its cost and posterior."""

    words: tuple[str, ...]
    cost: float  # of its best path, graph and scaled acoustics together, in nats; the least is the best
    posterior: float  # among all strings that were listed

    @property
    def text(self) -> str:
        """The words with single blanks between them."""
        return " ".join(self.words)


@final
@dataclass(frozen=True)
class WordAlternative:
    """A word in place of another; the empty word if there is none."""

    word: str
    confidence: float


@final
@dataclass(frozen=True)
class Alternatives:
    """The alternatives for a piece: other strings, and other words in each place."""

    strings: tuple[StringAlternative, ...] = ()  # all different, the best first: it is the words of the piece
    # for each word of the piece others in its place, the likeliest first.
    of_words: tuple[tuple[WordAlternative, ...], ...] = ()


NO_ALTERNATIVES = Alternatives()


def ranked(best: Sequence[WordString], found: Hypothesis) -> tuple[StringAlternative, ...]:
    """Return the strings of a lattice with their posteriors, the one that the search found first.

    The search and the lattice round a path's cost differently, and words that sound alike may cost the same: no string
    is given less than the words that the search found. Where the lattice has not these, it is of another beginning of
    a sentence, and they are alone.
    """
    if not np.isfinite(found.cost):
        return ()
    own = [string for string in best if string.words == found.words] or [WordString(found.words, found.cost)]
    others = [string for string in best if string.words != found.words] if own[0] in best else []
    least = own[0].cost
    strings = [own[0], *sorted(others, key=lambda string: string.cost)]
    costs = np.maximum([string.cost for string in strings], least)
    share = np.exp(least - costs)
    share /= share.sum()
    return tuple(
        StringAlternative(string.words, cost, posterior)
        for string, cost, posterior in zip(strings, costs.tolist(), share.tolist(), strict=True)
    )


def keeping(strings: Sequence[StringAlternative], kept: Sequence[bool]) -> tuple[StringAlternative, ...]:
    """Return the strings without those words of the first that are not `kept`, and without other words in their places.

    A word that the first string lacks falls with the word before it, or at the beginning with the first. Strings that
    become the same are one, at the least of their costs and the sum of their posteriors.
    """
    if not strings or all(kept):
        return tuple(strings)
    found: dict[tuple[str, ...], StringAlternative] = {}
    for string in strings:
        words, stays, places = [], kept[0], iter(kept)
        for ours, theirs in align_words(strings[0].words, string.words):
            stays = stays if ours is None else next(places)
            if stays and theirs is not None:
                words.append(theirs)
        known = found.setdefault(tuple(words), replace(string, words=tuple(words), posterior=0.0))
        found[known.words] = replace(known, posterior=known.posterior + string.posterior)
    return tuple(found.values())


def in_place(
    strings: Sequence[StringAlternative], confidences: Sequence[float | None], most: int
) -> tuple[tuple[WordAlternative, ...], ...]:
    """Return other words for the place of each word of the first string.

    Args:
        confidences: confidences of the first string's words. Other words share the rest in proportion to their
            posteriors, so that all sum to at most 1; None: the word has none, and others keep their posteriors.
        most: most words for each place.
    """
    if not strings:
        return ()
    places: list[defaultdict[str, float]] = [defaultdict(float) for _ in strings[0].words]
    for string in strings:
        for place, theirs in zip(places, _in_the_places(strings[0].words, string.words), strict=True):
            place[theirs] += string.posterior
    found = []
    for word, place, confidence in zip(strings[0].words, places, confidences, strict=True):
        others = {other: posterior for other, posterior in place.items() if other != word}
        left = sum(others.values())
        scale = 1.0 if confidence is None or not left else (1.0 - confidence) / left
        best = sorted(others, key=lambda other: (-others[other], other))[:most]
        found.append(tuple(WordAlternative(other, min(1.0, scale * others[other])) for other in best))
    return tuple(found)


def _in_the_places(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[str]:
    for mine, other in align_words(ours, theirs):
        if mine is not None:
            yield other or ""


MOST_STRINGS = 100
"""Most word strings that may be asked for: as many as confidences are summed over."""
USUAL_BONUS, MOST_BONUS = 2.0, 20.0


@final
@dataclass(frozen=True)
class Wishes:
    """The wishes of a user: numbers of alternatives, and words to favour."""

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
    """Split words at blanks or commas; return each once."""
    return [*dict.fromkeys(word for word in re.split(r"[\s,]+", text) if word)]
