"""Many utterances at once, and the settings of the search."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, Silent
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.data.processes import Here
from roundelay_speech.decode.confidence import Pronouncing
from roundelay_speech.decode.graphs.graph import Graph, save_graph
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.parallel import Batch, Decoders, Search, decoders
from roundelay_speech.decode.search import BEAM, MAX_ACTIVE, Hypothesis, decode
from roundelay_speech.decode.tuning import Tuning
from roundelay_speech.ngrams.estimate import estimate
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(LEXICON, estimate(sentences(stream(0, "text"), 50), LEXICON.words), tying(3))


def decode_all(
    folder: Path,
    loglikes: Iterable[tuple[str, Float32]],
    scale: float,
    *,
    beam: float = BEAM,
    max_active: int = MAX_ACTIVE,
    workers: int = 0,
) -> dict[str, Hypothesis]:
    with decoders(folder, workers) as run:
        return run(loglikes, scale, beam, max_active, Silent())


@pytest.fixture(scope="module")
def speech() -> tuple[dict[str, Float32], dict[str, list[str]]]:
    rng, tied = stream(1, "speech"), tying(3)
    refs = {f"u{i}": words for i, words in enumerate(sentences(rng, 8))}
    loglikes = {
        u: loglikes_of([pdf for *_, pdf in frames_of(phones_of(words), tied, rng)], tied.num_pdfs, rng, 2.0)
        for u, words in refs.items()
    }
    return loglikes, refs


def test_bad_log_likelihoods_name_the_utterance(graph: Graph, tmp_path: Path) -> None:
    save_graph(graph, tmp_path)
    bad = np.zeros((5, graph.num_pdfs), np.float32)
    bad[3, 2] = np.nan
    for loglikes, message in [(bad, "NaN"), (bad[:0], "shape"), (bad[:, 1:], "shape")]:
        with pytest.raises(UserError, match=f"broken-1: .*{message}"):
            decode_all(tmp_path, [("broken-1", loglikes)], 0.1, workers=1)
    with pytest.raises(UserError, match=r"scale 0\.0 is not above 0"):
        decode_all(tmp_path, [], 0.0, workers=1)
    with pytest.raises(UserError, match=r"beam 0\.0 is not above 0"):
        decode_all(tmp_path, [], 0.1, beam=0.0, workers=1)
    with pytest.raises(UserError, match="max_active 20 is not above 20"):
        decode_all(tmp_path, [], 0.1, max_active=20, workers=1)


def test_too_few_frames_for_any_sentence_end_without_a_final_state(graph: Graph) -> None:
    found = decode(graph, np.zeros((2, graph.num_pdfs), np.float32))
    assert not found.reached_final


SPEECH = {"u": np.zeros((100, 1), np.float32)}
REFS = {"u": ["A"] * 100}


class Scripted(Decoders):
    """Makes the errors that a rule gives for the settings, whatever it is asked to decode."""

    def __init__(self, errors: Callable[[Search], int]) -> None:
        super().__init__(Here())
        self.errors, self.asked = errors, list[Search]()

    def search(
        self, loglikes: Iterable[tuple[str, Float32]], options: Search, progress: Progress | None = None
    ) -> Batch:
        self.asked.append(options)
        if progress is not None:
            progress.advance()
        wrong = self.errors(options)
        words = ("X",) * wrong + ("A",) * (100 - wrong)
        return Batch({"u": Hypothesis(words, 0.0, 0.0, 0.0, True)}, search_seconds=0.25)


class Bars(Silent):
    """Progress that ends where it was said to."""

    left = 0

    def start(self, what: str, total: int | None = None) -> None:
        assert self.left == 0
        self.left = total or 0

    def advance(self, n: int = 1, note: str = "") -> None:
        self.left -= n


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ({0.1: 5, 0.2: 3, 0.3: 4}, 0.2),
        ({0.1: 3, 0.2: 3, 0.3: 3, 0.071: 5, 0.42: 5}, 0.2),  # a plateau to both edges: beyond them, then the middle
        ({0.1: 5, 0.2: 3, 0.3: 3, 0.42: 4}, 0.3),  # of two middle ones the larger
        ({0.1: 5, 0.2: 4, 0.3: 3, 0.42: 2, 0.59: 2, 0.83: 3}, 0.59),  # twice beyond the upper edge
        ({0.1: 4, 0.2: 5, 0.3: 6, 0.071: 3, 0.051: 4}, 0.071),  # beyond the lower edge
    ],
)
def test_scale_with_fewest_errors(errors: dict[float, int], chosen: float) -> None:
    bars = Bars()
    tuning = Tuning(Scripted(lambda search: errors[search.scale]), SPEECH, REFS, 0.01, progress=bars)
    assert tuning.choose_scale(Search(1.0, 8.0, 50), (0.1, 0.2, 0.3)) == Search(chosen, 8.0, 50)
    assert bars.left == 0
    assert {search.scale: it.errors.total for search, it in tuning.tried.items()} == errors
    assert all(it.real_time_factor == 0.25 for it in tuning.tried.values())


@pytest.mark.parametrize(
    ("errors", "chosen"), [({0.0: 4, 0.5: 3, 1.0: 5}, 0.5), ({0.0: 4, 0.5: 4, 1.0: 4}, 0.5), ({-1.0: 2, 0.0: 3}, -1.0)]
)
def test_word_cost_with_fewest_errors(errors: dict[float, int], chosen: float) -> None:
    tuning = Tuning(Scripted(lambda search: errors[search.word_cost or 0.0]), SPEECH, REFS, 0.01)
    assert tuning.choose_word_cost(Search(0.1), [*errors]).word_cost == chosen
    assert {search.word_cost: it.errors.total for search, it in tuning.tried.items()} == errors


WIDTHS = {
    (8.0, 900): 60,
    (9.0, 900): 51,
    (10.0, 900): 50,
    (11.0, 900): 50,
    (9.0, 100): 53,
    (9.0, 300): 51,
    (10.0, 100): 52,
    (10.0, 300): 50,
    (8.0, 100): 61,
    (8.0, 300): 60,
}


@pytest.mark.parametrize(
    ("slack", "chosen"),
    [(0.0, (10.0, 300)), (0.019, (10.0, 300)), (0.02, (9.0, 300)), (0.06, (9.0, 100)), (0.22, (8.0, 100))],
)
def test_narrowest_search_within_the_slack(slack: float, chosen: tuple[float, int]) -> None:
    run = Scripted(lambda search: WIDTHS[search.beam, search.max_active])
    tuning = Tuning(run, SPEECH, REFS, 0.01)
    found = tuning.choose_width(Search(0.1, word_cost=0.5), [10.0, 8.0, 9.0, 11.0], [900, 100, 300], slack)
    assert found == Search(0.1, *chosen, word_cost=0.5)
    assert len(run.asked) == 6  # the beams with the most paths, then fewer paths with the one beam


def test_nothing_is_decoded_twice() -> None:
    run = Scripted(lambda search: 3)
    tuning = Tuning(run, SPEECH, REFS, 0.01)
    search = tuning.choose_scale(Search(1.0, 8.0, 50, 0.5), (0.1, 0.2))
    search = tuning.choose_word_cost(search, [0.0, 0.5])
    tuning.choose_width(search, [8.0, 9.0], [50], 0.0)
    assert len(run.asked) == len(set(run.asked)) == len(tuning.tried)
    tuning.choose_width(search, [8.0, 9.0], [50], 0.0)
    assert len(run.asked) == len(tuning.tried)


def test_grids_that_cannot_be_tried() -> None:
    tuning = Tuning(Scripted(lambda search: 3), SPEECH, REFS, 0.01)
    for scales in ((), (0.0, 1.0), (-0.1,)):
        with pytest.raises(UserError, match="must be positive"):
            tuning.choose_scale(Search(1.0), scales)
    for beams, paths in (((), (50,)), ((8.0,), ())):
        with pytest.raises(UserError, match="may be empty"):
            tuning.choose_width(Search(0.1), beams, paths, 0.0)
    with pytest.raises(UserError, match=r"decode\.search_slack -0\.1"):
        tuning.choose_width(Search(0.1), (8.0,), (50,), -0.1)


def test_word_cost_is_changed_and_changed_back(
    graph: Graph, speech: tuple[dict[str, Float32], dict[str, list[str]]], tmp_path: Path
) -> None:
    loglikes, _ = speech
    save_graph(graph, tmp_path)
    with decoders(tmp_path, workers=1) as run:
        before = run(loglikes.items(), 0.3)
        dear = run(loglikes.items(), 0.3, word_cost=20.0)
        again = run(loglikes.items(), 0.3, word_cost=0.0)
    assert sum(len(h.words) for h in dear.values()) < sum(len(h.words) for h in before.values())
    assert {u: h.words for u, h in again.items()} == {u: h.words for u, h in before.items()}


def test_workers_change_nothing(
    graph: Graph, speech: tuple[dict[str, Float32], dict[str, list[str]]], tmp_path: Path
) -> None:
    loglikes, _ = speech
    save_graph(graph, tmp_path)
    how = Pronouncing(LEXICON, tying(3), 0.5, 0.01)
    options = Search(0.5, nbest=4, lattice=True, times=True)
    batches = []
    for workers in (1, 2):
        with decoders(tmp_path, workers, how) as run:
            batches.append(run.search(loglikes.items(), options))
    assert batches[0].details == batches[1].details
    assert batches[0].hypotheses == batches[1].hypotheses
    for utterance, detail in batches[0].details.items():
        assert detail.nbest[0].words == batches[0].hypotheses[utterance].words
        assert [word.word for word in detail.timed] == [*detail.nbest[0].words]
        assert detail.lattice
    plain = batches[0].hypotheses
    assert decode_all(tmp_path, loglikes.items(), 0.5, workers=1) == plain
    assert list(plain) == list(batches[1].hypotheses) == list(loglikes)
    assert plain["u3"] == decode(graph, np.float32(0.5) * loglikes["u3"])


def test_tuning_on_toy_speech(
    graph: Graph, speech: tuple[dict[str, Float32], dict[str, list[str]]], tmp_path: Path
) -> None:
    loglikes, refs = speech
    save_graph(graph, tmp_path)
    with decoders(tmp_path, workers=1) as run:
        tuning = Tuning(run, loglikes, refs, 0.01)
        search = tuning.choose_scale(Search(1.0), (0.3, 1.0))
        fewest = min(it.errors.total for it in tuning.tried.values())
        assert tuning.tried[search].errors.total == fewest
        narrow = tuning.choose_width(search, (4.0, 8.0, 16.0), (21, 200, 7000), 0.0)
        widest = tuning.tried[replace(search, beam=16.0, max_active=7000)].errors.total
        assert tuning.tried[narrow].errors.total <= widest
        assert (narrow.beam, narrow.max_active) != (16.0, 7000)
