"""A packed model in memory: words of samples.

    model = load_model(Path("MODEL"))
    model.recognise(samples).text
    model.transcribe("talk.mp3").text

Legend: N samples, T frames (rows of scores, of which a model with subsampling has fewer), S columns: tied states, or
units and a blank, or states of phones.
"""

import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

import roundelay
from roundelay.core.checksums import file_checksum
from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.folders import PACKED
from roundelay.core.progress import Progress, Silent
from roundelay_speech.data.arrays import Bools, Float32, Float64
from roundelay_speech.data.processes import Here, batched, start_workers
from roundelay_speech.decode.alternatives import (
    NO_ALTERNATIVES,
    WORDS_ALONE,
    Alternatives,
    StringAlternative,
    Wishes,
    in_place,
    keeping,
    ranked,
)
from roundelay_speech.decode.confidence import Pronouncing, aligned_words
from roundelay_speech.decode.evidence import Evidence, FoundWord, cepstra, measured, too_long
from roundelay_speech.decode.graphs.base import Columns
from roundelay_speech.decode.graphs.chain import StatesOfPhones
from roundelay_speech.decode.graphs.ctc import UnitsAndBlank
from roundelay_speech.decode.graphs.graph import WORDS_FILE, Graph, load_graph
from roundelay_speech.decode.graphs.hmm import TiedStates
from roundelay_speech.decode.graphs.making import LEXICON_FILE
from roundelay_speech.decode.graphs.transducers import BACKOFF
from roundelay_speech.decode.lm.given import load_model as load_language_model
from roundelay_speech.decode.parallel import Decoders, decoder_here
from roundelay_speech.decode.rescore import rescorer_of
from roundelay_speech.hmm.alignment import TREE
from roundelay_speech.hmm.topology import SILENCE
from roundelay_speech.hmm.tree import DecisionTree
from roundelay_speech.lexicon.lexicon import Lexicon, NearWords, read_lexicon
from roundelay_speech.ngrams.ngram import BEGIN, END
from roundelay_speech.packed.adapting import Adapting, Placed, SpeakerFrames
from roundelay_speech.packed.folder import CARD, REMEDY, RESCORE, PackedModel, read_evidence, read_packed
from roundelay_speech.packed.given import model_folder
from roundelay_speech.packed.hearing import Hearing, PieceFeatures, Statistics, checked
from roundelay_speech.packed.upper import Told
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.trained import load_model as load_network
from roundelay_speech.units.base import BLANK, UnitSet
from roundelay_speech.units.states import FURTHER

_JOB_FRAMES = 3000  # handed to a worker at once
_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # classes of Unicode's bidirectional algorithm
_NOT_SAID = -100.0  # log-likelihood of speech where there is no sound
_ONLY = "speech"  # name of an utterance that has none


if TYPE_CHECKING:
    from roundelay_speech.transcription.transcribing import Finished


@final
@dataclass(frozen=True)
class Transcript:
    """The recognised words of a piece of audio."""

    words: tuple[str, ...] = ()
    # the same words with times, in seconds from the beginning of the piece, and confidences from 0 to 1; empty where
    # they were not asked for, or the model gives none.
    timed: tuple[TimedWord, ...] = ()
    complete: bool = True  # whether they are a whole sentence of the grammar; if not, the piece ends inside one
    alternatives: Alternatives = NO_ALTERNATIVES  # other words, where they were asked for
    adapted: bool = True  # False where too little is known of the speaker for the transform that the model would hear

    @property
    def text(self) -> str:
        """The words with blanks between them."""
        return " ".join(self.words)


@dataclass(frozen=True, eq=False)
class Examined:
    """The result of a search in a piece of audio: words with their places, and measures of each."""

    transcript: Transcript
    places: Sequence[FoundWord]  # where each of them was found; empty, if there is too little sound for all of them
    measures: Float64 | None  # (words, M) the measures of each, see `measured`; None where the model does not say


Believing = Literal["said", "all"]
"""The words of a search to keep: `said`, those that evidence supports, or all, as in `roundelay decode`. Both get true
confidences (speech/decode/evidence.py)."""


