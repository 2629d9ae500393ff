"""Times of recognised words, and how likely each is right.

Times: the words are aligned to the utterance once more, alone (hmm/align.py). In a decoding graph an output label
stands where its word is certain, not where it begins.

Confidence: the posterior probability of a word among the best word strings. With costs c_k of different strings, string
k has probability P_k = exp(-c_k) / sum_j exp(-c_j); a word's confidence is the sum of P_k over the strings that, in an
alignment of fewest errors, have the same word in its place.

Legend: T frames, S pdfs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.lattice import WordString
from roundelay_speech.hmm.align import align, utterance_graph, word_spans
from roundelay_speech.hmm.topology import Tying, phone_bounds
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.scoring.score import align_words

BEAMS = (20.0, 60.0, 1000.0)


@dataclass(frozen=True, eq=False)
class Pronouncing:
    """The lexicon, tied states and silence of a graph, by which words are timed."""

    lexicon: Lexicon
    tying: Tying
    silence_probability: float
    frame_seconds: float


@dataclass(frozen=True, eq=False)
class AlignedWord:
    """A word's frames, from `first` to before `end`: name and length of each phone, and the pdf of each frame."""

    first: int
    end: int
    phones: tuple[tuple[str, int], ...]
    pdfs: npt.NDArray[np.int32]


def confidences(words: Sequence[str], best: Sequence[WordString]) -> list[float]:
    """Return the posterior of each word, given the `best` word strings; 1 for all if there are none."""
    if not best:
        return [1.0] * len(words)
    cost = np.array([string.cost for string in best])
    share = np.exp(cost.min() - cost)
    share /= share.sum()
    result = np.zeros(len(words))
    for string, p in zip(best, share, strict=True):
        pairs = [pair for pair in align_words(words, string.words) if pair[0] is not None]
        result += p * np.array([ours == theirs for ours, theirs in pairs], float)
    return [min(1.0, float(value)) for value in result]


def word_frames(
    words: Sequence[str], scores: Float32, lexicon: Lexicon, tying: Tying, silence_probability: float
) -> list[tuple[int, int]]:
    """Align words; return (first frame, frame after the last) of each.

    Where the words cannot be aligned (fewer frames than states: the search ended inside a word), each gets an equal
    share of the frames.

    Args:
        scores: (T, S) scaled log-likelihoods.
    """
    found = aligned_words(words, scores, lexicon, tying, silence_probability)
    if found is None:
        edges = np.linspace(0, len(scores), len(words) + 1).astype(int).tolist()
        return [*pairwise(edges)]
    return [(word.first, word.end) for word in found]


def aligned_words(
    words: Sequence[str], scores: Float32, lexicon: Lexicon, tying: Tying, silence_probability: float
) -> list[AlignedWord] | None:
    """Align words to frames, phone by phone; return None if they cannot be aligned.

    Args:
        scores: (T, S) scaled log-likelihoods.
    """
    if not words:
        return []
    # One more word, never said, lets phone ids be those of the tying also where these words lack some phones.
    known = {word: lexicon.pronunciations[word] for word in words} | {"": (tying.phones[1:],)}
    spoken = Lexicon(known, tying.phones[0])
    graph = utterance_graph(words, spoken, tying, silence_probability)
    found = align(graph, np.ascontiguousarray(scores[:, graph.pdfs]), BEAMS)
    if found is None:
        return None
    bounds = phone_bounds(found.phones, found.states).tolist()
    said = [int(found.phones[first]) for first in bounds[:-1]]
    spans = word_spans(words, spoken, said)
    assert spans is not None, "an alignment is made of the words it was made for"
    return [
        AlignedWord(
            bounds[a],
            bounds[b],
            tuple((tying.phones[said[place] - 1], bounds[place + 1] - bounds[place]) for place in range(a, b)),
            found.pdfs[bounds[a] : bounds[b]],
        )
        for a, b, word in spans
        if word
    ]


def timed_words(
    words: Sequence[str], scores: Float32, best: Sequence[WordString] | None, how: Pronouncing
) -> tuple[TimedWord, ...]:
    """Return words with times in seconds and confidences.

    Args:
        scores: (T, S) scaled log-likelihoods.
        best: best word strings of the utterance; None: not known, and words get no confidence.
    """
    frames = word_frames(words, scores, how.lexicon, how.tying, how.silence_probability)
    sure = [None] * len(words) if best is None else confidences(words, best)
    return tuple(
        TimedWord(word, first * how.frame_seconds, (stop - first) * how.frame_seconds, confidence)
        for word, (first, stop), confidence in zip(words, frames, sure, strict=True)
    )
