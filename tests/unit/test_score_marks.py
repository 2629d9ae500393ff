"""Alternatives, optional words and fragments: networks against their readings, one by one."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.align import FEWEST, SCLITE, Costs, align_networks, align_words
from roundelay_speech.scoring.alignment.counts import ErrorCounts, count_errors, score
from roundelay_speech.scoring.alignment.marks import (
    MarkError,
    WordNetwork,
    fragments_match,
    marked_network,
    plain_network,
    without_attributes,
)


def counts_of(ref: str, hyp: str) -> ErrorCounts:
    return score({"u": ref.split()}, {"u": hyp.split()}, marked=True).errors


def readings(network: WordNetwork, node: int | None = None) -> Iterator[list[tuple[str, bool]]]:
    """Every path, as (word, optional)."""
    node = len(network.into) - 1 if node is None else node
    if node == 0:
        yield []
        return
    for arc in network.into[node]:
        for before in readings(network, arc.start):
            yield before + ([(arc.word, arc.optional)] if arc.word is not None else [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A B", {"A B"}),
        ("{ A / B C / @ } D", {"A D", "B C D", "D"}),
        ("{A/B}", {"A", "B"}),
        ("AND/OR", {"AND/OR"}),
        ("{ { A / B } C / D }", {"A C", "B C", "D"}),
        ("(A) B", {"(A) B"}),
        ("(A B)", {"(A) (B)"}),
        ("({ A / B }) C", {"(A) C", "(B) C"}),
        ("{ (A) / @ }", {"(A)", ""}),
        ("@", {""}),
        ("A @ B", {"A B"}),
        ("A;NOUN B*", {"A B"}),
        (r"A\;S;NOUN;LOUD", {"A;S"}),
        ("{ A;X / B;Y C }", {"A", "B C"}),
        ("(A);X (B;X)", {"(A) (B)"}),
        ("* ; A", {"* ; A"}),
        ("", {""}),
    ],
)
def test_readings(text: str, expected: set[str]) -> None:
    found = [" ".join(f"({w})" if o else w for w, o in path) for path in readings(marked_network(text.split()))]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ A / B", "'{' is not closed"),
        ("A }", "'}' closes nothing"),
        ("( A", r"'\(' is not closed"),
        ("A ) B", r"'\)' closes nothing"),
        ("{ A ) }", r"'\)' closes nothing"),
        ("( { A ) }", r"'\)' closes nothing"),
        ("{ " * 30 + "A" + " }" * 30, "nested more than 20 deep"),
    ],
)
def test_marks_that_do_not_fit(text: str, message: str) -> None:
    with pytest.raises(MarkError, match=message):
        marked_network(text.split())
    with pytest.raises(UserError, match=f"utt7: in the reference .* {message}"):
        score({"utt7": text.split()}, {"utt7": []}, marked=True)


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [
        ("HE'S HERE", "HE IS HERE", ErrorCounts(1, 0, 1, 2)),
        ("{ HE'S / HE IS / HE HAS } HERE", "HE IS HERE", ErrorCounts(0, 0, 0, 3)),
        ("{ HE'S / HE IS / HE HAS } HERE", "SHE IS HERE", ErrorCounts(0, 0, 1, 3)),
        ("{ HE IS / HE HAS } HERE", "{ HE IS / HE'S } HERE", ErrorCounts(0, 0, 0, 3)),
        ("{ SO / @ } HERE", "HERE", ErrorCounts(0, 0, 0, 1)),
        ("A (B) C", "A C", ErrorCounts(0, 0, 0, 3)),
        ("A (B) C", "A B C", ErrorCounts(0, 0, 0, 3)),
        ("A (B) C", "A X C", ErrorCounts(1, 0, 0, 3)),
        ("A (B) C", "", ErrorCounts(0, 2, 0, 3)),
        ("A", "A (B)", ErrorCounts(0, 0, 0, 1)),
        ("WO- X", "WORLD X", ErrorCounts(0, 0, 0, 2)),
        ("-ING X", "GOING X", ErrorCounts(0, 0, 0, 2)),
        ("WORLD X", "WO- X", ErrorCounts(0, 0, 0, 2)),
        ("GOING X", "-ING (X-)", ErrorCounts(0, 0, 0, 2)),
        ("WORLD X", "{ TO / WO- } X", ErrorCounts(0, 0, 0, 2)),
        ("WO- X", "W- X", ErrorCounts(0, 0, 1, 2)),
        ("A B", "A @ B", ErrorCounts(0, 0, 0, 2)),
        ("A @ B", "A B", ErrorCounts(0, 0, 0, 2)),
        ("A;NOUN B", r"A;VERB B\;S", ErrorCounts(0, 0, 1, 2)),
        ("WO- X", "X", ErrorCounts(0, 1, 0, 2)),
        ("(WO-) X", "X", ErrorCounts(0, 0, 0, 2)),
        ("- X", "A X", ErrorCounts(0, 0, 1, 2)),
    ],
)
def test_hand_cases(ref: str, hyp: str, expected: ErrorCounts) -> None:
    assert counts_of(ref, hyp) == expected


def test_without_marks_they_are_characters_of_words() -> None:
    assert score({"u": ["(A)", "{", "W-"]}, {"u": ["W-"]}).errors == ErrorCounts(0, 2, 0, 3)


def test_of_equal_readings_the_first_counts() -> None:
    assert counts_of("{ A B / C }", "X").ref == 1  # one substitution is fewer errors than two
    assert counts_of("{ A / B C }", "A D").ref == 1
    assert counts_of("{ A B / C D }", "A D") == ErrorCounts(0, 0, 1, 2)


atoms = st.sampled_from(["A", "B", "C", "(A)", "(B)"])
sequences = st.lists(atoms, max_size=3).map(" ".join)
braces = st.lists(sequences | st.just("@"), min_size=1, max_size=3).map(lambda some: "{ " + " / ".join(some) + " }")
marked = st.lists(atoms | braces, max_size=4).map(" ".join)


@given(marked, marked, st.sampled_from([FEWEST, dataclasses.replace(SCLITE, nothing=0)]))
def test_the_cheapest_of_all_readings(ref: str, hyp: str, costs: Costs) -> None:
    """Against every reading of the one side aligned with every reading of the other by the textbook recursion."""
    networks = marked_network(ref.split()), marked_network(hyp.split())
    found = align_networks(*networks, costs)
    counts = count_errors(found.pairs, found.forgiven)
    left_out = sum(None in found.pairs[place] for place in found.forgiven)
    cost = counts.ins * costs.ins + counts.del_ * costs.del_ + counts.sub * costs.sub + left_out * costs.optional
    pairs = itertools.product(readings(networks[0]), readings(networks[1]))
    assert cost == min(recursion(tuple(a), tuple(b), costs) for a, b in pairs)
    texts = [{" ".join(word for word, _ in path) for path in readings(network)} for network in networks]
    for side in (0, 1):
        assert " ".join(word for pair in found.pairs if (word := pair[side]) is not None) in texts[side]


Reading = tuple[tuple[str, bool], ...]


@functools.cache
def recursion(ref: Reading, hyp: Reading, costs: Costs) -> int:
    found = []
    if not ref and not hyp:
        return 0
    if ref:
        found.append(recursion(ref[1:], hyp, costs) + (costs.optional if ref[0][1] else costs.del_))
    if hyp:
        found.append(recursion(ref, hyp[1:], costs) + (costs.optional if hyp[0][1] else costs.ins))
    if ref and hyp:
        found.append(recursion(ref[1:], hyp[1:], costs) + (0 if ref[0][0] == hyp[0][0] else costs.sub))
    return min(found)


@pytest.mark.parametrize(
    ("ref", "hyp", "fewest", "like_sclite"),
    [
        # Left out for an insertion, the optional word costs 5; taken for the inserted word, 4.
        ("A (B) C", "A X Y Z", ErrorCounts(2, 0, 1, 3), ErrorCounts(1, 0, 2, 3)),
        # Both readings are without an error; the one without an `@` is the cheaper.
        ("A { @ / B }", "A { @ / B }", ErrorCounts(0, 0, 0, 1), ErrorCounts(0, 0, 0, 2)),
    ],
)
def test_prices_of_sclite(ref: str, hyp: str, fewest: ErrorCounts, like_sclite: ErrorCounts) -> None:
    texts = {"u": ref.split()}, {"u": hyp.split()}
    assert score(*texts, marked=True).errors == fewest
    assert score(*texts, marked=True, costs=SCLITE).errors == like_sclite


plain_words = st.lists(st.sampled_from(["A", "B", "C", "D"]), max_size=12)


@given(plain_words, plain_words, st.sampled_from([FEWEST, SCLITE]))
def test_chains_are_aligned_like_strings(ref: list[str], hyp: list[str], costs: Costs) -> None:
    fast = count_errors(align_words(ref, hyp, costs))
    slow = count_errors(align_networks(plain_network(ref), plain_network(hyp), costs).pairs)
    for weight in (costs.ins * c.ins + costs.del_ * c.del_ + costs.sub * c.sub for c in (fast, slow)):
        assert weight == costs.ins * fast.ins + costs.del_ * fast.del_ + costs.sub * fast.sub
    if costs == FEWEST:
        assert fast == slow  # all four counts are unique


def test_five_substitutions_are_fewer_errors_than_three_and_three() -> None:
    """Case in which sclite's total is higher than the smallest."""
    ref, hyp = [*"ABCDEF"], [*"AXYABC"]
    assert count_errors(align_words(ref, hyp)) == ErrorCounts(0, 0, 5, 6)
    assert count_errors(align_words(ref, hyp, SCLITE)) == ErrorCounts(3, 3, 0, 6)


def test_of_equal_totals_the_fewest_substitutions() -> None:
    assert count_errors(align_words([*"AB"], [*"BA"])) == ErrorCounts(1, 1, 0, 2)


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [
        ("WO-", "WORLD", True),
        ("WORLD", "WO-", True),
        ("WO-", "W-", False),  # the reference's fragment decides, and `W-` does not begin with it
        ("W-", "WO-", True),
        ("-LD-", "WOLD-", True),
        ("-LD-", "LD", False),
        ("A", "-", False),
    ],
)
def test_fragments_on_both_sides(ref: str, hyp: str, expected: bool) -> None:
    assert fragments_match(ref, hyp) is expected


@given(st.text(alphabet="AB;*\\", min_size=1, max_size=8))
def test_attributes_leave_a_word(word: str) -> None:
    bare = without_attributes(word)
    assert bare
    escaped = bare.replace(";", r"\;")
    if "\\" not in bare and not bare.endswith("*"):
        assert without_attributes(f"{escaped};NOUN") == bare