Recording = tuple[str, Sequence[Float32]]
"""A recording: its name, and pieces of one speaker's speech, samples (N,) each."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A packed model as a recogniser, from samples to words. Not for several threads at once; `recognise_many` uses
    processes."""

    folder: Path  # that it was loaded from
    packed: PackedModel  # the content of its packed.json
    hearings: tuple[Hearing, ...]  # its networks
    graph: Graph
    card: Mapping[str, Any]  # corpus, runs, word errors and licence, as card.json has them
    evidence: Evidence | None = None  # on words that were said; None where an earlier version packed it
    adapting: Adapting | None = None  # the estimation of the transforms of speakers that networks hear, if any do

    def __repr__(self) -> str:
        corpus, words = self.card.get("corpus", {}), self.card.get("vocabulary", {}).get("words", 0)
        networks = " and ".join(str(run["network"]) for run in self.card.get("runs", ())) or "a network"
        rates = [f"{split} {one['wer']:.2f} % words wrong" for split, one in self.card.get("word_errors", {}).items()]
        return (
            f"<model {self.folder}: {words:,} words, audio at {self.sample_rate:,} Hz\n"
            f" {networks}, trained on {corpus.get('name', 'speech')}, {corpus.get('hours', 0.0):.3g} hours\n"
            f" {', '.join(rates) or 'no word errors counted'}>"
        )

    def transcribe(self, recording: Path | str) -> "Finished":
        """Recognise one recording of any kind and length; `text` of the result has its words.

        `roundelay.transcribe` takes several recordings, and options.

        Raises:
            UserError: the file is missing, or has no usable audio.
        """
        found = roundelay.transcribe(self, recording)
        if len(found) != 1:
            raise UserError(f"{recording}: {len(found)} recordings; `roundelay.transcribe` takes several.")
        if found[0].problem:
            raise UserError(found[0].problem)
        return found[0]

    @property
    def sample_rate(self) -> int:
        """Sampling rate in Hz of the samples that the model takes."""
        return self.packed.sampling_rate

    @property
    def frame_seconds(self) -> float:
        """Seconds from one frame of features to the next."""
        config = self.hearings[0].features.frames
        return config.frame_shift(self.sample_rate) / self.sample_rate

    @property
    def usual(self) -> Statistics:
        """Statistics of the average training speaker, for use while nothing is known of the speaker."""
        return self.statistics([])

    @property
    def caveats(self) -> list[str]:
        """Sentences on the model's differences from models of this version."""
        if self.evidence is not None:
            return []
        return [
            "the model was packed by a version that did not learn to tell words from noise, and noise that comes and "
            "goes may become words. Pack its run again"
        ]

    @cached_property
    def digest(self) -> str:
        """Checksum of packed.json, and so of everything in the folder: equal for equal models only."""
        return file_checksum(self.folder / PACKED)

    @cached_property
    def lexicon(self) -> Lexicon:
        """The words that can be recognised."""
        return read_lexicon(self.folder / LEXICON_FILE, self.columns.phones[0])

    @cached_property
    def _near(self) -> NearWords:
        return NearWords(self.lexicon)

    def in_vocabulary(self, words: Iterable[str]) -> tuple[list[str], list[str]]:
        """Divide words into those that the model can recognise, in its own spelling, each once, and the others. Case,
        and punctuation at the ends, do not matter."""
        found = {word: self._near.get(word) for word in words}
        known = dict.fromkeys(word for word in found.values() if word is not None)
        return [*known], [word for word, near in found.items() if near is None]

    @cached_property
    def columns(self) -> Columns:
        """The columns of the model's scores."""
        return packed_columns(self.folder, self.packed, self.hearings[0].model.units)

    @cached_property
    def _quiet(self) -> list[int]:
        """Columns without speech: the blank, or those of silence."""
        if isinstance(self.columns, TiedStates):
            return [*{*self.columns.tying.table[:, SILENCE].ravel().tolist()} - {-1}]
        units, silence = self.hearings[0].model.units, self.columns.phones[0]
        assert units is not None
        return [n for n, name in enumerate(units.columns) if name in (BLANK, silence, silence + FURTHER)]

    @property
    def gives_times(self) -> bool:
        """True if the model gives times of words; models of units and a blank do not."""
        return self.hearings[0].model.units is None

    @cached_property
    def pronouncing(self) -> Pronouncing | None:
        """Everything needed to time words; None if the model gives no times."""
        if not isinstance(self.columns, TiedStates):
            return None
        tying, probability = self.columns.tying, self.packed.search.silence_probability
        known = self.lexicon.pronunciations.keys() | {BACKOFF, BEGIN, END}
        if missing := [word for word in self.graph.words[1:] if word not in known]:
            raise UserError(f"{self.folder / LEXICON_FILE}: lacks {missing[0]!r}, which the graph has. {REMEDY}")
        if tying.num_pdfs != (columns := self.graph.num_pdfs):
            raise UserError(
                f"{self.folder / TREE}: has {tying.num_pdfs} tied states, and the graph {columns} columns. {REMEDY}"
            )
        return Pronouncing(self.lexicon.in_phones(tying.phones), tying, probability, self.frame_seconds)

    @cached_property
    def _decoder(self) -> Decoders:
        rescorer = None
        if self.packed.rescored:
            rescorer = rescorer_of(self.folder, load_language_model(self.folder / RESCORE))
        return decoder_here(self.graph, self.pronouncing, rescorer)

    # One step after the other ---------------------------------------------------------------------------------------

    def features(self, samples: Float32) -> PieceFeatures:
        """Return the features of samples (N,), as `roundelay prepare` computes them wherever there is any sound
        (`Hearing.with_rooms`).

        Raises:
            UserError: the samples are not float32 of one channel, or have NaN or infinity.
        """
        samples = checked(samples)
        found: list[Float32] = []
        for number, hearing in enumerate(self.hearings):
            same = [i for i in range(number) if self.hearings[i].features == hearing.features]
            found.append(found[same[0]] if same else hearing.filterbanks(samples, self.sample_rate))
        return PieceFeatures(tuple(found))

    def statistics(
        self, pieces: Sequence[PieceFeatures], *, exact: bool = False, like: Statistics | None = None
    ) -> Statistics:
        """Return the statistics of the one speaker of all `pieces`.

        From five seconds of speech on they are those that `roundelay prepare` keeps; deviations from 20 s on, if
        training speakers were many. With less speech they are completed by those of an expected speaker (spread.py), or
        of the average training speaker, unless `exact`. If the recording lacks bands, as by telephone, the statistics
        have the map to fill them in (upper.py).

        Args:
            like: earlier statistics of the speaker, whose transform is kept; None: one is estimated from `pieces`.
        """
        found = [
            hearing.statistics([piece.of_network[number] for piece in pieces], exact)
            for number, hearing in enumerate(self.hearings)
        ]
        speaker = self._speaker(pieces, found, exact, like)
        return Statistics(
            tuple(one.beside_transforms(own) for one, (own, _) in zip(self.hearings, found, strict=True)),
            tuple(told for _, told in found),
            tuple(
                None if speaker is None or one.computed.all() else Placed(speaker, one.bands, one.computed)
                for one in self.hearings
            ),
        )

    def _speaker(
        self,
        pieces: Sequence[PieceFeatures],
        found: Sequence[tuple[tuple[Float32, Float32], Told | None]],
        exact: bool,
        like: Statistics | None,
    ) -> SpeakerFrames | None:
        """Return the transformed frames of the speaker of `pieces`, from his or her statistics `found`; None if no
        network hears any."""
        if self.adapting is None:
            return None
        number = next(n for n, hearing in enumerate(self.hearings) if not hearing.computed.all())
        if like is not None and (kept := like.transforms[number]) is not None and kept.speaker.estimated:
            return kept.speaker
        hearing, ((mean, _), told) = self.hearings[number], found[number]
        own = [piece.of_network[number] for piece in pieces]
        own = [one[hearing.between_silences(one)] for one in own]
        heard = [(one if told is None else told.heard(one))[:, hearing.bands] for one in own]
        return self.adapting.speaker(heard, mean[hearing.bands], exact=exact, transform=like is None)

    def scores(self, features: PieceFeatures, statistics: Statistics) -> Float32:
        """Return (T, S) log-likelihoods, unscaled: the weighted mean of the networks' own. Networks do not hear frames
        before the first with sound and after the last, which are silence."""
        total: Float32 | None = None
        every = self.hearings[0].model.module.subsampling
        sound = self.hearings[0].between_silences(features.of_network[0])
        sound = slice(sound.start // every * every, sound.stop)
        for hearing, matrix, known in zip(
            self.hearings, statistics.heard(features).of_network, statistics.of_network, strict=True
        ):
            part = hearing.scores(matrix[sound], known, self.sample_rate)
            if len(self.hearings) > 1:
                part *= hearing.weight
            total = part if total is None else total + part
        assert total is not None
        rows, before = -(-len(features) // every), sound.start // every
        if len(total) == rows:
            return total
        found = np.zeros((rows, total.shape[1]), np.float32)
        found[before : before + len(total)] = total
        outside = np.ones(rows, bool)
        outside[before : before + len(total)] = False
        self.silence(found, outside)
        return found

    def silence(self, scores: Float32, where: Bools) -> None:
        """Make some of log-likelihoods (T, S) those of silence."""
        if where.any():
            of_silence = np.full(scores.shape[1], _NOT_SAID, np.float32)
            of_silence[self._quiet] = 0.0
            scores[where] = of_silence

    def words(self, scores: Float32, *, times: bool = True) -> Transcript:
        """Return the words that the search finds in log-likelihoods (T, S), even if there is no speech."""
        return self._searched(scores, times, WORDS_ALONE)[0] if len(scores) else Transcript()

    def _searched(self, scores: Float32, times: bool, asked: Wishes) -> tuple[Transcript, Sequence[int]]:
        """Search log-likelihoods (T, S); return the words, with all strings from which alternatives are made, and the
        column of each frame on their path, if there is a single path."""
        times = times and self.gives_times
        batch = self._decoder.search([(_ONLY, self.columns.searched(scores))], self.packed.search.search(times, asked))
        found = batch.hypotheses[_ONLY]
        timed = batch.details[_ONLY].timed if times else ()
        strings = ranked(batch.details[_ONLY].nbest, found) if asked.strings else ()
        return Transcript(found.words, timed, found.reached_final, Alternatives(strings)), found.pdfs

    def examined(
        self, features: PieceFeatures, statistics: Statistics, *, times: bool = True, asked: Wishes = WORDS_ALONE
    ) -> Examined:
        """Search a piece; return the words found, and the measures of each."""
        scores = self.scores(features, statistics)
        transcript, path = self._searched(scores, times, asked)
        places = self._places(transcript.words, path, scores) if transcript.words else ()
        return Examined(transcript, places, self._measures(places, scores, features) if places else None)

    def _places(self, words: Sequence[str], path: Sequence[int], scores: Float32) -> Sequence[FoundWord]:
        """Find the place of each word; return none if there is too little sound for all of them."""
        if self.pronouncing is not None:
            how, scaled = self.pronouncing, np.float32(self.packed.search.scale) * scores
            found = aligned_words(words, scaled, how.lexicon, how.tying, how.silence_probability)
            return [FoundWord(np.arange(one.first, one.end), one.pdfs, one.phones) for one in found or ()]
        rows = np.flatnonzero(~np.isin(path, self._quiet))
        return [FoundWord(rows, np.asarray(path)[rows])] * len(words) if len(rows) else ()

    def _measures(self, words: Sequence[FoundWord], scores: Float32, features: PieceFeatures) -> Float64 | None:
        """Return the measures (words, M) of words, from `measured`; None if the model has no evidence to use them."""
        if (evidence := self.evidence) is None:
            return None
        heard, every = self.hearings[0], self.hearings[0].model.module.subsampling
        posteriors = scores + np.sum([one.weight * one.model.prior for one in self.hearings], axis=0, dtype=np.float32)
        posteriors -= posteriors.max(1, keepdims=True)
        posteriors -= np.log(np.exp(posteriors).sum(1, keepdims=True))
        frames = cepstra(heard.telephone(features.of_network[0], self.sample_rate), evidence.room)
        likeness = evidence.likenesses(frames)
        by_row = likeness[np.minimum(every * np.arange(len(scores)), len(likeness) - 1)]
        return measured(words, posteriors, by_row, self.frame_seconds * every)

    # All at once ----------------------------------------------------------------------------------------------------

    def recognise(self, samples: Float32, *, times: bool = True, asked: Wishes = WORDS_ALONE) -> Transcript:
        """Return the words of one speaker's samples (N,), float32 between -1 and 1 at `sample_rate`; none if they are
        shorter than a frame.

        Raises:
            UserError: the samples are of another kind.
        """
        return self.recognise_pieces([samples], times=times, asked=asked)[0]

    def recognise_pieces(
        self, pieces: Sequence[Float32], *, times: bool = True, exact: bool = False, asked: Wishes = WORDS_ALONE
    ) -> list[Transcript]:
        """Return the words of pieces by one speaker, whose features are normalised together (see `statistics`)."""
        features = [self.features(piece) for piece in pieces]
        known = self.statistics(features, exact=exact)
        return [self.of_features(one, known, times=times, asked=asked) for one in features]

    def of_features(
        self,
        features: PieceFeatures,
        statistics: Statistics,
        *,
        times: bool = True,
        believing: Believing = "said",
        asked: Wishes = WORDS_ALONE,
    ) -> Transcript:
        """Return the words of a piece, from its features and its speaker's statistics."""
        if not len(features):
            return Transcript()
        if believing == "all" and (self.evidence is None or not (times and self.gives_times)):
            said = self._searched(self.scores(features, statistics), times, asked)[0]
            found = _with_alternatives(said, said.alternatives.strings, asked.strings)
        else:
            found = self._believed(self.examined(features, statistics, times=times, asked=asked), believing, asked)
        return replace(found, adapted=not statistics.unadapted)

    def _believed(self, found: Examined, believing: Believing, asked: Wishes) -> Transcript:
        words, timed, evidence = found.transcript.words, found.transcript.timed, self.evidence
        longest = {} if evidence is None else evidence.longest
        seconds = self.frame_seconds * self.hearings[0].model.module.subsampling
        kept = [*range(len(words))]
        if believing == "said":
            kept = [n for n, place in enumerate(found.places) if not too_long(place, longest, seconds)]
        if evidence is not None and found.measures is not None:
            if believing == "said":
                believed = evidence.believed(found.measures)
                kept = [n for n in kept if believed[n]]
            timed = evidence.made_true(timed, found.measures)
        said = replace(
            found.transcript, words=tuple(words[n] for n in kept), timed=tuple(timed[n] for n in kept if timed)
        )
        strings = keeping(found.transcript.alternatives.strings, [n in kept for n in range(len(words))])
        return _with_alternatives(said, strings, asked.strings)

    def recognise_many(
        self,
        recordings: Iterable[Recording],
        workers: int = 0,
        progress: Progress | None = None,
        *,
        times: bool = True,
        exact: bool = False,
        asked: Wishes = WORDS_ALONE,
    ) -> Iterator[tuple[str, list[Transcript]]]:
        """Recognise many recordings; yield the name of each, in the order given, and a transcript for each piece.

        Args:
            recordings: the recordings; a generator is read only as fast as workers recognise.
            workers: number of processes, each of which loads the model; 0: one a core; 1: only this process.
            progress: advanced by every piece.
            times: True for times and confidences of words, which take as long again as the search.
            exact: see `statistics`.
            asked: alternatives, and words to favour.

        Raises:
            UserError: samples that cannot be heard (names the recording); a worker was killed.
        """
        heard = ((name, *self._known(name, pieces, exact)) for name, pieces in recordings)
        yield from self.recognise_features(heard, workers, progress, times=times, asked=asked)

    def recognise_features(
        self,
        recordings: Iterable[tuple[str, Sequence[PieceFeatures], Statistics]],
        workers: int = 0,
        progress: Progress | None = None,
        *,
        times: bool = True,
        believing: Believing = "said",
        asked: Wishes = WORDS_ALONE,
    ) -> Iterator[tuple[str, list[Transcript]]]:
        """Recognise recordings with known features and speakers' statistics; yield results as `recognise_many` does."""
        progress = progress or Silent()
        workers = workers or cores()
        waiting: deque[tuple[str, int]] = deque()  # names, and pieces of each, that are still to come
        done: list[Transcript] = []
        with nullcontext(Here(self)) if workers == 1 else start_workers(workers, load_model, self.folder) as running:
            for some in running.in_order(_work, _jobs(recordings, waiting, _How(times, asked, believing))):
                done += some
                progress.advance(len(some))
                yield from _whole(waiting, done)
        yield from _whole(waiting, done)

    def _known(self, name: str, pieces: Sequence[Float32], exact: bool) -> tuple[list[PieceFeatures], Statistics]:
        try:
            features = [self.features(piece) for piece in pieces]
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        return features, self.statistics(features, exact=exact)


def load_model(folder: Path | str) -> Model:
    """Load the packed model in a folder, or the package's model of that name.

    Raises:
        UserError: `folder` is no packed model, or one of a later version, or a file of it is missing or damaged (names
            it).
    """
    folder = model_folder(folder)
    packed = read_packed(folder)
    try:
        hearings = tuple(Hearing.of(one, load_network(folder / one.folder)) for one in packed.networks)
        model = Model(folder, packed, hearings, load_graph(folder), read_json(folder / CARD), read_evidence(folder))
        if packed.adaptation is not None:
            if not isinstance(model.columns, TiedStates) or all(one.computed.all() for one in hearings):
                raise UserError(f"{PACKED}: transforms of speakers are for networks of tied states that hear them.")
            model = replace(model, adapting=Adapting.of(folder, packed.adaptation, model.graph, model.columns.tying))
        _check(model)
    except UserError as error:
        raise UserError(f"{folder}: {error} {REMEDY}") from None
    return model


def _check(model: Model) -> None:
    """Check that the parts of a model belong together: each may be whole, but of another model.

    Raises:
        UserError: parts do not fit, or a word has characters that a terminal would obey.
    """
    for number, word in enumerate(model.graph.words, 1):
        if not word.isprintable() and any(_acts(character) for character in word):
            raise UserError(f"{WORDS_FILE}:{number}: {word!r} has control characters.")
    columns = model.graph.num_pdfs
    for hearing, network in zip(model.hearings, model.packed.networks, strict=True):
        if hearing.model.prior.shape != (columns,) or np.isnan(hearing.model.prior).any():
            raise UserError(f"{network.folder}: its prior is not {columns} numbers, one for each column of the graph.")
        width, transformed = int(hearing.computed.sum()), int((~hearing.computed).sum())
        if not width or transformed not in (0, 0 if model.adapting is None else model.adapting.dimension):
            raise UserError(f"{network.folder}: the network hears transforms of speakers, and {PACKED} has others.")
        if not len(hearing.usual[0]) == len(hearing.usual[1]) == width:
            raise UserError(f"{network.folder}: the network has {width} features, and {PACKED} the means of others.")
    if not isinstance(model.card, dict):
        raise UserError(f"{CARD}: not an object of JSON.")


def _acts(character: str) -> bool:
    """Return True for control characters, and for those that change the direction of writing."""
    return unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in _TURNS


@dataclass(frozen=True)
class _How:
    times: bool
    asked: Wishes
    believing: Believing


_Job = tuple[list[PieceFeatures], Statistics, _How]


def _with_alternatives(found: Transcript, strings: Sequence[StringAlternative], most: int) -> Transcript:
    """Return a transcript with at most `most` alternative strings, and alternative words for each place; unchanged if
    none were asked for."""
    if not most:
        return found
    sure = [word.confidence for word in found.timed] or [None] * len(found.words)
    return replace(found, alternatives=Alternatives(tuple(strings[:most]), in_place(strings, sure, most)))


def _work(model: Model, job: _Job) -> list[Transcript]:
    features, known, how = job
    return [
        model.of_features(one, known, times=how.times, believing=how.believing, asked=how.asked) for one in features
    ]


def _whole(waiting: deque[tuple[str, int]], done: list[Transcript]) -> Iterator[tuple[str, list[Transcript]]]:
    """Yield recordings all of whose pieces are done, and remove them from `waiting` and `done`."""
    while waiting and waiting[0][1] <= len(done):
        name, count = waiting.popleft()
        found, done[:count] = done[:count], []
        yield name, found


def _jobs(
    recordings: Iterable[tuple[str, Sequence[PieceFeatures], Statistics]],
    waiting: deque[tuple[str, int]],
    how: _How,
) -> Iterator[_Job]:
    """Yield the pieces of all recordings in batches; append the name and number of pieces of each recording to
    `waiting`."""
    for name, features, known in recordings:
        waiting.append((name, len(features)))
        for job in batched(features, _JOB_FRAMES, len):
            yield job, known, how


def packed_columns(folder: Path, packed: PackedModel, units: UnitSet | None) -> Columns:
    """Return the columns of a packed model's scores.

    Args:
        units: units of the networks; None: columns are tied states, from the folder.
    """
    if units is None:
        return TiedStates(DecisionTree.from_json(read_json(folder / TREE)).tying())
    if units.hmm is not None:
        return StatesOfPhones(units)
    return UnitsAndBlank(units.columns, BLANK, packed.silence, pieces=units, blank_cost=packed.search.blank_cost)
