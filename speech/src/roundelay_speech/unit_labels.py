"""Transcripts of a prepared corpus as sequences of units: targets of models that need no alignment."""

from collections.abc import Sequence
from itertools import pairwise

from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.models.sequences import LabelledUtterances, labelled
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.units.base import UnitsConfig, UnitSet


def units_of(config: UnitsConfig, corpus: Corpus) -> UnitSet:
    """Return the units of a corpus, which depend on its lexicon and training transcripts alone.

    Raises:
        UserError: a transcript has a character that is reserved.
    """
    return config.units(corpus.lexicon, corpus.transcripts(TRAIN))


def label_splits(
    corpus: Corpus, store: FeatureStore, units: UnitSet, subsampling: int
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split with their labels, and the utterances left out, with reasons."""

    def labels_of(utterance: Utterance, rows: int) -> list[int] | str:
        if (spoken := usable.get(utterance.id)) is None:
            return "a word of it is not in the lexicon"
        written = units.written(spoken.words, corpus.alignment_lexicon)
        if written is None:
            return f"a word of `{spoken.text[:60]}` cannot be written in the units"
        if (needed := rows_needed(written)) > rows:
            return f"too short for its transcript: {rows} rows of scores, and its {len(written)} units need {needed}"
        return [units.numbers[unit] for unit in written]

    parts = (every if units.spelled else corpus.alignable(split) for split, every in corpus.splits.items())
    usable = {utterance.id: utterance for part in parts for utterance in part}  # in words of the lexicon
    return labelled(corpus.splits, store, subsampling, labels_of)


def rows_needed(units: Sequence[str]) -> int:
    """Return the fewest rows of scores that a sequence of units needs: one each, and a blank between two equal ones."""
    return len(units) + sum(one == following for one, following in pairwise(units))
