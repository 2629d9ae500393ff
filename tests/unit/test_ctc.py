"""Graphs with a blank against every row of columns, one by one."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.graphs.ctc import (
    CtcGraph,
    build_ctc_graph,
    character_lexicon,
    greedy_units,
    read_units,
)
from roundelay_speech.decode.graphs.graph import GraphConfig, load_graph, save_graph
from roundelay_speech.decode.graphs.hmm import HmmGraph
from roundelay_speech.decode.graphs.making import GraphJob, LanguageOptions
from roundelay_speech.decode.parallel import Search, SpelledWords, most_probable
from roundelay_speech.decode.search import decode
from roundelay_speech.lexicon.lexicon import Lexicon
from roundelay_speech.ngrams.estimate import Estimator, estimate
from roundelay_speech.ngrams.ngram import BEGIN, END, Arpa
from roundelay_speech.units import Bpe, Characters, Phones
from roundelay_speech.units.base import BLANK, WORD_START, UnitSet
from support.toy_speech import tying

COLUMNS = (BLANK, "A", "B")
LEXICON = Lexicon(
    {"AB": (("A", "B"),), "A": (("A",),), "AA": (("A", "A"),), "EH": (("A",), ("B", "B")), "B": (("B",),)}
)
TEXT = [["AB", "A"], ["AA"], ["EH", "B"], ["A", "AA", "B"], ["B"], ["AB", "AB"]]


def random_scores(frames: int, name: str, noise: float = 1.5) -> Float32:
    scores = noise * stream(0, name).normal(size=(frames, len(COLUMNS)))
    scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    return scores.astype(np.float32)


def cheapest(scores: Float32, model: Arpa, word_cost: float) -> dict[tuple[str, ...], float]:
    """The cost of every word string, by trying all rows of columns and all ways to read units as words."""
    rows: dict[tuple[str, ...], float] = {}
    for row in itertools.product(range(len(COLUMNS)), repeat=len(scores)):
        units = tuple(COLUMNS[c] for c, _ in itertools.groupby(row) if COLUMNS[c] != BLANK)
        cost = -float(sum(scores[t, c] for t, c in enumerate(row)))
        rows[units] = min(cost, rows.get(units, math.inf))
    found: dict[tuple[str, ...], float] = {}
    for units, cost in rows.items():
        for words in readings(units):
            language = word_cost * len(words)
            for i, word in enumerate([*words, END]):
                language -= math.log(10) * model.log10_probability(word, [BEGIN, *words[:i]])
            found[words] = min(cost + language, found.get(words, math.inf))
    return found


def readings(units: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All word strings that are pronounced so."""
    if not units:
        return [()]
    return [
        (word, *rest)
        for word, variants in LEXICON.pronunciations.items()
        for said in variants
        if units[: len(said)] == said
        for rest in readings(units[len(said) :])
    ]


@pytest.mark.parametrize("frames", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("order", [1, 3])
def test_best_words_of_all(frames: int, order: int) -> None:
    model = estimate(TEXT, LEXICON.words, Estimator(order))
    graph = build_ctc_graph(LEXICON, model, COLUMNS, config=GraphConfig(word_cost=0.25))
    for i in range(6):
        scores = random_scores(frames, f"scores {i}")
        every = cheapest(scores, model, 0.25)
        found = decode(graph, scores, beam=1000.0, max_active=100_000)
        assert found.reached_final
        assert found.cost == pytest.approx(min(every.values()), abs=5e-3)
        assert every[found.words] == pytest.approx(found.cost, abs=5e-3)
        assert len(found.pdfs) == frames


def test_a_repeated_unit_needs_a_blank_between() -> None:
    graph = build_ctc_graph(LEXICON, estimate([["AA"]], LEXICON.words), COLUMNS)
    sure = np.full((3, 3), -20.0, np.float32)
    sure[[0, 1, 2], [1, 0, 1]] = 0.0
    assert decode(graph, sure).words == ("AA",)
    sure[1] = [-20.0, 0.0, -20.0]
    assert decode(graph, sure).words == ("A",)


def test_characters_and_files(tmp_path: Path) -> None:
    """The graph on disk, the blank in another column, a unit that ends words."""
    lexicon = character_lexicon(["NO", "NOON"], boundary="|")
    columns = ["N", "O", "|", "blank"]
    save_graph(build_ctc_graph(lexicon, estimate([["NO", "NOON"]], lexicon.words), columns, "blank"), tmp_path)
    graph = load_graph(tmp_path)
    assert (graph.info["topology"], graph.info["columns"]) == ("ctc", columns)
    row = [0, 0, 1, 2, 3, 0, 1, 3, 1, 0, 2, 2]
    scores = np.full((len(row), 4), -9.0, np.float32)
    scores[np.arange(len(row)), row] = -0.1
    assert decode(graph, scores).words == ("NO", "NOON")
    assert greedy_units(scores, columns, "blank") == ("N", "O", "|", "N", "O", "O", "N", "|")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("A", "B"), "blank <blk> is not among"),
        ((BLANK, "A"), r"units .* not know \(B\)"),
        ((*COLUMNS, "A"), "two col"),
    ],
)
def test_columns_that_do_not_fit(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_ctc_graph(LEXICON, estimate(TEXT, LEXICON.words), columns)


def test_units_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("<blk>\nA\n\nB\n")
    (tmp_path / "numbered").write_text("<blk> 0\nA 1\nB 2\n")
    assert read_units(tmp_path / "plain") == read_units(tmp_path / "numbered") == COLUMNS
    for text, message in [("<blk> 1\n", ":1:.*is not column 0"), ("A\nB C D\n", ":2:"), ("\n", "no units")]:
        (tmp_path / "odd").write_text(text)
        with pytest.raises(UserError, match=message):
            read_units(tmp_path / "odd")


@pytest.mark.parametrize("frames", [1, 2, 4, 6])
def test_the_most_probable_units_of_all(frames: int) -> None:
    """With all beginnings kept, the sum over all ways to write each row of units."""
    for i in range(6):
        scores = random_scores(frames, f"prefixes {i}", 0.7)
        every: dict[tuple[int, ...], float] = {}
        for row in itertools.product(range(len(COLUMNS)), repeat=frames):
            units = tuple(c for c, _ in itertools.groupby(row) if c)
            p = math.exp(sum(float(scores[t, c]) for t, c in enumerate(row)))
            every[units] = every.get(units, 0.0) + p
        found, log_p = most_probable(scores, 10_000, least=-math.inf)
        assert math.exp(log_p) == pytest.approx(max(every.values()), rel=1e-5)
        assert every[found] == pytest.approx(max(every.values()), rel=1e-5)
        assert most_probable(scores, 4)[1] <= log_p + 1e-9


def test_many_ways_beat_the_best_one() -> None:
    """The best columns are blanks; but all the ways to say one A are together more probable than to say nothing."""
    scores = np.log(np.array([[0.6, 0.4, 1e-9], [0.6, 0.4, 1e-9]], np.float32))
    assert greedy_units(scores, COLUMNS) == ()
    found, log_p = most_probable(scores, 8)
    assert found == (1,)
    assert math.exp(log_p) == pytest.approx(0.64)


def test_a_cost_of_blanks() -> None:
    """Of the blank's column alone, and not of the graph: one graph serves all costs."""
    scores = np.log(np.array([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3]], np.float32))
    free, charged = (CtcGraph(blank_cost=cost).columns_of(UnitSet(("A", "B")), "SIL") for cost in (0.0, 2.0))
    assert free.searched(scores) is scores
    np.testing.assert_allclose(charged.searched(scores) - scores, [[-2, 0, 0], [-2, 0, 0]], atol=1e-6)
    assert charged.identity() == free.identity()
    assert charged.told() == {"blank_cost": 2.0}
    assert charged.read_off(scores) == free.read_off(scores) == ("A",)


