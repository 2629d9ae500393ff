"""Confused phones: the wrong stretches of utterances, phone against phone, by the dictionary's pronunciations."""

from collections import Counter
from itertools import groupby
from pathlib import Path

from roundelay.core.files import write_json
from roundelay.core.records import PHONES_FILE
from roundelay_speech.lexicon.lexicon import Lexicon, base_phone
from roundelay_speech.scoring.alignment.align import Pair, align_words
from roundelay_speech.scoring.alignment.counts import Score


def confused_phones(result: Score, lexicon: Lexicon) -> Counter[Pair]:
    """Return phones of the reference and in the hypothesis that differ, and how often; None: nothing in its place.

    Words that stand wrong beside each other are compared together, by their first pronunciations: `TO DAY` for `TODAY`
    confuses nothing. A stretch with a word that the lexicon lacks is left out.
    """
    found: Counter[Pair] = Counter()
    for u in result.utterances:
        marked = [(r != h and place not in u.forgiven, (r, h)) for place, (r, h) in enumerate(u.pairs)]
        for wrong, stretch in groupby(marked, lambda item: item[0]):
            pairs = [pair for _, pair in stretch]
            words = [[pair[side] for pair in pairs if pair[side] is not None] for side in (0, 1)]
            if not wrong or any(word not in lexicon for side in words for word in side if word is not None):
                continue
            ref, hyp = ([base_phone(p) for w in side if w for p in lexicon.pronunciations[w][0]] for side in words)
            found.update(pair for pair in align_words(ref, hyp) if pair[0] != pair[1])
    return found


def write_phones(folder: Path, result: Score, lexicon: Lexicon) -> None:
    """Write PHONES_FILE, the most frequent first: [reference, hypothesis, times] each."""
    counts = sorted(confused_phones(result, lexicon).items(), key=lambda item: (-item[1], str(item[0])))
    write_json(folder / PHONES_FILE, {"confused": [[ref, hyp, times] for (ref, hyp), times in counts]})
