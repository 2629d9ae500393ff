"""Transcripts of a prepared corpus as rows of units: targets of models that need no alignment."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.utterances import LabelledUtterances, rows_of_scores
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.units.base import UnitsConfig, UnitSet


def units_of(config: UnitsConfig, corpus: Corpus) -> UnitSet:
    """Return the units of a corpus: the same for equal lexica and training transcripts.

    Raises:
        UserError: a transcript has a character that is reserved.
    """
    return config.units(corpus.lexicon, corpus.transcripts(TRAIN))


def label_splits(
    corpus: Corpus, store: FeatureStore, units: UnitSet, subsampling: int
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split with their labels, and those that are left out, with reasons.

    Args:
        subsampling: frames that one row of scores stands for.
    """
    found, left_out = {}, []
    for split, every in corpus.splits.items():
        kept, labels = [], []
        utterances = every if units.spelled else corpus.alignable(split)
        absent = {u.id for u in every} - {u.id for u in utterances}
        left_out += [LeftOut(name, f"{name}: a word of it is not in the lexicon") for name in sorted(absent)]
        for utterance in utterances:
            written = units.written(utterance.words, corpus.alignment_lexicon)
            rows = int(rows_of_scores(np.array(store.frames(utterance.id)), subsampling))
            if reason := _unfit(utterance, written, rows):
                left_out.append(LeftOut(utterance.id, f"{utterance.id}: {reason}"))
            elif written is not None:
                kept.append(store.position(utterance.id))
                labels.append([units.numbers[unit] for unit in written])
        bounds = np.cumsum([0, *map(len, labels)])
        flat = np.array([label for row in labels for label in row], np.int64)
        found[split] = LabelledUtterances(np.array(kept, np.int64), flat, bounds.astype(np.int64))
    return found, left_out


def rows_needed(units: Sequence[str]) -> int:
    """Return rows of scores that a row of units needs at least: one each, and a blank between two of a kind."""
    return len(units) + sum(one == following for one, following in pairwise(units))


def _unfit(utterance: Utterance, written: Sequence[str] | None, rows: int) -> str:
    """Return the reason to leave an utterance out; none: it fits."""
    if written is None:
        return f"a word of `{utterance.text[:60]}` cannot be written in the units"
    if (needed := rows_needed(written)) > rows:
        return f"too short for its transcript: {rows} rows of scores, and its {len(written)} units need {needed}"
    return ""
