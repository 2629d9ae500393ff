"""A toy language: eight words, two pairs of homophones, words that begin other words, and log-likelihoods for them.

Legend: T frames, S pdfs.
"""

import numpy as np
import numpy.typing as npt

from roundelay_speech.hmm.topology import SILENCE, STATES, Tying
from roundelay_speech.hmm.tree import untied
from roundelay_speech.lexicon.lexicon import Lexicon

LEXICON = Lexicon(
    {
        "GO": (("G", "OW"),),
        "TO": (("T", "UW"), ("T", "AH")),
        "TWO": (("T", "UW"),),
        "TOE": (("T", "OW"),),
        "TONE": (("T", "OW", "N"),),
        "STOP": (("S", "T", "AA", "P"),),
        "NO": (("N", "OW"),),
        "KNOW": (("N", "OW"),),
    }
)
CLASSES = 2  # toy tying: neighbours count by their id modulo this


def sentences(rng: np.random.Generator, count: int) -> list[list[str]]:
    """Return `count` sentences in which each word has a few favourite successors."""
    words = LEXICON.words
    favourites = {word: [str(w) for w in rng.permutation(words)[:3]] for word in words}
    result = []
    for _ in range(count):
        sentence = [str(rng.choice(words))]
        while rng.random() < 0.7 and len(sentence) < 6:
            sentence.append(str(rng.choice(favourites[sentence[-1]])))
        result.append(sentence)
    return result


def tying(context: int) -> Tying:
    """Return the tied states of monophones, left biphones or triphones, whose neighbours differ by parity only."""
    if context == 1:
        return untied(LEXICON.phones).tying()
    size = len(LEXICON.phones) + 1
    left, phone, right, state = np.meshgrid(*[np.arange(size)] * 3, np.arange(STATES), indexing="ij")
    right = right if context == 3 else np.zeros_like(right)
    table = (((phone - 1) * CLASSES + left % CLASSES) * CLASSES + right % CLASSES) * STATES + state
    table[:, 0] = -1
    return Tying(LEXICON.phones, context, (size - 1) * CLASSES * CLASSES * STATES, table.astype(np.int32))


def phones_of(words: list[str], rng: np.random.Generator | None = None) -> list[int]:
    """Return the phone ids of a sentence between two silences; a random pronunciation of each word, or the first."""
    ids = [SILENCE]
    for word in words:
        variants = LEXICON.pronunciations[word]
        chosen = variants[int(rng.integers(len(variants)))] if rng else variants[0]
        ids += [LEXICON.phone_ids[phone] for phone in chosen]
    return [*ids, SILENCE]


def frames_of(phones: list[int], tied: Tying, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """Return (phone, state, pdf) of every frame, each state one to three frames long."""
    padded = [0, *phones, 0]
    return [
        (phone, state, tied.pdf(padded[i], phone, padded[i + 2], state))
        for i, phone in enumerate(phones)
        for state in range(STATES)
        for _ in range(int(rng.integers(1, 4)))
    ]


def loglikes_of(pdfs: list[int], num_pdfs: int, rng: np.random.Generator, noise: float) -> npt.NDArray[np.float32]:
    """Return log-posteriors (T, S), high where the true pdf is."""
    scores = rng.normal(size=(len(pdfs), num_pdfs)) * noise
    scores[np.arange(len(pdfs)), pdfs] += 6.0
    scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    return scores.astype(np.float32)
