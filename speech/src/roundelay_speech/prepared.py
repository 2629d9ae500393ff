"""A prepared corpus: a folder that every later step reads and nothing else.

DATA/corpus.json               name, licence, splits in numbers, versions; written last
DATA/train.jsonl, dev.jsonl... one manifest per split
DATA/lexicon.txt               CMU format
DATA/fbank40/                  features of all splits (see features/store); DATA/feats/ where they were given
DATA/piped/                    audio that commands of wav.scp made, where they were allowed; DATA/lhotse/: that lhotse
DATA/guessed_lexicon.txt       those of its words whose pronunciations were guessed from their spelling, if any
DATA/cleaned.tsv               changes of transcripts by `--clean-transcripts`, by kind
DATA/held_out_lexicon.txt      guesses for words that only held-out splits have, if any: to align, never to recognise
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundelay.core.checksums import read_checked, write_checked
from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance, is_one_word, read_manifest, repeated, write_manifest
from roundelay_speech.data.problems import LeftOut, listing
from roundelay_speech.features.shards import absent_shards
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.lexicon import (
    Lexicon,
    MissingWordPolicy,
    Pronunciation,
    read_lexicon,
    resolve_missing_words,
    write_lexicon,
)

CORPUS = "corpus.json"
PREPARED_LEXICON = "lexicon.txt"
GUESSED_LEXICON, HELD_OUT_LEXICON = "guessed_lexicon.txt", "held_out_lexicon.txt"
CORPUS_VERSION = 1
TRAIN = "train"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus in memory; the features stay on disk."""

    folder: Path
    name: str
    splits: dict[str, list[Utterance]]  # "train" and others, transcripts as they were spoken
    lexicon: Lexicon
    sampling_rate: int  # Hz
    licence: str = ""
    on_missing_words: MissingWordPolicy = "error"
    map_to: str | None = None
    feature_folder: str = "fbank40"
    audio: bool = True  # False: features were given, and an utterance's samples are frames
    left_out: dict[str, list[LeftOut]] = field(default_factory=dict)  # by split: left out by `prepare`, with reasons
    guessed: int = 0  # words of the lexicon whose pronunciations were guessed (all are in GUESSED_LEXICON)
    held_out_words: Mapping[str, tuple[Pronunciation, ...]] = field(default_factory=dict)  # see `alignment_lexicon`
    remarks: list[str] = field(default_factory=list)  # oddities that `prepare` found, though nothing was broken
    absent_shards: tuple[int, ...] = ()  # shards of train whose features are not here; nor are their utterances
    train_transcripts: tuple[str, ...] = ()  # of all shards, where some are absent
    unlabelled: bool = False  # to be recognised alone: splits of any names, words or none, no lexicon
    cleaned: bool = False  # transcripts were rewritten in the dictionary's words (see lexicon/cleaning)
    changes: Mapping[str, int] = field(default_factory=dict)  # of transcripts, by kind

    @property
    def utterances(self) -> list[Utterance]:
        """Utterances of all splits, in the order of their frames in the feature store."""
        return [utterance for split in self.splits.values() for utterance in split]

    @property
    def held_out(self) -> list[str]:
        """Splits that are recognised by default: all but the training split."""
        return [name for name in self.splits if self.unlabelled or name != TRAIN]

    def features(self) -> FeatureStore:
        """Open the features of the corpus.

        Raises:
            UserError: the features are missing or broken, or belong to other utterances.
        """
        store = FeatureStore.open(self.folder / self.feature_folder)
        if absent := [u.id for u in self.utterances if u.id not in store]:
            raise UserError(
                f"{store.folder}: no features of {len(absent)} utterances of the manifests. Run `roundelay prepare` "
                f"again:\n{listing(absent)}"
            )
        return store

    def transcripts(self, split: str) -> list[str]:
        """Return the transcripts of a split, without those of copies, and with those of absent shards.

        Raises:
            UserError: the corpus is unlabelled.
        """
        self.check_labelled()
        if split == TRAIN and self.absent_shards:
            return list(self.train_transcripts)
        return [u.text for u in self.splits[split] if not u.copied]

    def check_labelled(self) -> None:
        """Raise a UserError if the corpus has no transcripts."""
        if self.unlabelled:
            raise UserError(
                f"{self.folder}: prepared with --unlabelled, to be recognised: nothing is trained on or aligned to it. "
                "Prepare it with its transcripts, a lexicon and a split named train."
            )

    @property
    def alignment_lexicon(self) -> Lexicon:
        """The lexicon, with pronunciations of words that only held-out splits have: guesses, and those of a dictionary
        for words outside the vocabulary. By these, held-out frames can be labelled; a recogniser must not be given
        them."""
        return dataclasses.replace(self.lexicon, pronunciations={**self.lexicon.pronunciations, **self.held_out_words})

    def alignable(self, split: str) -> list[Utterance]:
        """Return the utterances of a split with transcripts that fit `alignment_lexicon`; score against `splits`.

        In the training split `prepare` has dealt with words missing from the lexicon; this function does so, by the
        same policy, in other splits, whose scored transcripts keep them.
        """
        return resolve_missing_words(self.splits[split], self.alignment_lexicon, self.on_missing_words, self.map_to)[0]


