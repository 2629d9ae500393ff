"""From utterances and a lexicon to a prepared corpus: every check, then the features, then the folder.

Nothing is written before all input has been checked; features that are there already are kept.
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay.speech.audio.pipes import Pipes
from roundelay.speech.audio.speed import perturbed
from roundelay.speech.corpus.checks import cleaned, one_rate, overlaps, spelling_remark
from roundelay.speech.corpus.dictionary import restricted
from roundelay.speech.corpus.formats.kaldi import KaldiOptions, read_data_dir_with
from roundelay.speech.corpus.formats.lhotse import find_parts, read_part
from roundelay.speech.corpus.formats.matrices import GivenFeatures, store_matrices
from roundelay.speech.data.manifest import Utterance
from roundelay.speech.data.problems import BadPolicy, LeftOut, counted, listing
from roundelay.speech.features.compute import compute_features
from roundelay.speech.features.parts import FeatureConfig
from roundelay.speech.lexicon.g2p import guess_missing
from roundelay.speech.lexicon.lexicon import (
    Lexicon,
    LexiconCase,
    MissingWord,
    MissingWordPolicy,
    Pronunciation,
    case_of,
    missing_words_error,
    read_lexicon,
    resolve_missing_words,
)
from roundelay.speech.prepared import (
    GUESSED_LEXICON,
    HELD_OUT_LEXICON,
    TRAIN,
    Corpus,
    check_splits,
    load_corpus,
    write_prepared,
)

Vocabulary = Literal["lexicon", "transcripts", "open"] | frozenset[str]
"""Which words of the lexicon can be recognised: all, and it must have all words of the transcripts; those of the
transcripts only (closed); all, and held-out transcripts may have others, which are errors when scored (open); or
open, of given words and those of the training transcripts."""

CORPUS_G2P_MODEL = "g2p.json.gz"


@dataclass(frozen=True)
class PrepareOptions:
    """Policies for bad input, and options of features, words and audio."""

    on_bad: BadPolicy = "error"  # empty transcripts, audio or features that cannot be used
    max_bad_share: float = 0.1  # of a split's utterances that may be left out, for whatever reason
    on_missing_words: MissingWordPolicy = "error"
    map_to: str | None = None  # under "map": the word of the lexicon that stands for missing ones
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    speeds: tuple[float, ...] = ()  # copies of the training utterances that are added, played so fast
    workers: int | None = None  # processes for features; None: as many as pay
    strip_stress: bool = False  # of the lexicon's vowels: AH0, AH1 -> AH
    lexicon_case: LexiconCase | None = None  # of the lexicon's words; None: that of the transcripts, if they have one
    allow_pipes: bool = False  # run the commands of wav.scp
    pipe_seconds: float = 300.0  # that one of them may take
    rate: int | None = None  # Hz, that audio is resampled to as it is read; None: all has one rate
    channel: int | None = None  # of recordings that have several, where nothing else names one; None: the first
    clean_transcripts: bool = False  # write words as the dictionary does, without punctuation
    on_overlap: Literal["warn", "error"] = "warn"  # a speaker, or the same audio, in train and in another split
    given_features: bool = False  # take those of feats.scp though there is audio
    frame_shift_ms: float | None = None  # of feats.scp; None: as the data directory says, or 10
    vocabulary: Vocabulary = "lexicon"


DEFAULTS = PrepareOptions()
OPEN = PrepareOptions(vocabulary="open")


def prepare_kaldi(
    source: Path,
    data: Path,
    lexicon: Path,
    splits: Mapping[str, str],
    progress: Progress,
    *,
    options: PrepareOptions = PrepareOptions(),
    name: str,
    licence: str = "",
) -> Corpus:
    """Prepare a corpus of Kaldi data directories.

    Args:
        source: the corpus folder; paths in `wav.scp` are relative to it.
        data: the folder to write (see prepared).
        lexicon: file in CMU's format.
        splits: name of the split -> data directory, relative to `source`; one is named "train".
        progress: told of the long steps.
        options: policies and features.
        name: of the corpus.
        licence: its licence, for the reader of corpus.json.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `--source` must name the folder of the corpus {name}.")
    reading = KaldiOptions(
        on_bad=options.on_bad,
        pipes=Pipes(data / "piped", options.pipe_seconds) if options.allow_pipes else None,
        features=options.given_features,
        frame_shift_ms=options.frame_shift_ms,
        channel=options.channel,
    )
    read, faults = {}, []
    for split, directory in splits.items():  # the faults of all of them in one round
        try:
            read[split] = read_data_dir_with(source / directory, source, reading, progress)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
    given = [one.matrices for one in read.values() if one.matrices is not None]
    if given and len(given) < len(read):
        odd = [split for split, one in read.items() if one.matrices is None]
        raise UserError(f"{source}: features are given (feats.scp), but not for {', '.join(odd)}; give all or none.")
    utterances = {split: one.utterances for split, one in read.items()}
    return prepare_utterances(
        data,
        utterances,
        _read_lexicon(lexicon, options, utterances),
        progress,
        options=options,
        name=name,
        licence=licence,
        left_out={split: one.left_out for split, one in read.items()},
        remarks=[remark for one in read.values() for remark in one.remarks],
        given=functools.reduce(operator.or_, given) if given else None,
    )


