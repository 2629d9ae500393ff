"""Transcripts of a prepared corpus as graphs: targets of lattice-free MMI."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import final, overload

from roundelay.core.state_graph import StateGraph
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.lexicon.pronounced import Said, ways_to_say
from roundelay_speech.mmi.graphs import denominator, numerator
from roundelay_speech.mmi.phone_ngram import PhoneNgram
from roundelay_speech.models.utterances import LabelledUtterances, labelled
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.units.base import UnitSet


@final
class TranscriptGraphs(Sequence[StateGraph]):
    """Numerators of a corpus, one for each different transcript, made when they are asked for; and the denominator.

    Args:
        units: phones as hidden Markov models.
        order, least: of the language model of phones (PhoneNgram).
    """

    def __init__(self, corpus: Corpus, units: UnitSet, order: int, least: float) -> None:
        assert units.hmm is not None
        self._corpus, self._order, self._least = corpus, order, least
        self._emitted = units.hmm.emitted(units.names)
        self._texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the place of a transcript in this sequence."""
        return self._texts.setdefault(text, len(self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, number: int, /) -> StateGraph: ...
    @overload
    def __getitem__(self, number: slice, /) -> Sequence[StateGraph]: ...
    def __getitem__(self, number: int | slice, /) -> StateGraph | Sequence[StateGraph]:
        texts = list(self._texts)[number]
        if isinstance(texts, list):
            return [self._made(text) for text in texts]
        return self._made(texts)

    def _made(self, text: str) -> StateGraph:
        said = self.said(text)
        assert said is not None
        return numerator(said, self._model, self._emitted)

    def said(self, text: str) -> Said | None:
        """Return all ways to say a transcript; None where a word of it is unknown."""
        return ways_to_say(text.split(), self._corpus.alignment_lexicon)

    @cached_property
    def _model(self) -> PhoneNgram:
        counts = Counter(self._corpus.transcripts(TRAIN))
        texts = ((said, times) for text, times in counts.items() if (said := self.said(text)) is not None)
        return PhoneNgram(texts, self._order, self._least)

    @cached_property
    def denominator(self) -> StateGraph:
        """All rows of phones that the training transcripts allow."""
        return denominator(self._model, self._emitted)


def graph_splits(
    corpus: Corpus, store: FeatureStore, graphs: TranscriptGraphs, subsampling: int
) -> tuple[dict[str, LabelledUtterances], list[LeftOut]]:
    """Return the utterances of every split, each with one label, the number of its transcript in `graphs` from 1; and
    those that are left out, with reasons."""

    def labels_of(utterance: Utterance, rows: int) -> list[int] | str:
        said = graphs.said(utterance.text)
        if said is None:
            return "a word of it is not in the lexicon"
        if (needed := said.shortest()) > rows:
            return f"too short for its transcript: {rows} rows of scores, and it has {needed} phones"
        return [1 + graphs.number(utterance.text)]

    return labelled(corpus.splits, store, subsampling, labels_of)
