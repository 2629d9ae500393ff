"""Intervals and comparisons: laws, closed forms, and hand cases."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.streams import stream
from roundelay_speech.scoring.alignment.align import align_words
from roundelay_speech.scoring.alignment.counts import ErrorCounts, Score, UtteranceScore, count_errors, score
from roundelay_speech.scoring.alignment.groups import Group
from roundelay_speech.scoring.resample import bootstrap, compare, error_segments, gap, matched_pairs

LENGTH = 10


def substituted(errors: Sequence[int], length: int = LENGTH) -> Score:
    """Utterances of so many words, the first ones of each substituted."""
    words = [f"W{i}" for i in range(length)]
    refs = {f"s{n % 4}-u{n}": words for n in range(len(errors))}
    return score(refs, {name: ["X"] * k + words[k:] for (name, _), k in zip(refs.items(), errors, strict=True)})


def test_the_interval_is_that_of_the_binomial() -> None:
    """Utterances of one word: the resampled error count is binomial; 95 % of it lies within 1.96 deviations."""
    result = substituted([1] * 100 + [0] * 300, 1)
    found, deviation = bootstrap(result), 100 * math.sqrt(0.25 * 0.75 / 400)
    assert found.low == pytest.approx(25 - 1.96 * deviation, abs=0.3)
    assert found.high == pytest.approx(25 + 1.96 * deviation, abs=0.3)


def test_errors_that_go_together_widen_the_interval() -> None:
    spread, clustered = substituted([1] * 100), substituted([10] * 10 + [0] * 90)
    assert spread.errors.wer == clustered.errors.wer == 10
    assert (bootstrap(spread).low, bootstrap(spread).high) == (10, 10)
    found = bootstrap(clustered)
    assert found.high - found.low > 10


def test_speakers_are_drawn_whole() -> None:
    result = substituted([10, 0, 0, 0] * 25)  # speaker s0 has all errors
    utterances, speakers = bootstrap(result), bootstrap(result, unit="speakers")
    assert (speakers.units, utterances.units) == (4, 100)
    assert speakers.high - speakers.low > 1.5 * (utterances.high - utterances.low)
    one = bootstrap(result, {name.id: Group(name.id) for name in result.utterances}, "speakers")
    assert (one.low, one.high) == pytest.approx((utterances.low, utterances.high), abs=1.5)


def test_the_gap_of_two_sets_of_speech_has_the_spread_of_both() -> None:
    """Utterances of one word: the difference of two binomial rates."""
    a, b = substituted([1] * 60 + [0] * 140, 1), substituted([1] * 40 + [0] * 360, 1)
    found, deviation = gap(a, b, {}), 100 * math.sqrt(0.3 * 0.7 / 200 + 0.1 * 0.9 / 400)
    assert (found.low, found.high) == pytest.approx((20 - 1.96 * deviation, 20 + 1.96 * deviation), abs=0.5)
    assert found.units == 600
    with pytest.raises(UserError, match="needs at least two"):
        gap(a, substituted([1]), {})


def test_the_same_seed_draws_the_same() -> None:
    result = substituted([int(n) for n in stream(1, "errors").integers(0, 5, 60)])
    assert bootstrap(result) == bootstrap(result)
    assert bootstrap(result, seed=1) != bootstrap(result)
    assert bootstrap(result).low < result.errors.wer < bootstrap(result).high


def test_it_covers_what_it_should() -> None:
    """Of 95 % intervals from 200 test sets of 80 utterances, 89 to 99 % hold the true rate."""
    rng, truth = stream(0, "coverage"), 100 * (0.3 * 4) / LENGTH
    hits = 0
    for _ in range(200):
        counts = np.where(rng.random(80) < 0.3, 4, 0)
        found = bootstrap(substituted([int(n) for n in counts]), samples=400)
        hits += found.low <= truth <= found.high
    assert 178 <= hits <= 198, hits


def test_too_few_to_say() -> None:
    with pytest.raises(UserError, match="over utterances needs at least two of them; here is 1"):
        bootstrap(substituted([1]))
    with pytest.raises(UserError, match="over speakers needs at least two"):
        bootstrap(substituted([1, 2]), {"s0-u0": Group("s"), "s1-u1": Group("s")}, "speakers")


def test_the_line_says_what_was_drawn() -> None:
    assert str(bootstrap(substituted([1, 1]))) == "95 % interval 10.00 to 10.00 (bootstrap over 2 utterances)"


def test_a_better_system_is_found_out() -> None:
    errors = [int(n) for n in stream(0, "worse").integers(1, 5, 100)]
    worse, better = substituted(errors), substituted([e - (i % 2) for i, e in enumerate(errors)])
    found = compare(better, worse)
    assert found.difference == pytest.approx(-5)
    assert found.interval.high < 0
    assert found.improvement == 1
    assert found.z is not None
    assert found.p is not None
    assert found.z < -5
    assert found.p < 1e-6


def test_a_system_is_no_better_than_itself() -> None:
    result = substituted([1, 0, 2, 3])
    found = compare(result, result)
    assert (found.difference, found.improvement, found.z, found.p) == (0, 0, None, None)
    assert found.segments == 3


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_swapping_the_systems_turns_the_signs(errors: list[tuple[int, int]]) -> None:
    a, b = (substituted([pair[side] for pair in errors]) for side in (0, 1))
    there, back = compare(a, b, samples=200), compare(b, a, samples=200)
    assert there.difference == -back.difference
    assert there.interval.low == pytest.approx(-back.interval.high)
    assert there.p == back.p
    assert there.improvement + back.improvement <= 1


def test_systems_of_different_tests() -> None:
    with pytest.raises(UserError, match="Only one of the two systems was scored on s2-u2"):
        compare(substituted([1, 2]), substituted([1, 2, 3]))


def one(ref: str, hyp: str) -> UtteranceScore:
    pairs = align_words(ref.split(), hyp.split())
    return UtteranceScore("u", count_errors(pairs), pairs)


@pytest.mark.parametrize(
    ("a", "b", "segments"),
    [
        ("A B C D E F", "A B C D E F", []),
        ("X B C D E F", "A B C D E X", [(1, 0), (0, 1)]),
        ("X B C D E F", "A B C D X F", [(1, 0), (0, 1)]),
        ("X B C D E F", "A B X D E F", [(1, 1)]),  # one right word between is not enough
        ("X B C D E F", "A B C X D E F", [(1, 0), (0, 1)]),
        ("X B Y C D E F", "A B C D E F", [(2, 0)]),  # an insertion breaks the two right words
        ("A B C D", "A B C D E F Z", [(2, 1)]),
        ("", "A B C D E F", [(6, 0)]),
    ],
)
def test_segments_of_the_matched_pairs(a: str, b: str, segments: list[tuple[int, int]]) -> None:
    assert error_segments(one("A B C D E F", a), one("A B C D E F", b)) == segments


@given(*[st.lists(st.sampled_from("ABCD"), max_size=12)] * 3)
def test_segments_hold_every_error(ref: list[str], a: list[str], b: list[str]) -> None:
    scores = [one(" ".join(ref), " ".join(hyp)) for hyp in (a, b)]
    found = error_segments(*scores)
    assert [sum(pair[side] for pair in found) for side in (0, 1)] == [s.errors.total for s in scores]


def test_other_readings_are_one_segment() -> None:
    a = score({"u": ["{", "A", "B", "/", "C", "}", "D", "E", "F"]}, {"u": ["A", "B", "D", "E", "X"]}, marked=True)
    b = score({"u": ["{", "A", "B", "/", "C", "}", "D", "E", "F"]}, {"u": ["C", "D", "E", "F"]}, marked=True)
    assert error_segments(a.utterances[0], b.utterances[0]) == [(1, 0)]


def test_z_by_hand() -> None:
    """Differences 1, 1, 0, -1 of four segments: mean 1/4, sample deviation sqrt(11/12)."""
    a, b = substituted([2, 1, 1, 0]), substituted([1, 0, 1, 1])
    z, p, segments = matched_pairs(a, b)
    assert segments == 4
    assert z == pytest.approx(0.25 / math.sqrt(11 / 12 / 4))
    assert p == pytest.approx(math.erfc(0.25 / math.sqrt(11 / 12 / 4) / math.sqrt(2)))


def test_no_reference_words() -> None:
    result = score({"s-1": ["A"], "s-2": []}, {"s-1": ["A"], "s-2": ["B"]})
    assert result.errors == ErrorCounts(1, 0, 0, 1)
    assert math.isfinite(bootstrap(result).high)
