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
from roundelay_speech.hmm.align import align, utterance_graph
from roundelay_speech.hmm.topology import SILENCE, Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.scoring.score import align_words

BEAMS = (20.0, 60.0, 1000.0)
_Segment = tuple[int, int, int]  # phone id, first frame, frame after the last


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
    variants = [{tuple(spoken.phone_ids[p] for p in said) for said in known[word]} for word in words]
    segments = _segments(found.phones, found.states)
    return [
        AlignedWord(
            segments[a][1],
            segments[b - 1][2],
            tuple((tying.phones[phone - 1], stop - first) for phone, first, stop in segments[a:b]),
            found.pdfs[segments[a][1] : segments[b - 1][2]],
        )
        for a, b in _split([phone for phone, _, _ in segments], variants)
    ]


def _segments(phones: npt.NDArray[np.int16], states: npt.NDArray[np.int8]) -> list[_Segment]:
    """Cut frames into phones: a new one begins where the phone changes or its states begin again."""
    starts = np.flatnonzero(np.append(True, (phones[1:] != phones[:-1]) | (states[1:] < states[:-1])))
    stops = np.append(starts[1:], len(phones))
    return [(int(phones[a]), int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def _split(row: Sequence[int], variants: Sequence[set[tuple[int, ...]]]) -> list[tuple[int, int]]:
    """Divide a row of phones among words; return the places of each word's first phone and after its last. Any reading
    of the row as pronunciations and silences, in order, will do."""
    stack: list[tuple[int, list[tuple[int, int]]]] = [(0, [])]  # segments read, (first, after last) of words so far
    while stack:
        at, read = stack.pop()
        if at < len(row) and row[at] == SILENCE:
            stack.append((at + 1, read))
        if len(read) == len(variants):
            if at == len(row):
                return read
            continue
        for said in sorted(variants[len(read)]):
            if tuple(row[at : at + len(said)]) == said:
                stack.append((at + len(said), [*read, (at, at + len(said))]))
    raise AssertionError("an alignment is made of the words it was made for")


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
