"""Word error rate: hand cases, brute force on short strings, laws."""

import functools
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.score import (
    ErrorCounts,
    align_words,
    alignment_text,
    confusions,
    count_errors,
    read_trn,
    score,
    write_trn,
)

words = st.lists(st.sampled_from(["A", "B", "C", "***", "*"]), max_size=8)


def test_the_line_is_kaldis() -> None:
    assert str(ErrorCounts(505, 330, 3050, 52576)) == "%WER 7.39 [ 3885 / 52576, 505 ins, 330 del, 3050 sub ]"


def test_no_reference_words() -> None:
    assert ErrorCounts().wer == 0.0
    assert ErrorCounts(ins=1).wer == float("inf")


@functools.cache
def distance(ref: str, hyp: str) -> int:
    """Levenshtein's recursion as written in textbooks."""
    if not ref or not hyp:
        return len(ref) + len(hyp)
    return min(distance(ref[1:], hyp) + 1, distance(ref, hyp[1:]) + 1, distance(ref[1:], hyp[1:]) + (ref[0] != hyp[0]))


def test_brute_force_on_all_short_strings() -> None:
    strings = ["".join(s) for n in range(5) for s in itertools.product("ab", repeat=n)]
    for ref, hyp in itertools.product(strings, strings):
        assert count_errors(align_words(ref, hyp)).total == distance(ref, hyp), (ref, hyp)


@given(words, words)
def test_alignment_keeps_both_sides(ref: list[str], hyp: list[str]) -> None:
    pairs = align_words(ref, hyp)
    assert [r for r, _ in pairs if r is not None] == ref
    assert [h for _, h in pairs if h is not None] == hyp
    assert (None, None) not in pairs


@given(words, words)
def test_swapping_the_sides_swaps_insertions_and_deletions(ref: list[str], hyp: list[str]) -> None:
    there, back = count_errors(align_words(ref, hyp)), count_errors(align_words(hyp, ref))
    assert there.total == back.total
    assert there.ins - there.del_ == back.del_ - back.ins == len(hyp) - len(ref)


def test_missing_hypothesis_is_an_error_unless_asked() -> None:
    refs = {"u1": ["A"], "u2": ["B", "C"]}
    with pytest.raises(UserError, match="1 of 2 utterances have no hypothesis: u2"):
        score(refs, {"u1": ["A"]})
    assert score(refs, {"u1": ["A"]}, missing="empty").errors == ErrorCounts(0, 2, 0, 3)


def test_hypothesis_of_another_split_is_an_error() -> None:
    with pytest.raises(UserError, match="without a reference: x"):
        score({"u": ["A"]}, {"u": ["A"], "x": ["A"]})


def test_nothing_to_score() -> None:
    with pytest.raises(UserError, match="nothing to score"):
        score({}, {})


def test_report_shows_each_error_in_its_column() -> None:
    result = score({"u1": ["ONE", "TWO", "THREE"], "u2": ["GO"]}, {"u1": ["ONE", "TO", "THREE", "GO"], "u2": ["GO"]})
    assert str(result).splitlines() == ["%WER 50.00 [ 2 / 4, 1 ins, 0 del, 1 sub ]", "%SER 50.00 [ 1 / 2 ]"]
    assert confusions(result) == [((None, "GO"), 1), (("TWO", "TO"), 1)]
    lines = alignment_text(result).splitlines()
    ref, hyp, marks = lines[-6:-3] if lines[-1].startswith("OK") else lines[-3:]
    assert ref == "REF:  ONE TWO THREE ***"
    assert hyp == "HYP:  ONE TO  THREE GO"
    assert marks == "Eval:     S         I"
    assert "OK:   GO" in lines


def test_trn_round_trip(tmp_path: Path) -> None:
    texts = {"spk-1": ["A", "B"], "2": [], "spkx-3": ["C"]}
    write_trn(tmp_path / "ref.trn", texts, {"spk-1": "spk", "2": "spk", "spkx-3": "spk"})
    assert (tmp_path / "ref.trn").read_text() == "A B (spk-1)\n(spk-2)\nC (spk-spkx-3)\n"
    assert read_trn(tmp_path / "ref.trn") == {"spk-1": ["A", "B"], "spk-2": [], "spk-spkx-3": ["C"]}