def prepare_lhotse(
    source: Path,
    data: Path,
    lexicon: Path,
    splits: Mapping[str, str],
    progress: Progress,
    *,
    options: PrepareOptions = PrepareOptions(),
    name: str,
    licence: str = "",
) -> Corpus:
    """Prepare a corpus of Lhotse manifests.

    Args: as `prepare_kaldi`, but `splits` names parts of manifests (see lhotse), empty: every part is a split.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together.
    """
    found = find_parts(source)
    parts = {part: found[part] for part in sorted(found, key=lambda part: (part != TRAIN, part))}
    there = ", ".join(repr(part) for part in parts)
    chosen = dict(splits) or ({TRAIN: ""} if list(parts) == [""] else {part: part for part in parts})
    if unknown := [part for part in chosen.values() if part not in parts]:
        raise UserError(f"{source}: no part {unknown[0]!r} of manifests; there are {there}.")
    if TRAIN not in chosen:
        raise UserError(f"{source}: none of the parts {there} is named train; say which, e.g. `--split train=PART`.")
    read = {split: read_part(parts[part], source, options.on_bad) for split, part in chosen.items()}
    chosen_utterances = {split: utterances for split, (utterances, _) in read.items()}
    return prepare_utterances(
        data,
        chosen_utterances,
        _read_lexicon(lexicon, options, chosen_utterances),
        progress,
        options=options,
        name=name,
        licence=licence,
        left_out={split: left_out for split, (_, left_out) in read.items()},
    )


