"""Input that a model was trained on, as model.json keeps it, compared with that of a corpus.

Frames at another sampling rate, or of other filterbanks, are numbers like any others: the network takes them, and its
output is no speech. So both are compared before anything is decoded.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundelay.core.errors import UserError
from roundelay_speech.data.problems import listing
from roundelay_speech.features.store import FeatureStore, StoredPart
from roundelay_speech.prepared import TRAIN, Corpus


@dataclass(frozen=True)
class ModelInput:
    """Facts of the features, words and transcripts that a model was trained on."""

    sampling_rate: int  # of the audio, in Hz
    # frame_shift, frame_length: in seconds.
    frame_shift: float
    frame_length: float
    folder: str  # of the features in the corpus, such as fbank40
    filterbanks: Sequence[Any]  # the options of each filterbank among the features
    words: int  # how many the lexicon had
    lexicon: str  # digest of its words and pronunciations
    transcripts: str  # digest of the training transcripts, which language models are estimated from
    # by the name of a part, the identity of the models that made it (see `roundelay adapt`).
    made_by: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, corpus: Corpus, store: FeatureStore) -> "ModelInput":
        """Describe a corpus and features on which a model is trained."""
        return cls(
            store.sampling_rate,
            store.frame_shift,
            store.frame_length,
            corpus.feature_folder,
            filterbanks(store.config),
            len(corpus.lexicon.words),
            _digest([corpus.lexicon.to_text()]),
            _digest(corpus.transcripts(TRAIN)),
            makers(store.config),
        )

    def changes(self, corpus: Corpus) -> str:
        """Return words on differences of a corpus's lexicon and training transcripts from those the model was trained
        on; "" if there are none."""
        found = []
        if _digest([corpus.lexicon.to_text()]) != self.lexicon:
            found.append(f"the lexicon ({self.words:,} words then, {len(corpus.lexicon.words):,} now)")
        if _digest(corpus.transcripts(TRAIN)) != self.transcripts:
            found.append("the training transcripts")
        if not found:
            return ""
        return f"{corpus.folder} has changed since the model was trained: {' and '.join(found)}. "


def filterbanks(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of the filterbanks in a store's configuration; empty if the features were given."""
    if "num_bins" in config:  # stores of version 1 had one filterbank, and its options only
        return [dict(config)]
    parts = config.get("parts", ())
    return [dict(part["fbank"]) for part in parts if isinstance(part, Mapping) and isinstance(part.get("fbank"), dict)]


def makers(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the identities of the models that made parts of features, by part, as far as a store's configuration has
    them."""
    parts = [part for part in config.get("parts", ()) if isinstance(part, Mapping)]
    return {str(part.get("name")): str(part["made_by"]) for part in parts if part.get("made_by")}


def features_for(
    corpus: Corpus, parts: Sequence[StoredPart], known: ModelInput | None, model: str, splits: Sequence[str] = ()
) -> FeatureStore:
    """Return the features of a corpus that fit a model: those in use, or, if the corpus has got others since, those the
    model was trained on, if they still exist.

    Args:
        parts: the columns that the model was trained on; one called `features` if only their number is known.
        known: other facts about the model's input; None: saved by a version that did not keep them.
        model: name of the model in messages.
        splits: splits whose utterances must have features; empty: all.

    Raises:
        UserError: the features in use differ, and no others fit; names every difference and what to do.
    """
    try:
        store = corpus.features()
        differences = mismatches(store, parts, known)
        if not differences:
            return store
    except UserError:
        if known is None or known.folder == corpus.feature_folder:
            raise
        differences = [f"{corpus.folder / corpus.feature_folder} cannot be used"]
    needed = [u for name in splits or corpus.splits for u in corpus.splits[name]]
    if known is not None and known.folder != corpus.feature_folder:
        try:
            other = FeatureStore.open(corpus.folder / known.folder)
        except UserError:
            pass
        else:
            if not mismatches(other, parts, known) and all(u.id in other for u in needed):
                return other
    refuse(differences, parts, corpus, known, model)
    raise AssertionError("there are differences")


def refuse(
    differences: Sequence[str], parts: Sequence[StoredPart], corpus: Corpus, known: ModelInput | None, model: str
) -> None:
    """Raise a UserError that names all differences (see `mismatches`) and what to do, if there are any."""
    if differences:
        raise UserError(
            f"{corpus.folder}: its features are not those the model in {model} was trained on:\n"
            f"{listing(differences)}\n{_remedy(corpus, parts, known)}"
        )


def mismatches(store: FeatureStore, parts: Sequence[StoredPart], known: ModelInput | None) -> list[str]:
    """Return all differences of a store's features from those that a model was trained on."""
    found = []
    if known is not None and store.sampling_rate != known.sampling_rate:
        found.append(f"audio at {store.sampling_rate:,} Hz, the model's at {known.sampling_rate:,} Hz")
    if known is not None and abs(store.frame_shift - known.frame_shift) > 1e-4:
        found.append(f"a frame every {1000 * store.frame_shift:g} ms, the model's every {1000 * known.frame_shift:g}")
    width, wanted = sum(part.width for part in store.parts), sum(part.width for part in parts)
    if known is None and len(parts) == 1:  # an early model knows a number only
        return found if width == wanted else [f"{width} features a frame, the model's {wanted}"]
    if [_kind(part) for part in store.parts] != [_kind(part) for part in parts]:
        found.append(f"{_described(store.parts)}; the model's {_described(parts)}")
    if known is not None:
        here, there = filterbanks(store.config), list(known.filterbanks)
        for number, (mine, its) in enumerate(zip(here, there, strict=False), 1):
            found += [
                f"{name} of filterbank {number} is {mine[name]}, the model's {its[name]}"
                for name in sorted(mine.keys() & its.keys())
                if mine[name] != its[name] and name != "num_bins"
            ]
        made = makers(store.config)
        found += [
            f"{name} was made by other models ({made.get(name, 'unknown')[:12]}) than the model's ({its[:12]}): give "
            "`roundelay adapt` the recipe whose models made these"
            for name, its in known.made_by.items()
            if made.get(name) != its
        ]
    return found


def _kind(part: StoredPart) -> tuple[int, int, str, bool, bool]:
    return part.width, part.deltas, part.normalise, part.spliced, part.filterbank


def _described(parts: Sequence[StoredPart]) -> str:
    return ", ".join(
        f"{p.name} of {p.width} with {p.deltas} deltas, normalised by {p.normalise}"
        + ("" if p.spliced else ", not spliced")
        for p in parts
    )


def _remedy(corpus: Corpus, parts: Sequence[StoredPart], known: ModelInput | None) -> str:
    bins = f" --bins {parts[0].width}" if len(parts) == 1 and parts[0].filterbank else " --features YAML"
    if known is not None and known.sampling_rate != corpus.sampling_rate:
        return (
            f"Prepare the corpus again with `roundelay prepare ... --rate {known.sampling_rate}{bins}`, or take a "
            f"model trained at {corpus.sampling_rate:,} Hz."
        )
    return f"Give the corpus the model's features with `roundelay features {corpus.folder}{bins}`, or train again."


def _digest(texts: Sequence[str]) -> str:
    state = hashlib.blake2b(digest_size=12)
    for text in texts:
        state.update(text.encode() + b"\n")
    return state.hexdigest()
