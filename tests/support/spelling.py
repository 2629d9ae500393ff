"""A language whose spelling follows rules that need context: SH and TH, C before E and I, a silent E at the end."""

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.lexicon.lexicon import Lexicon

CONSONANTS = ["B", "C", "D", "F", "G", "K", "L", "M", "N", "P", "S", "SH", "TH", "X"]
VOWELS = {"A": "AE", "E": "EH", "I": "IH", "O": "AA", "OO": "UW"}
SOUNDS = {"SH": ("SH",), "TH": ("TH",), "X": ("K", "S")}


def spelled(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """(word, phones): one to three syllables, perhaps a silent E."""
    contributions: list[str] = []
    for _ in range(int(rng.integers(1, 4))):
        contributions += [str(rng.choice(CONSONANTS)), str(rng.choice(list(VOWELS)))]
    if rng.random() < 0.6:
        contributions += [str(rng.choice(CONSONANTS)), *(["E"] if rng.random() < 0.5 else [])]
    phones: list[str] = []
    for i, chunk in enumerate(contributions):
        after = contributions[i + 1][0] if i + 1 < len(contributions) else ""
        if chunk == "E" and i == len(contributions) - 1 and len(contributions) > 2:
            continue
        if chunk in VOWELS:
            phones.append(VOWELS[chunk])
        elif chunk == "C":
            phones.append("S" if after in ("E", "I") else "K")
        else:
            phones += SOUNDS.get(chunk, (chunk,))
    return "".join(contributions), tuple(phones)


def spelled_lexicon(words: int, seed: int = 0) -> Lexicon:
    """About so many words."""
    rng = stream(seed, "spelling")
    return Lexicon({word: (phones,) for word, phones in (spelled(rng) for _ in range(words))})
