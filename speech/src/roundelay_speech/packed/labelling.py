"""Speech with words, labelled by a packed model: its own tied states by an alignment of its own, or its units.

Viterbi aligns any words to any speech. So each utterance is also compared with words that others said. Where these fit
about as well as its own, its transcript may be wrong, or its speaker so strange to the model that it has much to learn
from it: so that is only said, unless it is so of most (speech/hmm/fit.py does more, for whole corpora).

Legend: T frames of all utterances together, S columns of scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from roundelay.core.progress import Progress, tracked
from roundelay_speech.audio.reading import read_audio
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import LeftOut
from roundelay_speech.decode.graphs.hmm import TiedStates
from roundelay_speech.features.store import FeatureStore, SpeakerStats
from roundelay_speech.hmm.align import Aligned, align, shortest, utterance_graph
from roundelay_speech.hmm.task import REALIGN_SCALE
from roundelay_speech.hmm.topology import Tying
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.models.sequences import LabelledUtterances, rows_of_scores
from roundelay_speech.packed.hearing import PieceFeatures, Statistics
from roundelay_speech.packed.model import Model
from roundelay_speech.packed.speech_data import SpeechData
from roundelay_speech.unit_labels import rows_needed
from roundelay_speech.units.base import UnitSet

ALIGNING_BEAMS = (40.0, 200.0)
_OTHERS = 2  # transcripts that each utterance is compared with
_NEAR = 40  # of the utterances next in length, these on both sides are looked at
_DOUBTFUL = 0.25  # of the median gain of own words over others'
_FITTING = 0.65  # of the utterances fit their own words better, at least; of wrong words half would


@dataclass(frozen=True, eq=False)
class HeardSpeech:
    """Utterances with the features that a packed model computes from their audio, and their speakers' statistics."""

    utterances: tuple[Utterance, ...]
    features: tuple[PieceFeatures, ...]  # of each utterance
    statistics: Mapping[str, Statistics]  # by speaker

    @classmethod
    def of(cls, model: Model, data: SpeechData, utterances: Sequence[Utterance], progress: Progress) -> "HeardSpeech":
        """Compute the features of utterances. Speakers are normalised by all of their speech among them.

        Raises:
            UserError: audio that cannot be used.
        """
        features = []
        for utterance in tracked(progress, "listening", utterances):
            features.append(model.features(read_audio(utterance, data.folder, model.sample_rate)))
        spoken: dict[str, list[PieceFeatures]] = {}
        for utterance, one in zip(utterances, features, strict=True):
            spoken.setdefault(utterance.speaker, []).append(one)
        known = {speaker: model.statistics(some) for speaker, some in sorted(spoken.items())}
        return cls(tuple(utterances), tuple(features), known)

    def store(self, model: Model, network: int) -> FeatureStore:
        """Return the features for one network of the model, as a store."""
        heard = [
            self.statistics[u.speaker].heard(one).of_network[network]
            for u, one in zip(self.utterances, self.features, strict=True)
        ]
        speakers = tuple(self.statistics)
        of = {name: index for index, name in enumerate(speakers)}
        mean, std = (np.stack([known.of_network[network][i] for known in self.statistics.values()]) for i in (0, 1))
        return FeatureStore(
            model.folder,
            np.concatenate(heard),
            tuple(u.id for u in self.utterances),
            np.cumsum([0, *map(len, heard)]),
            np.array([of[u.speaker] for u in self.utterances], np.int32),
            SpeakerStats(speakers, mean, std, np.zeros(len(speakers), np.int64)),
            model.sample_rate,
            {},
            tuple(model.hearings[network].parts),
        )


@dataclass(frozen=True, eq=False)
class LabelledSpeech:
    """The labels of `HeardSpeech`: tied states, or rows of units; and the utterances without labels, with reasons."""

    states: npt.NDArray[np.int32]  # (T,) tied states, -1 where an utterance is left out; empty where columns are units
    units: LabelledUtterances | None  # rows of units of each utterance that is used; None where columns are tied states
    used: tuple[str, ...]  # ids of the utterances that have labels
    left_out: Sequence[LeftOut]  # the others, with reasons
    # log-likelihood a frame, or row of scores, that own words have more than those of others; by id.
    gains: Mapping[str, float]

    @property
    def doubtful(self) -> list[str]:
        """Ids of utterances whose own words fit hardly better than those of others."""
        least = _DOUBTFUL * float(np.median(list(self.gains.values()))) if self.gains else 0.0
        return [name for name, gain in self.gains.items() if gain < max(0.0, least)]

    @property
    def fits(self) -> bool:
        """False if about half of all utterances fit words of others better than their own, as with wrong words."""
        return not self.gains or sum(gain > 0 for gain in self.gains.values()) >= _FITTING * len(self.gains)