@dataclass(frozen=True)
class CorpusSummary:
    """A prepared corpus without its utterances."""

    name: str
    splits: Mapping[str, Mapping[str, float]]  # sizes of every split, by name (see `numbers`)


def read_summary(folder: Path) -> CorpusSummary:
    """Return the summary of a prepared corpus, after a check of all files by their checksums.

    Raises:
        UserError: the folder is no prepared corpus, or one of its files is missing or broken.
    """
    summary = _read_corpus_json(folder)
    try:
        sizes = {str(name): {key: float(n) for key, n in one.items()} for name, one in summary["splits"].items()}
        return CorpusSummary(str(summary["name"]), sizes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / CORPUS}: not what `roundelay prepare` writes ({error!r}). Run it again.") from error


def _read_corpus_json(folder: Path) -> dict[str, Any]:
    if not (folder / CORPUS).is_file():
        what = (
            "no such folder"
            if not folder.exists()
            else f"not a prepared corpus (no {CORPUS}; an interrupted one has none either)"
        )
        raise UserError(
            f"{folder}: {what}. Make it with `roundelay prepare` (`roundelay prepare --help` lists the corpora)."
        )
    summary = read_checked(
        folder / CORPUS,
        f"Run `roundelay prepare` again; if it was changed on purpose, delete `checksums` from {CORPUS}.",
    )
    if summary.get("version", CORPUS_VERSION) != CORPUS_VERSION:
        raise UserError(f"{folder / CORPUS}: prepared by another version of Roundelay. Run `roundelay prepare` again.")
    return summary


