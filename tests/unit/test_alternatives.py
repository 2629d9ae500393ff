"""Alternatives of a piece and its words, and words that are favoured."""

from dataclasses import replace

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.data.arrays import Float32
from roundelay_speech.decode.alternatives import (
    MOST_STRINGS,
    StringAlternative,
    Wishes,
    WordAlternative,
    in_place,
    keeping,
    ranked,
    words_of,
)
from roundelay_speech.decode.graphs.graph import Graph
from roundelay_speech.decode.graphs.hmm import build_graph
from roundelay_speech.decode.lattice import WordString
from roundelay_speech.decode.lm.scorer import PathScorer
from roundelay_speech.decode.parallel import Batch, Search, decoder_here
from roundelay_speech.decode.rescore import Rescorer
from roundelay_speech.decode.search import Hypothesis
from roundelay_speech.ngrams.estimate import estimate
from support.toy_speech import LEXICON, frames_of, loglikes_of, phones_of, sentences, tying

SAID = sentences(stream(3, "said"), 60)
LISTED = Search(0.1, beam=100.0, max_active=100_000, nbest=MOST_STRINGS, lattice_beam=9.0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(LEXICON, estimate(sentences(stream(0, "text"), 50), LEXICON.words), tying(3))


def noisy(name: str, words: list[str]) -> Float32:
    rng, tied = stream(2, name), tying(3)
    return loglikes_of([pdf for *_, pdf in frames_of(phones_of(words), tied, rng)], tied.num_pdfs, rng, 3.0)


def searched(graph: Graph, options: Search, words: tuple[str, ...] = ("GO", "TO", "NO")) -> Batch:
    return decoder_here(graph).search([("u", noisy("u", list(words)))], options)


def strings_of(batch: Batch) -> tuple[StringAlternative, ...]:
    return ranked(batch.details["u"].nbest, batch.hypotheses["u"])


def test_the_first_string_is_the_words_and_the_rest_follow_by_cost(graph: Graph) -> None:
    batch = searched(graph, LISTED)
    strings, found = strings_of(batch), batch.hypotheses["u"]
    assert strings[0].words == found.words
    assert strings[0].cost == batch.details["u"].nbest[0].cost == pytest.approx(found.cost, abs=1e-2)
    costs = [string.cost for string in strings]
    assert costs == sorted(costs)
    assert len({string.words for string in strings}) == len(strings) >= 5
    assert sum(string.posterior for string in strings) == pytest.approx(1.0)
    odds = [np.log(strings[0].posterior / string.posterior) for string in strings]
    assert odds == pytest.approx([cost - costs[0] for cost in costs])


def test_there_are_no_more_strings_than_the_lattice_has(graph: Graph) -> None:
    """A narrow lattice has a few: none is repeated to make up the number."""
    strings = strings_of(searched(graph, replace(LISTED, lattice_beam=0.5)))
    assert 1 <= len(strings) < 10
    assert len({string.words for string in strings}) == len(strings)


def found(words: str, cost: float) -> Hypothesis:
    return Hypothesis(tuple(words.split()), cost, 0.0, cost, True)


def test_words_that_cost_the_same_do_not_take_the_place_of_those_that_were_found() -> None:
    best = [WordString(("TWO",), 4.9999), WordString(("TO",), 5.0), WordString(("GO",), 7.0)]
    strings = ranked(best, found("TO", 5.0001))
    assert [(string.text, string.cost) for string in strings] == [("TO", 5.0), ("TWO", 5.0), ("GO", 7.0)]
    assert strings[0].posterior == strings[1].posterior


def test_words_that_the_lattice_lacks_are_alone() -> None:
    """It then ends inside another sentence; costs cannot be compared."""
    assert ranked([WordString(("A", "B"), 1.0)], found("A", 2.0)) == (StringAlternative(("A",), 2.0, 1.0),)
    assert ranked([], Hypothesis((), np.inf, np.inf, np.inf, False)) == ()


STRINGS = (
    StringAlternative(("A", "B", "C"), 1.0, 0.4),
    StringAlternative(("A", "X", "C"), 2.0, 0.3),
    StringAlternative(("A", "C"), 3.0, 0.2),
    StringAlternative(("D", "B", "B", "C"), 4.0, 0.1),
)


def test_a_word_that_was_not_said_falls_with_all_in_its_place() -> None:
    kept = keeping(STRINGS, [True, False, True])
    assert [(one.text, one.cost, round(one.posterior, 9)) for one in kept] == [("A C", 1.0, 0.9), ("D C", 4.0, 0.1)]
    assert keeping(STRINGS, [True] * 3) == STRINGS
    (nothing,) = keeping(STRINGS, [False] * 3)
    assert (nothing.words, nothing.cost) == ((), 1.0)
    assert nothing.posterior == pytest.approx(1.0)


def test_words_in_the_place_of_others_share_what_these_leave() -> None:
    first, second, third = in_place(STRINGS, [0.9, 0.2, 0.7], 5)
    assert [(one.word, round(one.confidence, 9)) for one in first] == [("D", 0.1)]
    assert [(one.word, round(one.confidence, 9)) for one in second] == [("X", 0.48), ("", 0.32)]
    assert third == ()  # every string has it
    assert in_place(STRINGS, [None] * 3, 1)[1] == (WordAlternative("X", 0.3),)
    assert in_place((), [], 5) == ()


def test_a_string_with_favoured_words_costs_less_by_the_bonus_of_each(graph: Graph) -> None:
    """Of those within the lattice's beam: what is worse is put together of parts of others."""
    plain = within_beam(strings_of(searched(graph, LISTED)))
    favoured = within_beam(strings_of(searched(graph, replace(LISTED, favoured=("NO", "STOP"), bonus=1.5))))
    both = plain.keys() & favoured.keys()
    assert len(both) >= 5
    for words in both:
        times = sum(word in ("NO", "STOP") for word in words)
        assert favoured[words] == pytest.approx(plain[words] - 1.5 * times, abs=1e-2)


def test_a_second_pass_keeps_the_bonus(graph: Graph) -> None:
    """It changes what the grammar charges, and nothing else."""
    models = [estimate(sentences(stream(0, "text"), 50), LEXICON.words), estimate(SAID, LEXICON.words)]
    rescorer = Rescorer(graph.words, *map(PathScorer, models))
    run, said = decoder_here(graph, None, rescorer), [("u", noisy("u", ["GO", "TO", "NO"]))]
    wide = replace(LISTED, lattice_beam=20.0)
    plain = within_beam(strings_of(run.search(said, wide)))
    favoured = within_beam(strings_of(run.search(said, replace(wide, favoured=("NO",), bonus=1.5))))
    both = plain.keys() & favoured.keys()
    assert any("NO" in words for words in both)
    for words in both:
        assert favoured[words] == pytest.approx(plain[words] - 1.5 * words.count("NO"), abs=1e-2)


def within_beam(strings: tuple[StringAlternative, ...]) -> dict[tuple[str, ...], float]:
    return {one.words: one.cost for one in strings if one.cost < strings[0].cost + LISTED.lattice_beam}


def rank(strings: tuple[StringAlternative, ...], word: str) -> int:
    """Place of the first string that has the word."""
    return next(number for number, string in enumerate(strings) if word in string.words)


def test_a_favoured_word_rises(graph: Graph) -> None:
    plain = strings_of(searched(graph, LISTED))
    there = [word for word in LEXICON.words if any(word in string.words for string in plain)]
    word = next(word for word in there if rank(plain, word))
    ranks = [
        rank(strings_of(searched(graph, replace(LISTED, favoured=(word,), bonus=bonus))), word)
        for bonus in (0.0, 1.0, 2.0, 30.0)
    ]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] == rank(plain, word) > ranks[-1] == 0


def test_nothing_favoured_changes_nothing(graph: Graph) -> None:
    """Nor does what was favoured before, in the same decoder."""
    assert graph.favouring((), 3.0) is graph
    run, said = decoder_here(graph), [("u", noisy("u", ["GO", "TO", "NO"]))]
    first = run.search(said, LISTED)
    other = run.search(said, replace(LISTED, favoured=("STOP",), bonus=30.0))
    again = run.search(said, replace(LISTED, favoured=(), bonus=30.0))
    assert again.hypotheses == first.hypotheses != other.hypotheses
    assert again.details["u"].nbest == first.details["u"].nbest


def test_a_word_that_the_graph_lacks_is_named(graph: Graph) -> None:
    with pytest.raises(UserError, match="'XYZZY' cannot be favoured"):
        graph.favouring(("GO", "XYZZY"), 1.0)


def test_what_can_be_asked() -> None:
    assert words_of(" New  York,new,\tNew ") == ["New", "York", "new"]
    for asked, message in (({"strings": 101}, "0 to 100"), ({"strings": -1}, "0 to 100"), ({"bonus": 21.0}, "0 to 20")):
        with pytest.raises(UserError, match=message):
            Wishes(**asked)
