"""A language model of phones from all ways to say the training transcripts, for the denominator of lattice-free MMI.

    P(w | h) = c(h w) / c(h)

with c the expected counts over all pronunciations and silences (expected_ngrams), and h as long as the order allows
if it occurs often enough, else the last two phones. Nothing is smoothed: what was never said has no probability, so the
model stays sparse, as Povey et al. 2016 (section 3.3) want it, and nothing below a history of two phones is pruned.

Transcripts that it was not estimated from may say what it does not allow; their phones are scored by shorter histories,
with a factor 0.4 for each phone that is dropped (stupid backoff, Brants et al. 2007).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import final

from roundelay_speech.lexicon.pronounced import OPENING, Said, expected_ngrams

History = tuple[str, ...]
BEGINNING: History = (OPENING,)
SHORTER_FACTOR = 0.4
NEVER_SAID = 1e-4
"""Probability of a phone that was never said."""
ALWAYS_KEPT = 2
"""Phones of a history that is always kept."""


@final
class PhoneNgram:
    """The model.

    Args:
        texts: ways to say each training transcript, with the number of times it occurs.
        order: the longest n-grams, 2 or more.
        least: a history of more than two phones that occurs less often is shortened to two.
    """

    def __init__(self, texts: Iterable[tuple[Said, int]], order: int, least: float) -> None:
        self._keep = order - 1
        counts: Counter[History] = Counter()
        for said, times in texts:
            for ngram, mean in expected_ngrams(said, order).items():
                counts[ngram] += times * mean
        masses: Counter[History] = Counter()
        for ngram, mean in counts.items():
            masses[ngram[:-1]] += mean
        self._kept = {history for history, mean in masses.items() if len(history) <= ALWAYS_KEPT or mean >= least}
        self._followers: dict[History, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for ngram, mean in counts.items():
            for history in {self._shortened(ngram[:-1]), ngram[:-1][-1:], ()}:
                self._followers[history][ngram[-1]] += mean
        self._totals = {history: sum(some.values()) for history, some in self._followers.items()}

    def after(self, history: History, phone: str) -> History:
        """Return the history that the model looks at after one more phone."""
        return self._shortened((*history, phone)[-self._keep :])

    def _shortened(self, history: History) -> History:
        return history if history in self._kept else history[-ALWAYS_KEPT:]

    def followers(self, history: History) -> Mapping[str, float]:
        """Return log P of every phone that the model allows after a history, and of `CLOSING`."""
        total = self._totals[history]
        return {phone: math.log(mean / total) for phone, mean in self._followers[history].items()}

    def allows(self, history: History, phone: str) -> bool:
        """Return True if a phone, or `CLOSING`, has a probability after a history without shortening it?"""
        return self._followers.get(history, {}).get(phone, 0.0) > 0

    def log_p(self, history: History, phone: str) -> float:
        """Return log P(phone | history), of `CLOSING` too; by shorter histories where the model does not allow it."""
        cost = 0.0
        for shorter in (history, history[-1:], ()):
            if mean := self._followers.get(shorter, {}).get(phone, 0.0):
                return cost + math.log(mean / self._totals[shorter])
            cost += math.log(SHORTER_FACTOR)
        return cost + math.log(NEVER_SAID)
