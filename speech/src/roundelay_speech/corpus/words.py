"""The words of a corpus: those the lexicon lacks are guessed, mapped or left out, and those to recognise are chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay_speech.corpus.checks import check_shares
from roundelay_speech.corpus.dictionary import restricted
from roundelay_speech.corpus.options import PrepareOptions, Vocabulary, is_open
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing
from roundelay_speech.lexicon.g2p import guess_missing
from roundelay_speech.lexicon.lexicon import (
    Lexicon,
    MissingWord,
    Pronunciation,
    missing_words_error,
    resolve_missing_words,
)
from roundelay_speech.lexicon.marks import is_mark
from roundelay_speech.prepared import TRAIN


@dataclass(frozen=True)
class CorpusWords:
    """The words of a corpus, and the training utterances that they leave."""

    lexicon: Lexicon  # what can be recognised
    train: list[Utterance]
    guesses: str  # the guessed pronunciations in it, as they are written down
    held_out: Mapping[str, tuple[Pronunciation, ...]]  # of words that only held-out utterances have
    held_out_listed: str


NO_WORDS = CorpusWords(Lexicon({}), [], "", {}, "")
"""Words of a corpus that is to be recognised alone."""


def choose_words(
    splits: Mapping[str, Sequence[Utterance]],
    known: Lexicon,
    options: PrepareOptions,
    speller: Path,
    gone: dict[str, list[LeftOut]],
    progress: Progress,
) -> CorpusWords:
    """Deal with words the lexicon lacks, and choose those that can be recognised; `speller` keeps what guesses."""
    everything = [u for utterances in splits.values() for u in utterances]
    lexicon, guesses, held_out_listed = known, "", ""
    held_out: dict[str, tuple[Pronunciation, ...]] = {}
    if options.on_missing_words == "guess":
        missing = _to_guess(known, options.vocabulary, splits)
        lexicon, guesses = guess_missing(missing, known, speller, progress)
        # A word that only a held-out sentence has is one the recogniser cannot know: for alignment alone.
        said = {m.word for m in missing}
        missing = [m for m in known.missing_words(everything) if m.word not in said and not is_mark(m.word)]
        wider, held_out_listed = guess_missing(missing, known, speller, progress)
        held_out = {w: p for w, p in wider.pronunciations.items() if w not in known}
    needed = splits[TRAIN] if is_open(options.vocabulary) else everything
    if options.on_missing_words == "error" and (missing := lexicon.missing_words(needed)):
        raise missing_words_error(missing, lexicon)
    # Only the training transcripts are changed: the others are also scored (see Corpus.alignable).
    train, unsayable = resolve_missing_words(splits[TRAIN], lexicon, options.on_missing_words, options.map_to)
    gone[TRAIN] += unsayable
    check_shares(gone, {**splits, TRAIN: train}, options.max_bad_share)
    if not train:
        reasons = [one.reason for one in unsayable]
        raise UserError(f"Every training utterance has a word that is not in the lexicon:\n{listing(reasons)}")
    lexicon = _chosen_words(lexicon, options.vocabulary, train, everything, progress)
    known_words = sorted({w for u in everything for w in u.words if w in known and w not in lexicon})
    held_out |= {word: known.pronunciations[word] for word in known_words}
    held_out_listed += "".join(
        f"{word} {' '.join(phones)} # of the dictionary, but not of the vocabulary\n"
        for word in known_words
        for phones in known.pronunciations[word]
    )
    return CorpusWords(lexicon, train, guesses, held_out, held_out_listed)


def _to_guess(lexicon: Lexicon, vocabulary: Vocabulary, splits: Mapping[str, Sequence[Utterance]]) -> list[MissingWord]:
    """Return the words whose pronunciations are guessed: those of the training transcripts and of the vocabulary.

    A word that only a held-out sentence has is one the recogniser cannot know, unless the vocabulary is closed. The
    letters of a mark do not say how a noise sounds.
    """
    closed = vocabulary == "transcripts"
    spoken = [u for name, some in splits.items() if closed or name == TRAIN for u in some]
    missing = [m for m in lexicon.missing_words(spoken) if not is_mark(m.word)]
    listed = vocabulary - {m.word for m in missing} if isinstance(vocabulary, frozenset) else frozenset[str]()
    return missing + [MissingWord(word, 0, "the vocabulary") for word in sorted(listed) if word not in lexicon]


def _chosen_words(
    lexicon: Lexicon,
    vocabulary: Vocabulary,
    train: Sequence[Utterance],
    everything: Sequence[Utterance],
    progress: Progress,
) -> Lexicon:
    """Return the lexicon with the words that can be recognised (see Vocabulary); says how many have no
    pronunciation."""
    if vocabulary in ("lexicon", "open"):
        return lexicon
    wanted = {word for u in (everything if vocabulary == "transcripts" else train) for word in u.words}
    if isinstance(vocabulary, frozenset):
        wanted |= vocabulary
    chosen = restricted(lexicon, wanted)
    absent = len(wanted) - len(chosen.pronunciations)
    progress.start("choosing the vocabulary")
    note = f"{counted(len(chosen.pronunciations), 'word')}"
    progress.advance(0, f"{note}; {absent} more have no pronunciation" if absent else note)
    progress.finish()
    return chosen
