"""A packed model in memory: words of samples.

    model = load_model(Path("MODEL"))
    model.recognise(samples).text

Legend: N samples, T frames (rows of scores, of which a model with subsampling has fewer), S columns: tied states, or
units and a blank.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from roundelay.core.checksums import file_checksum
from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.files import read_json
from roundelay.core.progress import Progress, Silent
from roundelay.packed.columns import packed_columns
from roundelay.packed.folder import CARD, PACKED, REMEDY, RESCORE, PackedModel, read_packed
from roundelay.packed.hearing import Float32, Hearing, PieceFeatures, Statistics, checked
from roundelay.speech.data.processes import start_workers
from roundelay.speech.decode.confidence import Pronouncing
from roundelay.speech.decode.graphs.base import Columns
from roundelay.speech.decode.graphs.graph import Graph, load_graph
from roundelay.speech.decode.graphs.hmm import TiedStates
from roundelay.speech.decode.graphs.making import LEXICON_FILE
from roundelay.speech.decode.lm.given import load_model as load_language_model
from roundelay.speech.decode.parallel import Decoders, decoder_here
from roundelay.speech.decode.rescore import rescorer_of
from roundelay.speech.lexicon.lexicon import Lexicon, read_lexicon
from roundelay.speech.scoring.formats.ctm import TimedWord
from roundelay.speech.trained import load_model as load_network

_JOB_FRAMES = 3000  # handed to a worker at once
_ONLY = "speech"  # name of an utterance that has none


@final
@dataclass(frozen=True)
class Transcript:
    """Words of a piece of audio.

    Attributes:
        timed: the same words with times, in seconds from the beginning of the piece, and confidences from 0 to 1; empty
            where they were not asked for, or the model gives none.
        complete: whether they are a whole sentence of the grammar; if not, the piece ends inside one.
    """

    words: tuple[str, ...] = ()
    timed: tuple[TimedWord, ...] = ()
    complete: bool = True

    @property
    def text(self) -> str:
        """The words with blanks between them."""
        return " ".join(self.words)


Recording = tuple[str, Sequence[Float32]]
"""A name, and pieces of one speaker's speech: samples (N,) each."""


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A recogniser, from samples to words. Not for several threads at once; `recognise_many` takes processes.

    Attributes:
        folder: that it was loaded from.
        packed: what its packed.json says.
        hearings: its networks.
        card: corpus, runs, word errors and licence, as card.json has them.
    """

    folder: Path
    packed: PackedModel
    hearings: tuple[Hearing, ...]
    graph: Graph
    card: Mapping[str, Any]

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the samples that it hears, in Hz."""
        return self.packed.sampling_rate

    @property
    def frame_seconds(self) -> float:
        """Time from one frame of features to the next."""
        config = self.hearings[0].features.frames
        return config.frame_shift(self.sample_rate) / self.sample_rate

    @property
    def usual(self) -> Statistics:
        """Statistics of the average training speaker, before anything is known of who speaks."""
        return Statistics(tuple(hearing.usual for hearing in self.hearings))

    @cached_property
    def digest(self) -> str:
        """Checksum of packed.json, and so of everything in the folder: equal for equal models only."""
        return file_checksum(self.folder / PACKED)

    @cached_property
    def lexicon(self) -> Lexicon:
        """The words that can be recognised."""
        return read_lexicon(self.folder / LEXICON_FILE, self.columns.phones[0])

    @cached_property
    def columns(self) -> Columns:
        """The columns of its scores."""
        return packed_columns(self.folder, self.packed, self.hearings[0].model.units)

    @property
    def gives_times(self) -> bool:
        """True if it says when words begin and end; models of units and a blank do not."""
        return self.hearings[0].model.units is None

    @cached_property
    def pronouncing(self) -> Pronouncing | None:
        """Everything needed to find the times of words; None where the model gives none."""
        if not isinstance(self.columns, TiedStates):
            return None
        tying, probability = self.columns.tying, self.packed.search.silence_probability
        return Pronouncing(self.lexicon.in_phones(tying.phones), tying, probability, self.frame_seconds)

    @cached_property
    def _decoder(self) -> Decoders:
        rescorer = None
        if self.packed.rescored:
            rescorer = rescorer_of(self.folder, load_language_model(self.folder / RESCORE))
        return decoder_here(self.graph, self.pronouncing, rescorer)

    # One step after the other ---------------------------------------------------------------------------------------

    def features(self, samples: Float32) -> PieceFeatures:
        """Features of samples (N,), the same as `roundelay prepare` computes.

        Raises:
            UserError: not float32 of one channel, or NaN or infinity among them.
        """
        samples = checked(samples)
        found: list[Float32] = []
        for number, hearing in enumerate(self.hearings):
            same = [i for i in range(number) if self.hearings[i].features == hearing.features]
            found.append(found[same[0]] if same else hearing.filterbanks(samples, self.sample_rate))
        return PieceFeatures(tuple(found))

    def statistics(self, pieces: Sequence[PieceFeatures], *, exact: bool = False) -> Statistics:
        """Statistics of the one speaker of all these pieces.

        From five seconds of speech on they are those that `roundelay prepare` keeps. Of less, what is missing is made
        up by the average training speaker, unless they are to be `exact`.
        """
        return Statistics(
            tuple(
                hearing.statistics([piece.of_network[number] for piece in pieces], exact)
                for number, hearing in enumerate(self.hearings)
            )
        )

    def scores(self, features: PieceFeatures, statistics: Statistics) -> Float32:
        """(T, S) log-likelihoods, unscaled: the weighted mean of what the networks say."""
        total: Float32 | None = None
        for hearing, matrix, known in zip(self.hearings, features.of_network, statistics.of_network, strict=True):
            part = hearing.scores(matrix, known, self.sample_rate)
            if len(self.hearings) > 1:
                part *= hearing.weight
            total = part if total is None else total + part
        assert total is not None
        return total

    def words(self, scores: Float32, *, times: bool = True) -> Transcript:
        """The words of log-likelihoods (T, S)."""
        if not len(scores):
            return Transcript()
        times = times and self.gives_times
        batch = self._decoder.search([(_ONLY, self.columns.searched(scores))], self.packed.search.search(times))
        found = batch.hypotheses[_ONLY]
        timed = batch.details[_ONLY].timed if times else ()
        return Transcript(found.words, timed, found.reached_final)

    # All at once ----------------------------------------------------------------------------------------------------

    def recognise(self, samples: Float32, *, times: bool = True) -> Transcript:
        """The words of one speaker's samples (N,), float32 between -1 and 1 at `sample_rate`; none where they are
        shorter than a frame.

        Raises:
            UserError: not such samples.
        """
        return self.recognise_pieces([samples], times=times)[0]

    def recognise_pieces(
        self, pieces: Sequence[Float32], *, times: bool = True, exact: bool = False
    ) -> list[Transcript]:
        """The words of pieces that one speaker said: their features are normalised together (see `statistics`)."""
        features = [self.features(piece) for piece in pieces]
        known = self.statistics(features, exact=exact)
        return [self.of_features(one, known, times=times) for one in features]

    def of_features(self, features: PieceFeatures, statistics: Statistics, *, times: bool = True) -> Transcript:
        """The words of a piece."""
        return self.words(self.scores(features, statistics), times=times) if len(features) else Transcript()

    def recognise_many(
        self,
        recordings: Iterable[Recording],
        workers: int = 0,
        progress: Progress | None = None,
        *,
        times: bool = True,
        exact: bool = False,
    ) -> Iterator[tuple[str, list[Transcript]]]:
        """The words of many recordings, one after the other in the order given: name, and a transcript a piece.

        Args:
            recordings: may be a generator; it is read only as fast as the workers recognise.
            workers: processes, each of which loads the model; 0: one a core; 1: none but this one.
            progress: advanced by every piece.
            times: give words times and confidences, which takes as long as the search again.
            exact: see `statistics`.

        Raises:
            UserError: samples that cannot be heard (names the recording); a worker was killed.
        """
        heard = ((name, *self._known(name, pieces, exact)) for name, pieces in recordings)
        yield from self.recognise_features(heard, workers, progress, times=times)

    def recognise_features(
        self,
        recordings: Iterable[tuple[str, Sequence[PieceFeatures], Statistics]],
        workers: int = 0,
        progress: Progress | None = None,
        *,
        times: bool = True,
    ) -> Iterator[tuple[str, list[Transcript]]]:
        """`recognise_many` of recordings whose features, and those of their speakers, are known."""
        progress = progress or Silent()
        if (workers or cores()) == 1:
            for name, features, known in recordings:
                transcripts = []
                for one in features:
                    transcripts.append(self.of_features(one, known, times=times))
                    progress.advance()
                yield name, transcripts
            return
        waiting: deque[tuple[str, int]] = deque()  # names, and pieces of each, that are still to come
        done: list[Transcript] = []
        with start_workers(workers or cores(), _begin, self.folder) as running:
            for some in running.in_order(_work, _jobs(recordings, waiting, times)):
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
    """The packed model in a folder.

    Raises:
        UserError: not a packed model, one of a later version, or a file of it is missing or damaged (names it).
    """
    need("speech", "A packed model")
    folder = Path(folder)
    packed = read_packed(folder)
    try:
        hearings = tuple(Hearing.of(one, load_network(folder / one.folder)) for one in packed.networks)
        graph = load_graph(folder)
    except UserError as error:
        raise UserError(f"{folder}: {error} {REMEDY}") from None
    return Model(folder, packed, hearings, graph, read_json(folder / CARD))


