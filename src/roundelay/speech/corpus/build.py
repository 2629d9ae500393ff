"""From utterances and a lexicon to a prepared corpus: every check, then the features, then the folder.

Nothing is written before all input has been checked; features that are there already are kept.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.progress import Progress
from roundelay.speech.audio import bad_audio
from roundelay.speech.corpus.kaldi import read_data_dir_by
from roundelay.speech.corpus.manifest import Utterance
from roundelay.speech.corpus.prepared import (
    GUESSED_HELD_OUT,
    GUESSED_LEXICON,
    TRAIN,
    Corpus,
    check_splits,
    write_prepared,
)
from roundelay.speech.culprits import BadPolicy, LeftOut, listing
from roundelay.speech.fbank import FbankConfig
from roundelay.speech.features import compute_features
from roundelay.speech.g2p import guess_missing
from roundelay.speech.lexicon import (
    Lexicon,
    LexiconCase,
    MissingWordPolicy,
    missing_words_error,
    read_lexicon,
    resolve_missing_words,
)

G2P_MODEL = "g2p.json.gz"


@dataclass(frozen=True)
class PrepareOptions:
    """What to do with bad input, and how features are computed."""

    on_bad: BadPolicy = "error"  # empty transcripts, audio that cannot be used
    on_missing_words: MissingWordPolicy = "error"
    map_to: str | None = None  # under "map": the word of the lexicon that stands for missing ones
    fbank: FbankConfig = dataclasses.field(default_factory=FbankConfig)
    workers: int | None = None  # processes for features; None: as many as pay
    strip_stress: bool = False  # of the lexicon's vowels: AH0, AH1 -> AH
    lexicon_case: LexiconCase = "keep"  # change that of the lexicon's words to that of the transcripts


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
        UserError: anything wrong with the input, all culprits of a kind together.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `--source` must name the folder of the corpus {name}.")
    read = {split: read_data_dir_by(source / directory, source, options.on_bad) for split, directory in splits.items()}
    return prepare_utterances(
        data,
        {split: utterances for split, (utterances, _) in read.items()},
        read_lexicon(lexicon, strip_stress=options.strip_stress, case=options.lexicon_case),
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
) -> Corpus:
    """Check utterances (paths absolute or relative to `data`), compute their features and write the prepared corpus.

    Raises:
        UserError: anything wrong with the input, all culprits of a kind together.
    """
    check_splits(splits)
    gone = {split: list((left_out or {}).get(split, ())) for split in splits}
    everything = [u for utterances in splits.values() for u in utterances]
    guesses, held_out_guesses, held_out_words = "", "", {}
    if options.on_missing_words == "guess":
        known = lexicon
        missing = known.missing_words(splits[TRAIN])
        lexicon, guesses = guess_missing(missing, known, data / G2P_MODEL, progress)
        # A word that only a held-out sentence has is one the recogniser cannot know: for alignment alone.
        said = {m.word for m in missing}
        missing = [m for m in known.missing_words(everything) if m.word not in said]
        wider, held_out_guesses = guess_missing(missing, known, data / G2P_MODEL, progress)
        held_out_words = {w: p for w, p in wider.pronunciations.items() if w not in known}
    if options.on_missing_words == "error" and (missing := lexicon.missing_words(everything)):
        raise missing_words_error(missing, lexicon)
    kept = {split: list(utterances) for split, utterances in splits.items()}
    # Only the training transcripts are changed: the others are also scored (see Corpus.alignable).
    kept[TRAIN], unsayable = resolve_missing_words(kept[TRAIN], lexicon, options.on_missing_words, options.map_to)
    gone[TRAIN] += unsayable
    if not kept[TRAIN]:
        reasons = [culprit.reason for culprit in unsayable]
        raise UserError(f"Every training utterance has a word that is not in the lexicon:\n{listing(reasons)}")

    rate, kept, off = _one_rate(kept, options.on_bad)
    feature_folder = f"fbank{options.fbank.num_bins}"
    together = [u for utterances in kept.values() for u in utterances]
    store, bad = compute_features(
        together,
        data / feature_folder,
        options.fbank,
        progress,
        audio_folder=data,
        workers=options.workers,
        on_bad=options.on_bad,
    )
    split_of = {u.id: split for split, utterances in splits.items() for u in utterances}
    for culprit in (*off, *bad):
        gone[split_of[culprit.id]].append(culprit)
    corpus = Corpus(
        folder=data,
        name=name,
        splits={split: [u for u in utterances if u.id in store] for split, utterances in kept.items()},
        lexicon=lexicon,
        sampling_rate=rate,
        licence=licence,
        on_missing_words=options.on_missing_words,
        map_to=options.map_to,
        feature_folder=feature_folder,
        left_out={split: some for split, some in gone.items() if some},
        guessed=sum(not line.startswith(";;;") for line in guesses.splitlines()),
        held_out_words=held_out_words,
    )
    for file, listed in ((GUESSED_LEXICON, guesses), (GUESSED_HELD_OUT, held_out_guesses)):
        if listed:
            write_text(data / file, listed)
        else:
            (data / file).unlink(missing_ok=True)  # of an earlier run with other transcripts or policy
    write_prepared(corpus)
    return corpus


def _one_rate(
    splits: Mapping[str, list[Utterance]], on_bad: BadPolicy
) -> tuple[int, dict[str, list[Utterance]], list[LeftOut]]:
    """The sampling rate of most utterances, those that have it, and those left out because they have another."""
    everything = [u for utterances in splits.values() for u in utterances]
    rate = Counter(u.sampling_rate for u in everything).most_common(1)[0][0]
    off = [
        LeftOut(
            u.id, f"{u.id}: {u.path}: sampled at {u.sampling_rate} Hz, most of the corpus at {rate} Hz; resample it"
        )
        for u in everything
        if u.sampling_rate != rate
    ]
    if off and on_bad == "error":
        raise bad_audio(off, len(everything))
    return rate, {split: [u for u in us if u.sampling_rate == rate] for split, us in splits.items()}, off