def prepare_utterances(
    data: Path,
    splits: Mapping[str, Sequence[Utterance]],
    lexicon: Lexicon,
    progress: Progress,
    *,
    options: PrepareOptions = PrepareOptions(),
    name: str,
    licence: str = "",
    left_out: Mapping[str, Sequence[LeftOut]] | None = None,
    remarks: Sequence[str] = (),
    given: GivenFeatures | None = None,
) -> Corpus:
    """Check utterances (paths absolute or relative to `data`), compute their features and write the prepared corpus.

    Args:
        left_out: utterances of the splits that whoever read them has left out already.
        remarks: what whoever read them has to say of them.
        given: features and statistics that are there; None: they are computed from audio.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together; more than the share of a split that
            may be left out would be.
    """
    gone = {split: list((left_out or {}).get(split, ())) for split in splits}
    check_shares(gone, splits, options.max_bad_share)  # before a split that lost all is taken for an empty one
    check_splits(splits)
    if given is not None and options.rate is not None:
        raise UserError("--rate resamples audio, but the features are given: leave it out, or drop feats.scp.")
    # Rates come first: what follows may learn to spell for half a minute.
    rate, kept, off, said = one_rate(splits, options.rate, options.on_bad)
    _leave_out(off, gone, splits)
    check_shares(gone, kept, options.max_bad_share)
    remarks = [*remarks, *said]
    if options.clean_transcripts:
        kept, said = cleaned(kept, lexicon)
        remarks += said
    if options.on_missing_words != "error":
        remarks += spelling_remark(lexicon.missing_words(u for some in kept.values() for u in some), lexicon)
    words = _words(kept, lexicon, options, data / CORPUS_G2P_MODEL, gone, progress)

    kept[TRAIN] = perturbed(words.train, options.speeds if given is None else ())
    together = [u for utterances in kept.values() for u in utterances]
    if given is not None:
        feature_folder, bad = "feats", list[LeftOut]()
        store = store_matrices(together, data / feature_folder, given, progress, rate)
    else:
        feature_folder = options.features.folder
        store, bad = compute_features(
            together,
            data / feature_folder,
            options.features,
            progress,
            audio_folder=data,
            workers=options.workers,
            on_bad=options.on_bad,
            rate=rate,
        )
    _leave_out(bad, gone, kept)
    kept = {split: [u for u in utterances if u.id in store] for split, utterances in kept.items()}
    check_shares(gone, kept, options.max_bad_share)
    if (shared := overlaps(kept, store)) and options.on_overlap == "error":
        raise UserError(f"Splits share what they should not (`--on-overlap warn` takes them so):\n{listing(shared)}")
    is_open = _is_open(options.vocabulary)
    corpus = Corpus(
        folder=data,
        name=name,
        splits=kept,
        lexicon=words.lexicon,
        sampling_rate=rate,
        licence=licence,
        # An open vocabulary means: held-out words may be unknown; their utterances are then left out of alignment only.
        on_missing_words="skip" if is_open and options.on_missing_words == "error" else options.on_missing_words,
        map_to=options.map_to,
        feature_folder=feature_folder,
        audio=given is None or given.with_audio,
        left_out={split: some for split, some in gone.items() if some},
        guessed=sum(not line.startswith(";;;") for line in words.guesses.splitlines()),
        held_out_words=words.held_out,
        remarks=[*remarks, *shared],
    )
    for file, listed in ((GUESSED_LEXICON, words.guesses), (HELD_OUT_LEXICON, words.held_out_listed)):
        if listed:
            write_text(data / file, listed)
        else:
            (data / file).unlink(missing_ok=True)  # of an earlier run with other transcripts or policy
    write_prepared(corpus)
    return corpus


@dataclass(frozen=True)
class _Words:
    """The words of a corpus, and the training utterances that they leave."""

    lexicon: Lexicon  # what can be recognised
    train: list[Utterance]
    guesses: str  # the guessed pronunciations in it, as they are written down
    held_out: Mapping[str, tuple[Pronunciation, ...]]  # of words that only held-out utterances have
    held_out_listed: str


def _is_open(vocabulary: Vocabulary) -> bool:
    return vocabulary == "open" or isinstance(vocabulary, frozenset)


def _words(
    splits: Mapping[str, Sequence[Utterance]],
    known: Lexicon,
    options: PrepareOptions,
    speller: Path,
    gone: dict[str, list[LeftOut]],
    progress: Progress,
) -> _Words:
    """Deal with words the lexicon lacks, and choose those that can be recognised; `speller` keeps what guesses."""
    everything = [u for utterances in splits.values() for u in utterances]
    lexicon, guesses, held_out_listed = known, "", ""
    held_out: dict[str, tuple[Pronunciation, ...]] = {}
    if options.on_missing_words == "guess":
        missing = _to_guess(known, options.vocabulary, splits)
        lexicon, guesses = guess_missing(missing, known, speller, progress)
        # A word that only a held-out sentence has is one the recogniser cannot know: for alignment alone.
        said = {m.word for m in missing}
        missing = [m for m in known.missing_words(everything) if m.word not in said]
        wider, held_out_listed = guess_missing(missing, known, speller, progress)
        held_out = {w: p for w, p in wider.pronunciations.items() if w not in known}
    needed = splits[TRAIN] if _is_open(options.vocabulary) else everything
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
    return _Words(lexicon, train, guesses, held_out, held_out_listed)


