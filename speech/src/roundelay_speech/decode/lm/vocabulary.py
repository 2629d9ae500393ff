"""Words that can be recognised, their pronunciations, and the text of their language model."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay_speech.data.problems import named
from roundelay_speech.decode.lm.arpa_file import open_text
from roundelay_speech.lexicon.lexicon import Lexicon, Pronunciation, are_by_position, base_phone, case_of, read_lexicon
from roundelay_speech.ngrams.ngram import RESERVED

Sentence = Sequence[str]


@dataclass(frozen=True)
class VocabularyLexicon:
    """The pronunciations of a vocabulary."""

    lexicon: Lexicon
    dropped: tuple[str, ...] = ()  # words without a pronunciation, the most frequent first; they cannot be recognised
    guessed: tuple[str, ...] = ()  # words whose pronunciation was guessed

    def describe(self, shown: int = 10) -> str:
        """Return words on what was not found, for people; "" if every word was found."""
        parts = []
        for words, what in (
            (self.dropped, "have no pronunciation and cannot be recognised"),
            (self.guessed, "have a guessed pronunciation"),
        ):
            if words:
                parts.append(f"{len(words)} words of the vocabulary {what}: {named(words, shown)}.")
        return " ".join(parts)


def read_sentences(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a text, plain or gzipped, as words; empty lines are left out.

    Raises:
        UserError: no such file, not UTF-8 text, damaged.
    """
    with open_text(path, "decode.text names texts with a sentence a line.") as file:
        for line in file:
            if words := line.split():
                yield words


def read_dictionary(path: Path, corpus: Lexicon) -> Lexicon:
    """Return a pronunciation dictionary in CMU's format, plain or gzipped, without its stress marks; its words in the
    case that the corpus's words have.

    Raises:
        UserError: as `read_lexicon`.
    """
    return read_lexicon(path, corpus.silence, strip_stress=True, case=case_of(corpus.words))


def joined(sentences: Iterable[Sentence], least: int) -> Iterator[list[str]]:
    """Join consecutive sentences until a line has at least `least` words, for texts cut into clauses, across whose ends
    utterances go. 0: no joining."""
    line: list[str] = []
    for sentence in sentences:
        line.extend(sentence)
        if len(line) >= least:
            yield line
            line = []
    if line:
        yield line


def most_frequent(counts: Mapping[str, int], size: int, always: Iterable[str] = ()) -> list[str]:
    """Return the `size` most frequent words, the most frequent first and ties in alphabetical order; then those of
    `always` that are not among them, in alphabetical order."""
    ranked = sorted((word for word in counts if word not in RESERVED), key=lambda word: (-counts[word], word))[:size]
    return [*ranked, *sorted(set(always) - {*ranked, *RESERVED})]


def count_words(sentences: Iterable[Sentence]) -> Counter[str]:
    """Return the number of occurrences of each word."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence)
    return counts


def pronounced(
    words: Sequence[str],
    dictionaries: Sequence[Lexicon],
    phones: Sequence[str],
    guess: Callable[[str], Pronunciation | None] | None = None,
) -> VocabularyLexicon:
    """Find the pronunciations of a vocabulary.

    Args:
        words: the most frequent first.
        dictionaries: a word's pronunciations are taken from the first that has it.
        phones: phones of the acoustic model; the first is silence. A pronunciation with any other does not count.
        guess: returns a pronunciation for a spelling, or None.

    Raises:
        UserError: not one word has a pronunciation.
    """
    known = set(map(base_phone, phones)) if are_by_position(phones) else set(phones)
    found: dict[str, tuple[Pronunciation, ...]] = {}
    dropped, guessed = [], []
    for word in words:
        for dictionary in dictionaries:
            said = tuple(p for p in dictionary.pronunciations.get(word, ()) if known.issuperset(p))
            if said:
                found[word] = said
                break
        else:
            said_so = guess(word) if guess is not None else None
            if said_so and known.issuperset(said_so):
                found[word] = (said_so,)
                guessed.append(word)
            else:
                dropped.append(word)
    if not found:
        raise UserError(
            f"None of the {len(words)} words of the vocabulary has a pronunciation in the acoustic model's phones "
            f"({', '.join(words[:5])}...). Do text and dictionary agree on upper and lower case?"
        )
    return VocabularyLexicon(Lexicon(found, phones[0]), tuple(dropped), tuple(guessed))
