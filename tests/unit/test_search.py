"""Many utterances at once, and the acoustic scale."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.streams import stream
from roundelay.speech.decode.confidence import Pronouncing
from roundelay.speech.decode.estimate import estimate
from roundelay.speech.decode.graph import Graph, build_graph, save_graph
from roundelay.speech.decode.parallel import Decoders, Search, decode_all, decoders
from roundelay.speech.decode.search import Float32, Hypothesis, decode
from roundelay.speech.decode.tuning import choose_scale, choose_word_cost
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(LEXICON, estimate(sentences(stream(0, "text"), 50), LEXICON.words), tying(3))


@pytest.fixture(scope="module")
def speech() -> tuple[dict[str, Float32], dict[str, list[str]]]:
    rng, tied = stream(1, "speech"), tying(3)
    refs = {f"u{i}": words for i, words in enumerate(sentences(rng, 8))}
    loglikes = {
        u: loglikes_of([pdf for *_, pdf in frames_of(phones_of(words), tied, rng)], tied.num_pdfs, rng, 2.0)
        for u, words in refs.items()
    }
    return loglikes, refs


def test_workers_change_nothing(
    graph: Graph, speech: tuple[dict[str, Float32], dict[str, list[str]]], tmp_path: Path
) -> None:
    loglikes, _ = speech
    save_graph(graph, tmp_path)
    one = decode_all(tmp_path, loglikes.items(), 0.5, workers=1)
    two = decode_all(tmp_path, loglikes.items(), 0.5, workers=2)
    assert list(one) == list(two) == list(loglikes)
    assert one == two
    assert one["u3"] == decode(graph, np.float32(0.5) * loglikes["u3"])


def test_bad_log_likelihoods_name_the_utterance(graph: Graph, tmp_path: Path) -> None:
    save_graph(graph, tmp_path)
    bad = np.zeros((5, graph.num_pdfs), np.float32)
    bad[3, 2] = np.nan
    for loglikes, message in [(bad, "NaN"), (bad[:0], "shape"), (bad[:, 1:], "shape")]:
        with pytest.raises(UserError, match=f"broken-1: .*{message}"):
            decode_all(tmp_path, [("broken-1", loglikes)], 0.1, workers=1)
    with pytest.raises(UserError, match=r"scale 0\.0 is not above 0"):
        decode_all(tmp_path, [], 0.0, workers=1)


def test_too_few_frames_for_any_sentence_end_without_a_final_state(graph: Graph) -> None:
    found = decode(graph, np.zeros((2, graph.num_pdfs), np.float32))
    assert not found.reached_final


class Scripted(Decoders):
    """Makes a given number of errors at each scale, whatever it is asked to decode."""

    def __init__(self, errors: dict[float, int]) -> None:
        super().__init__(None, None)
        self.errors = errors

    def __call__(
        self,
        loglikes: Iterable[tuple[str, Float32]],
        scale: float,
        beam: float = 0.0,
        max_active: int = 0,
        progress: Progress | None = None,
        word_cost: float | None = None,
    ) -> dict[str, Hypothesis]:
        wrong = self.errors[scale if word_cost is None else word_cost]
        words = ("X",) * wrong + ("A",) * (9 - wrong)
        return {"u": Hypothesis(words, 0.0, 0.0, 0.0, True)}


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
    choice = choose_scale(Scripted(errors), {"u": np.zeros((1, 1), np.float32)}, {"u": ["A"] * 9}, (0.1, 0.2, 0.3))
    assert choice.scale == chosen
    assert {scale: counts.total for scale, counts in choice.tried.items()} == errors
    assert list(choice.tried) == sorted(errors)


@pytest.mark.parametrize(
    ("errors", "chosen"), [({0.0: 4, 0.5: 3, 1.0: 5}, 0.5), ({0.0: 4, 0.5: 4, 1.0: 4}, 0.5), ({-1.0: 2, 0.0: 3}, -1.0)]
)
def test_word_cost_with_fewest_errors(errors: dict[float, int], chosen: float) -> None:
    choice = choose_word_cost(Scripted(errors), {"u": np.zeros((1, 1), np.float32)}, {"u": ["A"] * 9}, [*errors], 0.1)
    assert choice.word_cost == chosen
    assert {cost: counts.total for cost, counts in choice.tried.items()} == errors


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


def test_details_do_not_depend_on_workers(
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
    with decoders(tmp_path, 1) as run:
        assert run(loglikes.items(), 0.5) == plain


def test_scale_on_toy_speech(
    graph: Graph, speech: tuple[dict[str, Float32], dict[str, list[str]]], tmp_path: Path
) -> None:
    loglikes, refs = speech
    save_graph(graph, tmp_path)
    with decoders(tmp_path, workers=1) as run:
        choice = choose_scale(run, loglikes, refs, (0.3, 1.0))
        assert choice.hypotheses == run(loglikes.items(), choice.scale)
    assert choice.tried[choice.scale].total == min(e.total for e in choice.tried.values())
    with pytest.raises(UserError, match="must be positive"):
        choose_scale(run, loglikes, refs, (0.0, 1.0))