@pytest.mark.parametrize("search", ["greedy", "prefixes"])
def test_words_that_units_spell(search: str) -> None:
    chosen = CtcGraph(search=search)  # type: ignore[arg-type]
    units = UnitSet((WORD_START, "A", "B"), spelled=True)
    row = [0, 1, 2, 2, 0, 2, 1, 3]
    scores = np.full((len(row), 4), -9.0, np.float32)
    scores[np.arange(len(row)), row] = -0.01
    run = SpelledWords(chosen.columns_of(units, "SIL"), chosen)
    found = run.search([("u", scores), ("none", scores[:1])], Search(1.0)).hypotheses
    assert {u: h.words for u, h in found.items()} == {"u": ("AA", "B"), "none": ()}
    with pytest.raises(UserError, match=r"search is .*spell no words"):
        SpelledWords(chosen.columns_of(UnitSet(("A", "B")), "SIL"), chosen)


@pytest.mark.parametrize("kind", [Phones(), Characters(), Bpe(size=5)])
def test_a_graph_of_units_says_words_as_they_are_written_in_them(kind: Phones | Characters | Bpe) -> None:
    text = [" ".join(words) for words in TEXT]
    units = kind.units(LEXICON, text)
    columns = CtcGraph().columns_of(units, "SIL")
    lexicon = columns.spelled(LEXICON.words) or LEXICON
    graph = columns.compile(lexicon, estimate(TEXT, LEXICON.words), GraphConfig())
    for words in TEXT:
        written = units.written(words, LEXICON)
        assert written is not None
        row = [c for unit in written for c in (units.numbers[unit], 0)]
        scores = np.full((len(row), len(units.columns)), -30.0, np.float32)
        scores[np.arange(len(row)), row] = 0.0
        said = decode(graph, scores, beam=100.0).words
        assert units.written(said, LEXICON) == written


def test_a_graph_belongs_to_its_columns(tmp_path: Path) -> None:
    """Another order of columns, another blank or another way to spell: another graph."""
    tied = tying(3)
    (tmp_path / "a").write_text("<blk>\nA\nB\n")
    (tmp_path / "b").write_text("<blk>\nB\nA\n")
    kinds = [
        HmmGraph(),
        CtcGraph(),
        CtcGraph(blank="-"),
        CtcGraph(units=tmp_path / "a"),
        CtcGraph(units=tmp_path / "b"),
        CtcGraph(units=tmp_path / "a", spelled=True),
        CtcGraph(units=tmp_path / "a", spelled=True, boundary="|"),
    ]
    columns = [kind.columns(tied) for kind in kinds]
    columns += [CtcGraph().columns_of(kind.units(LEXICON, ["AB AA AB"]), "SIL") for kind in (Characters(), Bpe(size=4))]
    digests = [GraphJob(LanguageOptions(), GraphConfig(), ("A",), LEXICON, some).digest() for some in columns]
    assert len(set(digests)) == len(columns)
    assert CtcGraph().columns(tied).phones == tied.phones
