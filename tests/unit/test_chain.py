"""Phones as hidden Markov models: their columns, language model and decoding graph, each against what it must say."""

import itertools
import math

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.chain import ChainGraph, build_chain_graph
from roundelay_speech.decode.graphs.graph import GraphConfig
from roundelay_speech.decode.search import decode
from roundelay_speech.lexicon.lexicon import CLOSING, OPENING, Lexicon, Said, expected_ngrams, ways_to_say
from roundelay_speech.mmi.graphs import PhoneNgram
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa
from roundelay_speech.units import Chain
from roundelay_speech.units.base import UnitSet
from support.toy_speech import tying

LEXICON = Lexicon({"AB": (("A", "B"),), "A": (("A",),), "BE": (("B",), ("B", "B"))})
TEXTS = ["AB A", "A", "BE AB", "A A BE"]


def said(text: str) -> Said:
    found = ways_to_say(text.split(), LEXICON)
    assert found is not None
    return found


def every_way(ways: Said) -> dict[tuple[str, ...], float]:
    """All rows of phones with their probabilities, each walked by itself."""
    found: dict[tuple[str, ...], float] = {}

    def walk(node: int, phones: tuple[str, ...], p: float) -> None:
        if ways.ends[node]:
            found[phones] = found.get(phones, 0.0) + p * ways.ends[node]
        for arc in ways.arcs[node]:
            walk(arc.target, (*phones, arc.phone), p * arc.probability)

    walk(0, (), 1.0)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_all_ways_to_say_words(text: str) -> None:
    found = every_way(said(text))
    variants = itertools.product(*(LEXICON.pronunciations[word] for word in text.split()))
    spoken = {tuple(phone for one in row for phone in one) for row in variants}
    assert {tuple(phone for phone in way if phone != "SIL") for way in found} == spoken
    assert sum(found.values()) == pytest.approx(1.0)
    assert said(text).shortest() == min(map(len, found))
    assert ways_to_say(["NOBODY"], LEXICON) is None


@pytest.mark.parametrize("order", [2, 3, 4])
def test_ngrams_are_counted_over_all_ways(order: int) -> None:
    ways, expected = said("BE AB"), dict[tuple[str, ...], float]()
    for phones, p in every_way(ways).items():
        row = (OPENING, *phones, CLOSING)
        for end in range(1, len(row)):
            ngram = row[max(0, end - order + 1) : end + 1]
            expected[ngram] = expected.get(ngram, 0.0) + p
    assert expected_ngrams(ways, order) == pytest.approx(expected)


def test_the_language_model_is_that_of_relative_frequencies() -> None:
    """Probabilities add up to one; rare histories are shortened; nothing is impossible."""
    model = PhoneNgram([(said(text), 1) for text in TEXTS], 4, 1.0)
    history: tuple[str, ...] = (OPENING,)
    for phone in ("SIL", "A", "B", "SIL", "A"):
        assert sum(map(math.exp, model.followers(history).values())) == pytest.approx(1.0)
        assert model.log_p(history, phone) == model.followers(history)[phone]
        history = model.after(history, phone)
    assert model.after(("SIL", "B", "B"), "B") == ("B", "B")
    assert math.exp(model.log_p(("B", "B"), "NOBODY")) == pytest.approx(0.4**3 * 1e-4)
    assert -10 < model.log_p(("B", "B"), "B") < 0


def units_of(chain: Chain) -> UnitSet:
    return chain.units(LEXICON, TEXTS)


def test_columns() -> None:
    assert units_of(Chain()).columns == ("SIL", "SIL~", "A", "A~", "B", "B~")
    assert units_of(Chain(states=1)).columns == ("SIL", "A", "B")
    units = units_of(Chain(context=2, least=2))
    assert "A-B~" in units.columns
    assert "B-B~" not in units.columns
    assert units.hmm is not None
    emitted = units.hmm.emitted(units.names)
    assert [units.columns[c] for c in emitted.of("A", "B")] == ["A-B", "A-B~"]
    assert [units.columns[c] for c in emitted.of("B", "B")] == ["B", "B~"]


def best_row(scores: Float32, units: UnitSet, phones: tuple[str, ...]) -> float:
    """The best sum of scores of columns that say these phones, by trying all ways to spread them over the frames."""
    assert units.hmm is not None
    emitted, best = units.hmm.emitted(units.names), -math.inf
    for starts in itertools.combinations(range(1, len(scores)), len(phones) - 1):
        bounds = [0, *starts, len(scores)]
        total = 0.0
        for left, phone, (begin, end) in zip(("", *phones), phones, itertools.pairwise(bounds), strict=False):
            first, further = emitted.of(left, phone)
            total += float(scores[begin, first] + scores[begin + 1 : end, further].sum())
        best = max(best, total)
    return best


@pytest.mark.parametrize("chain", [Chain(), Chain(states=1), Chain(context=2, least=1)])
@pytest.mark.parametrize("frames", [1, 3, 4])
def test_best_words_of_all(chain: Chain, frames: int) -> None:
    """The search finds the best of all words, ways to say them, and columns."""
    units, words = units_of(chain), ["A", "AB", "BE"]
    model = estimate([["A", "BE"], ["AB", "A"]], words)
    graph = build_chain_graph(LEXICON, model, units, GraphConfig(0.5))
    for seed in range(2):
        scores = stream(seed, "chain", frames).normal(size=(frames, len(units.columns))).astype(np.float32) * 3
        found = decode(graph, scores, 1e9, max_active=100_000)
        costs = [best_of(scores, units, row) - math.log(10) * by_model(model, row) for row in rows_of_words(frames)]
        assert found.cost == pytest.approx(min(costs), abs=1e-2)


def rows_of_words(frames: int) -> list[tuple[str, ...]]:
    return [row for size in range(frames + 1) for row in itertools.product(["A", "AB", "BE"], repeat=size)]


def by_model(model: Arpa, words: tuple[str, ...]) -> float:
    """log10 of the probability of words."""
    return sum(model.log10_probability(word, [BEGIN, *words[:i]]) for i, word in enumerate([*words, END]))


def best_of(scores: Float32, units: UnitSet, words: tuple[str, ...]) -> float:
    """The cost of scores and silences, which have probability a half."""
    costs = [math.inf]
    for said_so in itertools.product(*(LEXICON.pronunciations[word] for word in words)):
        for silences in itertools.product((0, 1), repeat=len(words) + 1):
            phones = tuple(["SIL"] * silences[0])
            for one, silence in zip(said_so, silences[1:], strict=True):
                phones += (*one, *["SIL"] * silence)
            if 1 <= len(phones) <= len(scores):
                costs.append(math.log(2) * (len(words) + 1) - best_row(scores, units, phones))
    return min(costs)


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match=r"decode\.graph=hmm"):
        ChainGraph().columns(tying(1))
    with pytest.raises(UserError, match=r"units\.least is 0"):
        Chain(least=0)
    units, strange = units_of(Chain()), Lexicon({"X": (("X",),)})
    with pytest.raises(UserError, match="units that the model does not know"):
        build_chain_graph(strange, estimate([["X"]], ["X"], Estimator(1)), units, GraphConfig())
