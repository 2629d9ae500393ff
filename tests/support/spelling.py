"""A language whose spelling follows rules that need context: SH and TH, C before E and I, a silent E at the end."""

from dataclasses import dataclass

import numpy as np

from roundelay.core.streams import stream
from roundelay_speech.lexicon.g2p import G2p
from roundelay_speech.lexicon.lexicon import Lexicon, Pronunciation

CONSONANTS = ["B", "C", "D", "F", "G", "K", "L", "M", "N", "P", "S", "SH", "TH", "X"]
VOWELS = {"A": "AE", "E": "EH", "I": "IH", "O": "AA", "OO": "UW"}
SOUNDS = {"SH": ("SH",), "TH": ("TH",), "X": ("K", "S")}


def spelled(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Draw (word, phones): one to three syllables, perhaps a silent E."""
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
    """Return a lexicon of about `words` words."""
    rng = stream(seed, "spelling")
    return Lexicon({word: (phones,) for word, phones in (spelled(rng) for _ in range(words))})


@dataclass(frozen=True)
class G2pScore:
    """Errors on words the model has not seen; of a word with several pronunciations the nearest one counts."""

    words: int
    wrong: int
    phones: int
    errors: int

    @property
    def word_error_rate(self) -> float:
        """Errors in %."""
        return 100 * self.wrong / max(1, self.words)

    @property
    def phone_error_rate(self) -> float:
        """Errors in %."""
        return 100 * self.errors / max(1, self.phones)


def hold_out(lexicon: Lexicon, share: float = 0.05, seed: int = 0) -> tuple[Lexicon, Lexicon]:
    """Return (the rest, a random share) of a lexicon's words, each with all its pronunciations."""
    drawn = stream(seed, "g2p held out").random(len(lexicon.words)) < share
    parts = [
        Lexicon({w: lexicon.pronunciations[w] for w, out in zip(lexicon.words, drawn, strict=True) if out == held})
        for held in (False, True)
    ]
    return parts[0], parts[1]


def judge(model: G2p, lexicon: Lexicon) -> G2pScore:
    """Pronounce the words of a lexicon; a word without a guess has all its phones wrong."""
    wrong = phones = errors = 0
    for word, variants in lexicon.pronunciations.items():
        guess = model.pronounce(word)
        said = guess[0].phones if guess else ()
        distance, nearest = min((_distance(said, variant), len(variant)) for variant in variants)
        wrong += distance > 0
        errors += distance
        phones += nearest
    return G2pScore(len(lexicon.pronunciations), wrong, phones, errors)


def _distance(a: Pronunciation, b: Pronunciation) -> int:
    """Return insertions, deletions and substitutions from one to the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