def load_corpus(folder: Path) -> Corpus:
    """Read a prepared corpus. If shards of its training features are missing, the corpus is smaller.

    Raises:
        UserError: the folder is no prepared corpus, or one of its files is missing or broken.
    """
    summary = _read_corpus_json(folder)
    try:
        names = list(summary["splits"])
        fields: dict[str, Any] = {
            "name": str(summary["name"]),
            "licence": str(summary["licence"]),
            "sampling_rate": int(summary["sampling_rate"]),
            "on_missing_words": summary["on_missing_words"],
            "map_to": summary["map_to"],
            "feature_folder": str(summary["features"]),
            "audio": bool(summary.get("audio", True)),
            "guessed": int(summary.get("guessed", 0)),
            "remarks": [str(remark) for remark in summary.get("remarks", ())],
            "left_out": {split: [LeftOut(**one) for one in some] for split, some in summary["left_out"].items()},
            "unlabelled": bool(summary.get("unlabelled", False)),
            "cleaned": bool(summary.get("cleaned", False)),
            "changes": {str(kind): int(times) for kind, times in summary.get("changes", {}).items()},
        }
        silence, lexicon_name = str(summary["silence"]), str(summary["lexicon"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / CORPUS}: not what `roundelay prepare` writes ({error!r}). Run it again.") from error
    unlabelled = fields["unlabelled"]
    splits = {name: read_manifest(folder / f"{name}.jsonl", words=not unlabelled) for name in names}
    if summary.get("held_out_words"):
        fields["held_out_words"] = read_lexicon(folder / HELD_OUT_LEXICON, silence).pronunciations
    if absent := absent_shards(folder / fields["feature_folder"]):
        gone = set(FeatureStore.open(folder / fields["feature_folder"]).absent)
        fields["train_transcripts"] = tuple(u.text for u in splits[TRAIN] if not u.copied)
        splits[TRAIN] = [u for u in splits[TRAIN] if u.id not in gone]
        fields["absent_shards"] = tuple(absent)
    lexicon = Lexicon({}, silence) if unlabelled else read_lexicon(folder / lexicon_name, silence)
    return Corpus(folder=folder, splits=splits, lexicon=lexicon, **fields)


def write_prepared(corpus: Corpus) -> None:
    """Write a prepared corpus except its features, `corpus.json` last.

    Raises:
        UserError: an id occurs in two splits; the disk is full.
    """
    check_splits(corpus.splits, corpus.unlabelled)
    # While the folder is a mixture of old and new it must not look prepared.
    (corpus.folder / CORPUS).unlink(missing_ok=True)
    for name, utterances in corpus.splits.items():
        write_manifest(corpus.folder / f"{name}.jsonl", utterances, words=not corpus.unlabelled)
    kept = [f"{name}.jsonl" for name in corpus.splits]
    if not corpus.unlabelled:
        write_lexicon(corpus.folder / PREPARED_LEXICON, corpus.lexicon)
        kept.append(PREPARED_LEXICON)
    write_checked(
        corpus.folder / CORPUS,
        {
            "version": CORPUS_VERSION,
            "name": corpus.name,
            "licence": corpus.licence,
            "sampling_rate": corpus.sampling_rate,
            "splits": {name: numbers(utterances) for name, utterances in corpus.splits.items()},
            "lexicon": PREPARED_LEXICON,
            "silence": corpus.lexicon.silence,
            "words": len(corpus.lexicon.words),
            "phones": len(corpus.lexicon.phones),
            "features": corpus.feature_folder,
            "audio": corpus.audio,
            "on_missing_words": corpus.on_missing_words,
            "map_to": corpus.map_to,
            "guessed": corpus.guessed,
            "held_out_words": len(corpus.held_out_words),
            "remarks": corpus.remarks,
            **({"unlabelled": True} if corpus.unlabelled else {}),
            **({"cleaned": True, "changes": dict(corpus.changes)} if corpus.cleaned else {}),
            "left_out": {
                split: [{"id": one.id, "reason": one.reason} for one in some] for split, some in corpus.left_out.items()
            },
        },
        [*kept, HELD_OUT_LEXICON] if corpus.held_out_words else kept,
    )


def check_splits(splits: Mapping[str, Sequence[Utterance]], unlabelled: bool = False) -> None:
    """Raise a UserError unless there is a training split (of an unlabelled corpus: all or no utterances of each split
    have words), no split is empty and no id occurs in two of them."""
    if not unlabelled and TRAIN not in splits:
        raise UserError(
            f"A corpus needs a split named `{TRAIN}`; there are: {', '.join(splits) or 'none'}. Speech that is to be "
            "recognised alone is prepared with --unlabelled, or not at all: `roundelay evaluate MODEL --data DIR` and "
            "`roundelay decode EXP --data DIR` take it as it is."
        )
    for name, utterances in splits.items() if unlabelled else ():
        has_words(name, utterances)
    if odd := [name for name in splits if not is_one_word(name) or "/" in name]:
        raise UserError(
            f"A split's name becomes a file's: {', '.join(map(repr, odd))} must be one word without a slash."
        )
    if empty := [name for name, utterances in splits.items() if not utterances]:
        raise UserError(f"No utterance is left in: {', '.join(empty)}.")
    if again := repeated(u.id for utterances in splits.values() for u in utterances):
        where = [
            f"{name} ({', '.join(s for s, us in splits.items() if any(u.id == name for u in us))})"
            for name in again[:50]
        ]
        raise UserError(f"{len(again)} utterance ids occur more than once; rename them:\n{listing(where)}")


def has_words(split: str, utterances: Sequence[Utterance]) -> bool:
    """Return True if all utterances of a split have transcripts, False if none has.

    Raises:
        UserError: some utterances have transcripts, and others not.
    """
    without = [u.id for u in utterances if not u.words]
    if without and len(without) < len(utterances):
        raise UserError(
            f"{split}: {len(without)} of {len(utterances)} utterances have no words, {without[0]} for example. Give "
            "words to all, or to none to recognise them only."
        )
    return not without


def numbers(utterances: Sequence[Utterance]) -> dict[str, float]:
    """Return the size of a split: utterances, hours, speakers, words."""
    return {
        "utterances": len(utterances),
        "hours": round(sum(u.duration / u.speed for u in utterances) / 3600, 4),
        "speakers": len({u.speaker for u in utterances}),
        "words": sum(len(u.words) for u in utterances),
    }
