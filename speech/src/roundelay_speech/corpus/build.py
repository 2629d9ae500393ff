"""From utterances and a lexicon to a prepared corpus: every check, then the features, then the folder.

Nothing is written before all input has been checked; features that are there already are kept.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay.core.strategy_text import did_you_mean
from roundelay_speech.audio.pipes import Pipes
from roundelay_speech.corpus.checks import (
    check_shares,
    note_left_out,
    one_rate,
    overlaps,
    silent_remarks,
    spelling_remark,
    stress_remark,
    unknown_genders,
)
from roundelay_speech.corpus.formats.kaldi import KaldiOptions, read_data_dir
from roundelay_speech.corpus.formats.lhotse import find_parts, read_part
from roundelay_speech.corpus.formats.lhotse_loading import LhotseOptions
from roundelay_speech.corpus.formats.matrices import GivenFeatures, store_matrices
from roundelay_speech.corpus.formats.recordings import RecordingOptions, read_recordings, standing_splits
from roundelay_speech.corpus.options import NO_COPIES, Copies, Preparation, PrepareOptions, is_open
from roundelay_speech.corpus.words import NO_WORDS, CorpusWords, by_kind, choose_words, cleaned, write_changes
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import BadPolicy, LeftOut, listing
from roundelay_speech.features.compute import AudioFolder, compute_features
from roundelay_speech.features.cutting import cut_into_shards, drop_old_shards
from roundelay_speech.features.parts import FeatureConfig
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.cleaning import Change
from roundelay_speech.lexicon.lexicon import Lexicon, case_of, read_lexicon
from roundelay_speech.prepared import (
    GUESSED_LEXICON,
    HELD_OUT_LEXICON,
    TRAIN,
    Corpus,
    check_splits,
    load_corpus,
    write_prepared,
)

CORPUS_G2P_MODEL = "g2p.json.gz"
USUAL_SPLITS = (TRAIN, "dev", "test")
GIVEN_FEATURES = "feats"  # the folder of features that were given
MADE_AUDIO = "lhotse"  # that of audio which the package lhotse has made


@final
@dataclass(frozen=True)
class ReadUtterances:
    """The utterances of a corpus as read from its files, and those left out."""

    # utterances by split; paths are absolute, or relative to the folder that is to be written.
    splits: Mapping[str, Sequence[Utterance]]
    # those that are left out already, with the reason, by split.
    left_out: Mapping[str, Sequence[LeftOut]] = field(default_factory=dict)
    remarks: Sequence[str] = ()  # on the corpus, for the person who prepares it
    given: GivenFeatures | None = None  # features and statistics that are there; None: they are computed from audio

    @classmethod
    def of(cls, read: Mapping[str, tuple[Sequence[Utterance], Sequence[LeftOut]]]) -> "ReadUtterances":
        """Build it from the utterances and the left-out ones of each split."""
        return cls(
            {split: found for split, (found, _) in read.items()}, {split: out for split, (_, out) in read.items()}
        )


def prepare_kaldi(
    source: Path,
    lexicon: Path | None,
    splits: Mapping[str, str],
    preparation: Preparation,
    progress: Progress,
    gender_of: Callable[[str], str | None] = lambda _: None,
) -> Corpus:
    """Prepare a corpus of Kaldi data directories.

    Args:
        source: the corpus folder; paths in `wav.scp` are relative to it.
        lexicon: file in CMU's format; None if the corpus is only to be recognised.
        splits: name of the split -> data directory, relative to `source`; one is named "train", unless the corpus is
            only to be recognised.
        progress: shows the long steps.
        gender_of: returns f or m for a speaker, if a corpus encodes it in speakers' names; `spk2gender` takes
            precedence.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together.
    """
    options = preparation.options
    if not source.is_dir():
        raise UserError(no_source(source, "data directories such as train and test"))
    reading = KaldiOptions(
        on_bad=options.on_bad,
        pipes=Pipes(preparation.data / "piped", options.pipe_seconds) if options.allow_pipes else None,
        features=options.given_features,
        frame_shift_ms=options.frame_shift_ms,
        channel=options.channel,
        words=not options.unlabelled,
    )
    if options.unlabelled and not splits:
        splits = standing_splits(source, USUAL_SPLITS, (source / "wav.scp").is_file())
    if not any((source / directory).is_dir() for directory in splits.values()):
        raise UserError(
            f"{source}: none of the folders {', '.join(splits.values())} is in it; expected Kaldi data directories "
            "(wav.scp, text, utt2spk). `--source` names the folder that they are in."
        )
    read, faults = {}, []
    for split, directory in splits.items():  # the faults of all of them in one round
        try:
            read[split] = read_data_dir(source / directory, source, reading, progress)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
    given = [one.matrices for one in read.values() if one.matrices is not None]
    if given and len(given) < len(read):
        odd = [split for split, one in read.items() if one.matrices is None]
        raise UserError(f"{source}: features are given (feats.scp), but not for {', '.join(odd)}; give all or none.")
    utterances = {split: _with_genders(one.utterances, gender_of) for split, one in read.items()}
    found = ReadUtterances(
        utterances,
        left_out={split: one.left_out for split, one in read.items()},
        remarks=[remark for one in read.values() for remark in one.remarks],
        given=functools.reduce(operator.or_, given) if given else None,
    )
    return prepare_utterances(found, _read_lexicon(lexicon, options, utterances), preparation, progress)


def no_source(source: Path, of: str) -> str:
    """Return the message for a missing folder of a corpus, with the nearest existing name."""
    there = [path.name for path in source.parent.iterdir() if path.is_dir()] if source.parent.is_dir() else []
    return f"{source}: no such folder; `--source` names the one that holds {of}.{did_you_mean(source.name, there)}"


def _with_genders(utterances: Sequence[Utterance], gender_of: Callable[[str], str | None]) -> list[Utterance]:
    return [dataclasses.replace(u, gender=u.gender or gender_of(u.speaker)) for u in utterances]


def prepare_recordings(
    source: Path, lexicon: Path | None, splits: Mapping[str, str], preparation: Preparation, progress: Progress
) -> Corpus:
    """Prepare folders of recordings of any kind (see recordings).

    Args: as `prepare_kaldi`, but `splits` names folders of recordings.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together.
    """
    options = preparation.options
    if not source.is_dir():
        raise UserError(no_source(source, "folders of recordings"))
    chosen = splits or standing_splits(source, USUAL_SPLITS, options.unlabelled)
    if not options.unlabelled and TRAIN not in chosen:
        raise UserError(
            f"{source}: no folder named train in it. Say which recordings to train on, `--split train=FOLDER`; or, to "
            "have them recognised only, give --unlabelled."
        )
    reading = RecordingOptions(preparation.data / "converted", options.on_bad, options.channel)
    read = {split: read_recordings(source / folder, reading, progress) for split, folder in chosen.items()}
    gone = {split: list(one.left_out) for split, one in read.items()}
    utterances = dict[str, list[Utterance]]()
    for split, one in read.items():
        silent = [] if options.unlabelled else [u for u in one.utterances if not u.words]
        gone[split] += [LeftOut(u.id, f"{u.id}: no words beside it, neither {u.id}.txt nor in text") for u in silent]
        utterances[split] = [u for u in one.utterances if u.words or options.unlabelled]
        if silent and options.on_bad == "error":
            raise UserError(
                f"{source}: recordings without words. Write them, leave these out (`--on-bad-audio skip`), or have all "
                f"recognised only (--unlabelled):\n{listing([one.reason for one in gone[split]])}"
            )
    found = ReadUtterances(utterances, gone, [remark for one in read.values() for remark in one.remarks])
    return prepare_utterances(found, _read_lexicon(lexicon, options, utterances), preparation, progress)


def prepare_lhotse(
    source: Path, lexicon: Path | None, splits: Mapping[str, str], preparation: Preparation, progress: Progress
) -> Corpus:
    """Prepare a corpus of Lhotse manifests.

    Args: as `prepare_kaldi`, but `splits` names parts of manifests (see lhotse), empty: every part is a split.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together.
    """
    options, there_are = preparation.options, find_parts(source)
    parts = {part: there_are[part] for part in sorted(there_are, key=lambda part: (part != TRAIN, part))}
    there = ", ".join(repr(part) for part in parts)
    chosen = dict(splits) or ({TRAIN: ""} if list(parts) == [""] else {part: part for part in parts})
    if unknown := [part for part in chosen.values() if part not in parts]:
        raise UserError(f"{source}: no part {unknown[0]!r} of manifests; there are {there}.")
    if TRAIN not in chosen:
        raise UserError(f"{source}: none of the parts {there} is named train; say which, e.g. `--split train=PART`.")
    reading = LhotseOptions(preparation.data / MADE_AUDIO, options.allow_pipes, options.channel)
    read = {s: read_part(parts[part], source, options.on_bad, reading, progress) for s, part in chosen.items()}
    found = ReadUtterances.of(read)
    return prepare_utterances(found, _read_lexicon(lexicon, options, found.splits), preparation, progress)


def prepare_utterances(read: ReadUtterances, lexicon: Lexicon, preparation: Preparation, progress: Progress) -> Corpus:
    """Check utterances, compute their features and write the prepared corpus.

    Raises:
        UserError: anything wrong with the input, all problems of a kind together; more of a split would be left out
            than may be.
    """
    data, options, splits, given = preparation.data, preparation.options, read.splits, read.given
    gone = {split: list(read.left_out.get(split, ())) for split in splits}
    check_shares(gone, splits, options.max_bad_share)  # before a split that lost all is taken for an empty one
    check_splits(splits, options.unlabelled)
    if given is not None and options.rate is not None:
        raise UserError("--rate resamples audio, but the features are given: leave it out, or drop feats.scp.")
    rate, kept, remarks, changes = _sound_splits(splits, lexicon, options, gone, read.remarks)
    words = NO_WORDS
    if not options.unlabelled:
        words = choose_words(kept, lexicon, options, data / CORPUS_G2P_MODEL, gone, progress)
        kept[TRAIN] = list(words.train)
        if given is None:
            kept[TRAIN] = options.copies.added(words.train)
    store, feature_folder = _store(data, kept, options, given, gone, rate, progress)
    kept = {split: [u for u in utterances if u.id in store] for split, utterances in kept.items()}
    check_shares(gone, kept, options.max_bad_share)
    if options.shards is not None:
        together = [u for utterances in kept.values() for u in utterances]
        store = cut_into_shards(store, together, kept[TRAIN], options.shards, progress)
    else:
        drop_old_shards(store.folder)
    if given is None:
        remarks += silent_remarks(kept, store)
    if not options.unlabelled and "dev" not in kept:
        remarks.append("there is no split dev, which training needs: `--split dev=FOLDER`, best of other speakers")
    shared = [] if options.unlabelled else overlaps(kept, store)
    if shared and options.on_overlap == "error":
        raise UserError(f"Splits share what they should not (`--on-overlap warn` takes them so):\n{listing(shared)}")
    tolerant = is_open(options.vocabulary) and options.on_missing_words == "error"
    corpus = Corpus(
        folder=data,
        name=preparation.name,
        splits=kept,
        lexicon=words.lexicon,
        sampling_rate=rate,
        licence=preparation.licence,
        # An open vocabulary means: held-out words may be unknown; their utterances are then left out of alignment only.
        on_missing_words="skip" if tolerant else options.on_missing_words,
        map_to=options.map_to,
        feature_folder=feature_folder,
        audio=given is None or given.with_audio,
        left_out={split: some for split, some in gone.items() if some},
        guessed=sum(not line.startswith(";;;") for line in words.guesses.splitlines()),
        held_out_words=words.held_out,
        remarks=[*remarks, *shared, *unknown_genders(kept)],
        unlabelled=options.unlabelled,
        cleaned=options.clean_transcripts,
        changes=dict(by_kind(changes).items()),
    )
    _write_word_lists(data, words)
    write_changes(data, changes)
    write_prepared(corpus)
    return corpus


def _sound_splits(
    splits: Mapping[str, Sequence[Utterance]],
    lexicon: Lexicon,
    options: PrepareOptions,
    gone: dict[str, list[LeftOut]],
    remarks: Sequence[str],
) -> tuple[int, dict[str, list[Utterance]], list[str], Mapping[Change, int]]:
    """Return the sampling rate, the utterances of that rate with clean transcripts, remarks, and changes of
    transcripts."""
    # Rates come first: the rest may learn to spell for half a minute.
    rate, kept, off, said = one_rate(splits, options.rate, options.on_bad)
    note_left_out(off, gone, splits)
    check_shares(gone, kept, options.max_bad_share)
    remarks = [*remarks, *said]
    changes: Mapping[Change, int] = {}
    if options.clean_transcripts:
        clean = cleaned(kept, lexicon if options.dictionary is None else options.dictionary)
        kept, changes = clean.splits, clean.changes
        note_left_out(clean.left_out, gone, splits)
        check_shares(gone, kept, options.max_bad_share)
    if not options.unlabelled:
        remarks += stress_remark(lexicon)
    if options.on_missing_words != "error" and not options.unlabelled:
        remarks += spelling_remark(lexicon.missing_words(u for some in kept.values() for u in some), lexicon)
    return rate, kept, remarks, changes


def _store(
    data: Path,
    splits: Mapping[str, Sequence[Utterance]],
    options: PrepareOptions,
    given: GivenFeatures | None,
    gone: dict[str, list[LeftOut]],
    rate: int,
    progress: Progress,
) -> tuple[FeatureStore, str]:
    """Copy or compute the features of all splits; return them and the name of their folder, and note utterances left
    out in `gone`."""
    together = [u for utterances in splits.values() for u in utterances]
    if given is not None:
        return store_matrices(together, data / GIVEN_FEATURES, given, progress, rate), GIVEN_FEATURES
    store, bad = compute_features(
        together,
        data / options.features.folder,
        options.features,
        progress,
        audio=AudioFolder(data, rate),
        workers=options.workers,
        on_bad=options.on_bad,
    )
    note_left_out(bad, gone, splits)
    return store, options.features.folder


def _write_word_lists(data: Path, words: CorpusWords) -> None:
    for file, listed in ((GUESSED_LEXICON, words.guesses), (HELD_OUT_LEXICON, words.held_out_listed)):
        if listed:
            write_text(data / file, listed)
        else:
            (data / file).unlink(missing_ok=True)  # of an earlier run with other transcripts or policy


def change_features(
    data: Path,
    features: FeatureConfig,
    progress: Progress,
    *,
    copies: Copies = NO_COPIES,
    workers: int | None = None,
    on_bad: BadPolicy = "error",
) -> Corpus:
    """Give a prepared corpus other features, and its training split new copies in place of old ones.

    Raises:
        UserError: `data` is no prepared corpus; anything wrong with the features' sources.
    """
    corpus = load_corpus(data)
    splits = {name: [u for u in some if not u.copied] for name, some in corpus.splits.items()}
    if copies != NO_COPIES:
        corpus.check_labelled()
    if not corpus.unlabelled:
        splits[TRAIN] = copies.added(splits[TRAIN])
    together = [u for utterances in splits.values() for u in utterances]
    if corpus.absent_shards:
        raise UserError(
            f"{data}: not all of its shards are here. Change its features where they are, and cut them anew."
        )
    store, bad = compute_features(
        together,
        data / features.folder,
        features,
        progress,
        audio=AudioFolder(data, corpus.sampling_rate if corpus.audio else None),
        workers=workers,
        on_bad=on_bad,
    )
    drop_old_shards(store.folder)
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


def _read_lexicon(path: Path | None, options: PrepareOptions, splits: Mapping[str, Sequence[Utterance]]) -> Lexicon:
    """Read the lexicon; for a corpus that is only to be recognised, return one without words."""
    if path is None or options.unlabelled:
        return NO_WORDS.lexicon
    case = options.lexicon_case or case_of(word for some in splits.values() for u in some for word in u.words)
    return read_lexicon(path, strip_stress=options.strip_stress, case=case)
