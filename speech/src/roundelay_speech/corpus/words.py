"""The words of a corpus and of a dictionary: those the lexicon lacks are guessed, mapped or left out, and those to
recognise are chosen. Transcripts are written in the words of the dictionary, and what that changed is listed:

DATA/cleaned.tsv   a line for each change: its kind, how often, before, after; see `cleaning.CHANGE_KINDS`
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import read_text, write_text
from roundelay.core.progress import Progress
from roundelay_speech.corpus.checks import check_shares
from roundelay_speech.corpus.options import PrepareOptions, Vocabulary, is_open
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut, counted, listing, named
from roundelay_speech.lexicon.cleaning import CHANGE_KINDS, Change, Cleaned, Cleaner, Kind
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

    lexicon: Lexicon  # words that can be recognised
    train: list[Utterance]
    guesses: str  # the guessed pronunciations in it, as they are written down
    held_out: Mapping[str, tuple[Pronunciation, ...]]  # of words that only held-out utterances have
    held_out_listed: str


NO_WORDS = CorpusWords(Lexicon({}), [], "", {}, "")
"""The words of a corpus that is only to be recognised: none."""


def choose_words(
    splits: Mapping[str, Sequence[Utterance]],
    known: Lexicon,
    options: PrepareOptions,
    speller: Path,
    gone: dict[str, list[LeftOut]],
    progress: Progress,
) -> CorpusWords:
    """Guess, map or leave out words that the lexicon lacks, and choose the words that can be recognised; `speller` is
    the file of the model that guesses."""
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

    Words of held-out sentences alone are not guessed, since a recogniser cannot know them, unless the vocabulary is
    closed. Marks of noises are not guessed from their letters.
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
    """Return the lexicon of the words that can be recognised (see Vocabulary), and show how many have no
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


def read_vocabulary(path: Path, size: int = 0) -> frozenset[str]:
    """Return the `size` most frequent words of a text or word list, which may be packed with gzip; 0: all of them.

    Words are separated by blanks; of equally frequent ones the alphabetically first are taken.

    Raises:
        UserError: the file is missing, damaged, not UTF-8, or without words.
    """
    if size < 0:
        raise UserError(f"--vocabulary-size {size}: give a number of words, or 0 for all of them.")
    counts = Counter(read_text(path, "a text or a list of words is needed").split())
    if not counts:
        raise UserError(f"{path}: no words in it.")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return frozenset(ranked[:size] if size else ranked)


def restricted(lexicon: Lexicon, words: Collection[str]) -> Lexicon:
    """Return the lexicon's entries for `words`; words that it lacks are skipped."""
    chosen = {word: found for word in words if (found := lexicon.pronunciations.get(word)) is not None}
    return Lexicon(chosen, lexicon.silence)


CHANGES_FILE = "cleaned.tsv"
_SHOWN = 5


@dataclass(frozen=True)
class CleanedSplits:
    """Utterances with clean transcripts."""

    splits: dict[str, list[Utterance]]
    left_out: list[LeftOut]  # those of which nothing is left, or in which something was not understood, with reasons
    changes: Mapping[Change, int]  # how often each was made


def cleaned(splits: Mapping[str, Sequence[Utterance]], lexicon: Lexicon) -> CleanedSplits:
    """Rewrite transcripts in the dictionary's words (see `Cleaner`), if there are any."""
    clean, changes, left_out = Cleaner(lexicon), Counter[Change](), list[LeftOut]()
    made: dict[str, list[Utterance]] = {}
    for split, utterances in splits.items():
        made[split] = []
        for u in utterances:
            if not u.words:
                made[split].append(u)
                continue
            found = clean(u.text)
            changes.update(found.changes)
            if found.words and not found.unclear:
                text = " ".join(found.words)
                made[split].append(u if text == u.text else dataclasses.replace(u, text=text))
            else:
                left_out.append(LeftOut(u.id, f"{u.id}: {_why(u, found)}"))
    return CleanedSplits(made, left_out, changes)


def _why(utterance: Utterance, found: Cleaned) -> str:
    marks = ", ".join(dict.fromkeys(c.before for c in found.changes if c.kind == "unclear"))
    if marks:
        return f"some of it was not understood ({marks})"
    if any(change.kind == "noise" for change in found.changes):
        return f"nothing but noises ({utterance.text})"
    return f"no word is left of its transcript ({utterance.text})"


def by_kind(changes: Mapping[Change, int]) -> dict[Kind, int]:
    """Return the number of changes of each kind that occurs, the most telling first."""
    counts: Counter[Kind] = Counter()
    for change, times in changes.items():
        counts[change.kind] += times
    return {kind: counts[kind] for kind in CHANGE_KINDS if counts[kind]}


def written_so(changes: Mapping[Kind, int]) -> str:
    """Return a sentence on changes in the transcripts that a model is scored against; "" if there are none."""
    if not changes:
        return ""
    told = ", ".join(
        f"{times:,} x {CHANGE_KINDS[kind].partition(',')[0].partition(':')[0]}" for kind, times in changes.items()
    )
    return f"transcripts were written in the model's words: {told}"


def table(changes: Mapping[Change, int]) -> list[tuple[str, str, str]]:
    """Return a row for each kind of change: its name, its most frequent changes, and their number."""
    rows = []
    for kind, total in by_kind(changes).items():
        some = sorted(((c, n) for c, n in changes.items() if c.kind == kind), key=lambda one: (-one[1], one[0].before))
        told = [f"{_shown(change)}{f' ({times})' if times > 1 else ''}" for change, times in some]
        rows.append((CHANGE_KINDS[kind], named(told, _SHOWN), f"{total:,}"))
    return rows


def _shown(change: Change) -> str:
    if change.kind in ("noise", "unclear"):
        return change.before
    return f"{change.before} -> {change.after or '(nothing)'}"


def write_changes(folder: Path, changes: Mapping[Change, int]) -> None:
    """Write the list of changes, the most frequent of a kind first; without any, remove the list of an earlier run."""
    path = folder / CHANGES_FILE
    if not changes:
        path.unlink(missing_ok=True)
        return
    order = list(CHANGE_KINDS)
    ranked = sorted(changes.items(), key=lambda one: (order.index(one[0].kind), -one[1], one[0].before))
    lines = [f"{change.kind}\t{times}\t{change.before}\t{change.after}\n" for change, times in ranked]
    write_text(path, "".join(["kind\ttimes\tbefore\tafter\n", *lines]))


def read_changes(folder: Path) -> dict[Change, int]:
    """Read the list that `write_changes` wrote; empty if there is none, as of an older version."""
    path = folder / CHANGES_FILE
    if not path.is_file():
        return {}
    found = {}
    for line in read_text(path, "a list of changes is expected").split("\n")[1:]:
        kind, _, rest = line.partition("\t")
        times, before, after = [*rest.split("\t"), "", "", ""][:3]
        known = next((name for name in CHANGE_KINDS if name == kind), None)
        if known is not None and times.isdigit():
            found[Change(known, before, after)] = int(times)
    return found