def _leave_out(
    problems: Sequence[LeftOut], gone: dict[str, list[LeftOut]], splits: Mapping[str, Sequence[Utterance]]
) -> None:
    """Put each down under its split."""
    split_of = {u.id: name for name, utterances in splits.items() for u in utterances} if problems else {}
    for one in problems:
        gone[split_of[one.id]].append(one)


def change_features(
    data: Path,
    features: FeatureConfig,
    progress: Progress,
    *,
    speeds: Sequence[float] = (),
    workers: int | None = None,
    on_bad: BadPolicy = "error",
) -> Corpus:
    """Give a prepared corpus other features, and its training split copies at other speeds (those it had go).

    Raises:
        UserError: it is not prepared; anything wrong with the features' sources.
    """
    corpus = load_corpus(data)
    splits = {name: [u for u in some if u.speed == 1] for name, some in corpus.splits.items()}
    splits[TRAIN] = perturbed(splits[TRAIN], speeds)
    together = [u for utterances in splits.values() for u in utterances]
    store, bad = compute_features(
        together,
        data / features.folder,
        features,
        progress,
        audio_folder=data,
        workers=workers,
        on_bad=on_bad,
        rate=corpus.sampling_rate if corpus.audio else None,
    )
    split_of = {u.id: name for name, utterances in splits.items() for u in utterances}
    gone = {name: list(some) for name, some in corpus.left_out.items()}
    for one in bad:
        gone.setdefault(split_of[one.id], []).append(one)
    changed = dataclasses.replace(
        corpus,
        splits={name: [u for u in some if u.id in store] for name, some in splits.items()},
        feature_folder=features.folder,
        left_out=gone,
    )
    write_prepared(changed)
    return changed


def check_shares(gone: Mapping[str, Sequence[LeftOut]], kept: Mapping[str, Sequence[Utterance]], most: float) -> None:
    """Raise a UserError if more than the share `most` of a split is left out: the corpus is not what it should be."""
    if not 0 <= most <= 1:
        raise UserError(f"--max-bad-share {most:g}: a share is between 0 and 1; 0.1 is a tenth.")
    for split, problems in gone.items():
        total = len(problems) + len(kept[split])
        if len(problems) > most * total:
            raise UserError(
                f"{len(problems)} of {counted(total, 'utterance')} of `{split}` would be left out, more than the share "
                f"of {most:g} that may be (`--max-bad-share`). Is something wrong with all of them?\n"
                f"{listing([one.reason for one in problems])}"
            )


def _read_lexicon(path: Path, options: PrepareOptions, splits: Mapping[str, Sequence[Utterance]]) -> Lexicon:
    case = options.lexicon_case or case_of(word for some in splits.values() for u in some for word in u.words)
    return read_lexicon(path, strip_stress=options.strip_stress, case=case)


def _to_guess(lexicon: Lexicon, vocabulary: Vocabulary, splits: Mapping[str, Sequence[Utterance]]) -> list[MissingWord]:
    """The words whose pronunciations are guessed: those of the training transcripts and of the vocabulary.

    A word that only a held-out sentence has is one the recogniser cannot know, unless the vocabulary is closed.
    """
    closed = vocabulary == "transcripts"
    missing = lexicon.missing_words([u for name, some in splits.items() if closed or name == TRAIN for u in some])
    listed = vocabulary - {m.word for m in missing} if isinstance(vocabulary, frozenset) else frozenset[str]()
    return missing + [MissingWord(word, 0, "the vocabulary") for word in sorted(listed) if word not in lexicon]


def _chosen_words(
    lexicon: Lexicon,
    vocabulary: Vocabulary,
    train: Sequence[Utterance],
    everything: Sequence[Utterance],
    progress: Progress,
) -> Lexicon:
    """The lexicon with the words that can be recognised (see Vocabulary); says how many have no pronunciation."""
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