def label_speech(model: Model, heard: HeardSpeech, lexicon: Lexicon, progress: Progress) -> LabelledSpeech:
    """Label utterances that have words of the lexicon; those that cannot be labelled are left out."""
    columns = model.columns
    if isinstance(columns, TiedStates):
        return _aligned(model, heard, lexicon.in_phones(columns.tying.phones), columns.tying, progress)
    units = model.hearings[0].model.units
    assert units is not None
    return _written(model, heard, lexicon, units, progress)


def _aligned(model: Model, heard: HeardSpeech, lexicon: Lexicon, tying: Tying, progress: Progress) -> LabelledSpeech:
    """Label every frame with its tied state, by alignment of the words with the model's scores."""
    known = Lexicon(lexicon.pronunciations, tying.phones[0], frozenset(tying.phones[1:]))
    silence = model.packed.search.silence_probability

    def fitted(words: Sequence[str], scores: Float32) -> Aligned | None:
        graph = utterance_graph(words, known, tying, silence)
        return align(graph, np.ascontiguousarray(REALIGN_SCALE * scores[:, graph.pdfs]), ALIGNING_BEAMS)

    rows, left_out, gains = dict[str, Aligned](), list[LeftOut](), dict[str, float]()
    different = _others(heard.utterances)
    for utterance, features in tracked(
        progress, "aligning", zip(heard.utterances, heard.features, strict=True), len(heard.utterances)
    ):
        needed = shortest(utterance.words, known)
        if len(features) < needed:
            why = f"too short for its words: {len(features)} frames, they need {needed}"
            left_out.append(LeftOut(utterance.id, f"{utterance.id}: {why}"))
            continue
        scores = model.scores(features, heard.statistics[utterance.speaker])
        found = fitted(utterance.words, scores)
        if found is None:
            left_out.append(LeftOut(utterance.id, f"{utterance.id}: its words do not fit it at all"))
            continue
        rows[utterance.id] = found
        others = [fitted(words, scores) for words in different[utterance.id]]
        if theirs := [one.acoustic for one in others if one is not None]:
            gains[utterance.id] = (found.acoustic - float(np.mean(theirs))) / len(features)
    labels = [
        rows[u.id].pdfs if u.id in rows else np.full(len(features), -1, np.int32)
        for u, features in zip(heard.utterances, heard.features, strict=True)
    ]
    return LabelledSpeech(np.concatenate(labels), None, tuple(rows), left_out, gains)


def _others(every: Sequence[Utterance]) -> dict[str, list[list[str]]]:
    """Return, by id, the words of other utterances with about as many words."""
    ordered = sorted(every, key=lambda u: (len(u.words), u.id))
    found = {}
    for place, utterance in enumerate(ordered):
        around = ordered[place + 1 : place + 1 + _NEAR] + ordered[max(0, place - _NEAR) : place]
        words = {other.text: other.words for other in around if other.words != utterance.words}
        found[utterance.id] = list(words.values())[:_OTHERS]
    return found


def _written(model: Model, heard: HeardSpeech, lexicon: Lexicon, units: UnitSet, progress: Progress) -> LabelledSpeech:
    """Label every utterance with its words in the model's units."""
    subsampling = model.hearings[0].model.module.subsampling
    kept, left_out, gains = dict[int, list[int]](), list[LeftOut](), dict[str, float]()
    different = _others(heard.utterances)
    for place, (utterance, features) in tracked(
        progress,
        "comparing words and speech",
        enumerate(zip(heard.utterances, heard.features, strict=True)),
        len(heard.utterances),
    ):
        written = units.written(utterance.words, lexicon)
        rows = int(rows_of_scores(np.array(len(features)), subsampling))
        if written is None or rows_needed(written) > rows:
            why = "cannot be written in the model's units" if written is None else "is too short for its words"
            left_out.append(LeftOut(utterance.id, f"{utterance.id}: {why}"))
            continue
        kept[place] = [units.numbers[unit] for unit in written]
        scores = model.scores(features, heard.statistics[utterance.speaker])
        others = [units.written(words, lexicon) for words in different[utterance.id]]
        theirs = [[units.numbers[u] for u in one] for one in others if one is not None and rows_needed(one) <= rows]
        if theirs:
            mean = float(np.mean([_likely(scores, labels) for labels in theirs]))
            gains[utterance.id] = (_likely(scores, kept[place]) - mean) / rows
    bounds = np.cumsum([0, *map(len, kept.values())])
    flat = np.array([label for labels in kept.values() for label in labels], np.int64)
    found = LabelledUtterances(np.array(list(kept), np.int64), flat, bounds.astype(np.int64))
    used = tuple(heard.utterances[place].id for place in kept)
    return LabelledSpeech(np.zeros(0, np.int32), found, used, left_out, gains)


def _likely(scores: Float32, labels: Sequence[int]) -> float:
    """Return the log-probability of labels under CTC."""
    rows = torch.log_softmax(torch.from_numpy(scores), 1)[:, None]
    sizes = torch.tensor([len(scores)]), torch.tensor([len(labels)])
    return -float(torch.nn.functional.ctc_loss(rows, torch.tensor([labels]), *sizes, reduction="sum"))
