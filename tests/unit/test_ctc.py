"""Graphs with a blank against every row of columns, one by one."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay.speech.decode.graphs.ctc import (
    BLANK,
    CtcGraph,
    build_ctc_graph,
    character_lexicon,
    greedy_units,
    read_units,
)
from roundelay.speech.decode.graphs.graph import GraphConfig, load_graph, save_graph
from roundelay.speech.decode.graphs.hmm import HmmGraph
from roundelay.speech.decode.graphs.making import GraphJob, LanguageOptions
from roundelay.speech.decode.lm.estimate import estimate
from roundelay.speech.decode.lm.ngram import BEGIN, END, Arpa
from roundelay.speech.decode.search import Float32, decode
from roundelay.speech.lexicon.lexicon import Lexicon
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
    model = estimate(TEXT, LEXICON.words, order)
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
    digests = [
        GraphJob(LanguageOptions(), GraphConfig(), ("A",), LEXICON, kind.columns(tied)).digest() for kind in kinds
    ]
    assert len(set(digests)) == len(kinds)
    assert CtcGraph().columns(tied).phones == tied.phones
