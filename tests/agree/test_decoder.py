"""The decoder and its graph agree with what needs neither: exact shortest paths, and costs added up by hand."""

import itertools
import math

import kaldifst
import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.graph import Graph, GraphConfig
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.search import decode
from roundelay_speech.hmm.topology import EDGE, SILENCE, STATES, Tying
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying

# kaldifst rounds weights to 2^-10 in minimisation; a sentence has some ten weights.
ROUNDING = 0.01
CONFIG = GraphConfig(silence_probability=0.4, word_cost=0.3)


@pytest.fixture(scope="module", params=[1, 2, 3], ids=["monophone", "biphone", "triphone"])
def language(request: pytest.FixtureRequest) -> tuple[Graph, Arpa, Tying]:
    model = estimate(sentences(stream(0, "text"), 200), LEXICON.words, Estimator(2 if request.param == 2 else 3))
    tied = tying(request.param)
    return build_graph(LEXICON, model, tied, CONFIG), model, tied


def utterances(tied: Tying, count: int, noise: float, words: int = 4) -> list[tuple[list[str], Float32]]:
    rng = stream(1, "utterances")
    result = []
    for sentence in [s for s in sentences(rng, 20 * count) if len(s) <= words][:count]:
        frames = frames_of(phones_of(sentence, rng), tied, rng)
        result.append((sentence, loglikes_of([pdf for _, _, pdf in frames], tied.num_pdfs, rng, noise)))
    return result


def test_clean_speech_is_recognised(language: tuple[Graph, Arpa, Tying]) -> None:
    """All words right but for homophones, which only the language model could tell apart."""
    graph, _, tied = language
    for sentence, loglikes in utterances(tied, 30, noise=0.5, words=6):
        found = decode(graph, loglikes)
        assert found.reached_final
        assert len(found.pdfs) == len(loglikes)
        said = [{LEXICON.pronunciations[w] for w in words} for words in zip(sentence, found.words, strict=True)]
        assert all(len(pair) == 1 or pair == SAME_SOUND for pair in said), (sentence, found.words)


SAME_SOUND = {LEXICON.pronunciations["TO"], LEXICON.pronunciations["TWO"]}


def test_cost_is_that_of_the_shortest_path(language: tuple[Graph, Arpa, Tying]) -> None:
    """Every path through (frames x pdfs as an acceptor) o HCLG, without any beam."""
    graph, _, tied = language
    for _, loglikes in utterances(tied, 6, noise=2.0):
        found = decode(graph, loglikes, beam=1000.0, max_active=100_000)
        arcs = (f"{t} {t + 1} {s + 1} {s + 1} {-loglikes[t, s]:.6f}" for t, s in np.ndindex(*loglikes.shape))
        dense = kaldifst.compile("\n".join([*arcs, f"{len(loglikes)}", ""]), acceptor=False)
        best = kaldifst.shortest_path(kaldifst.compose(dense, kaldifst.StdVectorFst(graph.fst)))
        assert found.cost == pytest.approx(kaldifst.get_linear_symbol_sequence(best)[3].value, abs=1e-3)


def test_cost_is_the_sum_made_by_hand(language: tuple[Graph, Arpa, Tying]) -> None:
    """Lexicon + language model + Viterbi over every choice of silences and pronunciations; no transducer anywhere."""
    graph, model, tied = language
    checked = 0
    for _, loglikes in utterances(tied, 12, noise=2.0, words=3):
        found = decode(graph, loglikes, beam=1000.0, max_active=100_000)
        if len(found.words) <= 4:
            assert found.cost == pytest.approx(cost_by_hand(found.words, loglikes, model, tied), abs=ROUNDING)
            checked += 1
    assert checked >= 6


def cost_by_hand(words: tuple[str, ...], loglikes: Float32, model: Arpa, tied: Tying) -> float:
    """The least cost of these words: language model, words, silences, and the best way through the states."""
    history = [BEGIN]
    language = CONFIG.word_cost * len(words)
    for word in [*words, END]:
        language -= math.log(10) * model.log10_probability(word, history)
        history.append(word)
    present, absent = -math.log(CONFIG.silence_probability), -math.log(1 - CONFIG.silence_probability)
    best = math.inf
    choices = itertools.product(*(LEXICON.pronunciations[w] for w in words))
    for spoken, silences in itertools.product(choices, list(itertools.product([0, 1], repeat=len(words) + 1))):
        phones = [SILENCE] * silences[0]
        for phone_names, silence in zip(spoken, silences[1:], strict=True):
            phones += [LEXICON.phone_ids[p] for p in phone_names] + [SILENCE] * silence
        cost = sum(present if silence else absent for silence in silences)
        best = min(best, cost + viterbi(phones, loglikes, tied))
    return language + best


def viterbi(phones: list[int], loglikes: Float32, tied: Tying) -> float:
    """The least acoustic cost of going through all states from left to right."""
    padded = [EDGE, *phones, EDGE]
    states = [tied.pdf(padded[i], p, padded[i + 2], s) for i, p in enumerate(phones) for s in range(STATES)]
    if len(states) > len(loglikes):
        return math.inf
    costs = np.full(len(states), np.inf)
    costs[0] = -loglikes[0, states[0]]
    for frame in loglikes[1:]:
        costs = np.minimum(costs, np.concatenate([[np.inf], costs[:-1]])) - frame[states]
    return float(costs[-1])
