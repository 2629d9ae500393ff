"""Decoding with Gaussian mixtures: words of utterances, and the tied states on the way to them.

Legend: T frames of all utterances, D dimensions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.core.progress import Progress
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.hmm import HmmGraph
from roundelay_speech.decode.graphs.making import LEXICON_FILE
from roundelay_speech.decode.parallel import Decoders, Search, SearchedGraph, decoders
from roundelay_speech.features.store import FeatureStore
from roundelay_speech.hmm.gmm import Mixtures
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import read_lexicon
from roundelay_speech.prepared import TRAIN, Corpus
from roundelay_speech.recipes.recipe import Decoding, Recipe
from roundelay_speech.recognition.graph import decoding_graph
from roundelay_speech.recognition.loglikelihoods import FRAME_SECONDS, Source
from roundelay_speech.recognition.recognise import recognise_split
from roundelay_speech.recognition.settings import chosen_settings
from roundelay_speech.scoring.summary import Summary, write_score

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class MixtureScores(Source):
    """Log-likelihoods by Gaussian mixtures."""

    mixtures: Mixtures
    frames: Float32  # (T, D)
    store: FeatureStore

    def of(self, utterances: Sequence[Utterance]) -> Iterator[tuple[str, Float32]]:
        for utterance in utterances:
            first, length = self.store.span(utterance.id)
            yield utterance.id, self.mixtures.loglikes(self.frames[first : first + length])

    def seconds(self, utterances: Sequence[Utterance], frames: int) -> float:
        return frames * FRAME_SECONDS

    def told(self) -> dict[str, Any]:
        return {"gaussians": self.mixtures.components}


@dataclass(frozen=True, eq=False)
class MixtureDecoder:
    """Splits of a corpus, decoded by one graph with any mixtures of its tied states."""

    run: Decoders
    columns: Columns
    words: frozenset[str]
    corpus: Corpus
    config: Decoding
    progress: Progress

    def settings(self, scores: MixtureScores, known: Search | None) -> Search:
        """Return the search as it is best on dev; `known` where that has been found before."""
        if known is not None:
            return known
        return chosen_settings(self.run, scores, self.corpus, self.config, self.progress)[0]

    def decode(
        self, scores: MixtureScores, search: Search, splits: Sequence[str], pdfs: Int32, out: Path
    ) -> list[Summary]:
        """Decode splits and write their scores into folders of `out`. `pdfs`: (T,) that the pdf of every frame on the
        best path is written into; -1 where there is no path."""
        found = []
        for split in splits:
            utterances = self.corpus.splits[split]
            graph = SearchedGraph(self.run, self.columns, set(self.words))
            result, batch = recognise_split(graph, scores, utterances, split, search, self.progress)
            write_score(out / split, result.summary, result.subsets, utterances)
            for name, hypothesis in batch.hypotheses.items():
                first, length = scores.store.span(name)
                pdfs[first : first + length] = hypothesis.pdfs if len(hypothesis.pdfs) == length else -1
            found.append(result.summary)
        return found


@contextmanager
def mixture_decoder(
    recipe: Recipe, own: Corpus, corpus: Corpus, tying: Tying, progress: Progress
) -> Iterator[MixtureDecoder]:
    """Load the graph of the recipe's words and language model, those of `own`, to decode `corpus`. Raises UserError:
    texts, lexicon and tied states do not fit together."""
    config = replace(recipe.decode, graph=HmmGraph(), nbest=0, lattice=False, ctm=False)
    columns = config.graph.columns(tying)
    graph = decoding_graph(replace(recipe, decode=config), own, columns, progress, "")
    words = frozenset(read_lexicon(graph / LEXICON_FILE).words)
    with decoders(graph, config.workers) as run:
        yield MixtureDecoder(run, columns, words, corpus, config, progress)


def splits_to_decode(corpus: Corpus, known: bool) -> list[str]:
    """Return splits whose words are to be found: all but the training split, or all where its words are not `known`."""
    return [split for split in corpus.splits if split != TRAIN or not known]


def settings_told(search: Search) -> dict[str, float]:
    """Return settings of a search as adaptation.json keeps them."""
    return {
        "scale": search.scale,
        "word_cost": search.word_cost or 0.0,
        "beam": search.beam,
        "max_active": search.max_active,
    }


def settings_kept(told: Mapping[str, float]) -> Search:
    """Return the search with the settings that `settings_told` gave."""
    return Search(told["scale"], told["beam"], int(told["max_active"]), told["word_cost"])