_Job = tuple[list[PieceFeatures], Statistics, bool]
_HERE: dict[str, Model] = {}  # of a worker process


def _begin(folder: Path) -> None:
    _HERE["model"] = load_model(folder)


def _work(job: _Job) -> list[Transcript]:
    features, known, times = job
    return [_HERE["model"].of_features(one, known, times=times) for one in features]


def _whole(waiting: deque[tuple[str, int]], done: list[Transcript]) -> Iterator[tuple[str, list[Transcript]]]:
    """Recordings all of whose pieces are done; takes them off both."""
    while waiting and waiting[0][1] <= len(done):
        name, count = waiting.popleft()
        found, done[:count] = done[:count], []
        yield name, found


def _jobs(
    recordings: Iterable[tuple[str, Sequence[PieceFeatures], Statistics]],
    waiting: deque[tuple[str, int]],
    times: bool,
) -> Iterator[_Job]:
    """The pieces of all recordings, some at once; names of recordings and their numbers of pieces go to `waiting`."""
    for name, features, known in recordings:
        waiting.append((name, len(features)))
        job: list[PieceFeatures] = []
        for one in features:
            job.append(one)
            if sum(map(len, job)) >= _JOB_FRAMES:
                yield job, known, times
                job = []
        if job:
            yield job, known, times
