"""CTM files: what is written is read back; every broken line is named; garbage never crashes the reader."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.formats.ctm import TimedWord, UtterancePosition, read_ctm, write_ctm

milliseconds = st.integers(0, 10**7).map(lambda n: n / 1000)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1).filter(
    lambda name: (
        name.split() == [name]
        and not name.startswith(";;")
        and name.upper() not in ("<ALT>", "<ALT_BEGIN>", "<ALT_END>")
    )
)
timed = st.builds(
    TimedWord, names, milliseconds, milliseconds, st.none() | st.integers(0, 10**4).map(lambda n: n / 1e4)
)


def test_words_are_sorted_by_file_channel_and_time(tmp_path: Path) -> None:
    write_ctm(
        tmp_path / "hyp.ctm",
        {"u2": [TimedWord("LATER", 0.5, 0.25, 0.75)], "u1": [TimedWord("SOONER", 0.0, 0.1)]},
        {"u2": UtterancePosition("sw1", "A", 10.0), "u1": UtterancePosition("sw1", "A", 2.0)},
    )
    assert (tmp_path / "hyp.ctm").read_text() == "sw1 A 2.000 0.100 SOONER\nsw1 A 10.500 0.250 LATER 0.7500\n"


def test_an_utterance_without_a_place_is_its_own_file(tmp_path: Path) -> None:
    write_ctm(tmp_path / "hyp.ctm", {"u1": [TimedWord("A", 0.0, 0.1)]})
    assert read_ctm(tmp_path / "hyp.ctm") == {("u1", "1"): [TimedWord("A", 0.0, 0.1)]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(names, st.lists(timed, min_size=1, max_size=5), max_size=3))
def test_round_trip(tmp_path: Path, utterances: dict[str, list[TimedWord]]) -> None:
    write_ctm(tmp_path / "hyp.ctm", utterances)
    expected = {(name, "1"): sorted(words, key=lambda word: word.start) for name, words in utterances.items()}
    assert read_ctm(tmp_path / "hyp.ctm") == expected


def test_comments_blank_lines_and_missing_confidences(tmp_path: Path) -> None:
    (tmp_path / "hyp.ctm").write_text(";; a comment\n\nf 1 0 1 WORD NA\r\nf 1 1 1 ;;WORD 0.5\n")
    assert read_ctm(tmp_path / "hyp.ctm") == {("f", "1"): [TimedWord("WORD", 0, 1), TimedWord(";;WORD", 1, 1, 0.5)]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("f 1 0 1", "expected `file channel start duration word"),
        ("f 1 0 1 W 0.5 more", "expected `file channel start duration word"),
        ("f 1 x 1 W", "the start is 'x'"),
        ("f 1 0 -1 W", "the duration is '-1'"),
        ("f 1 nan 1 W", "the start is 'nan'"),
        ("f 1 0 inf W", "the duration is 'inf'"),
        ("f 1 0 1 W high", "the confidence is 'high'"),
        ("f 1 * * <ALT_BEGIN>", "the alternatives that begin here are not closed"),
        ("f 1 * * <ALT_BEGIN>\nf 2 0 1 W", "the alternatives that begin here are not closed"),
        ("f 1 * * <ALT>", "<ALT> stands where no alternatives can go on"),
        ("f 1 * * <alt_end>", "<alt_end> stands where no alternatives can end"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "hyp.ctm").write_text(f"f 1 0 1 W\n{line}\n")
    with pytest.raises(UserError, match=rf"hyp\.ctm:2: {message}"):
        read_ctm(tmp_path / "hyp.ctm")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (TimedWord("TWO WORDS", 0, 1), "u: 'TWO WORDS' must be one word"),
        (TimedWord("", 0, 1), "u: '' must be one word"),
        (TimedWord("<Alt>", 0, 1), "u: the word '<Alt>' would be read as the mark"),
        (TimedWord("W", -1, 1), "u: W lasts 1 s from -1"),
        (TimedWord("W", 0, float("nan")), "u: W lasts nan s"),
        (TimedWord("W", 0, 1, 1.5), "u: the confidence of W is 1.5"),
    ],
)
def test_what_cannot_be_read_is_not_written(tmp_path: Path, word: TimedWord, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_ctm(tmp_path / "hyp.ctm", {"u": [word]})
    assert not (tmp_path / "hyp.ctm").exists()


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"hyp\.ctm: no such file"):
        read_ctm(tmp_path / "hyp.ctm")
    (tmp_path / "hyp.ctm").write_bytes(b"f 1 0 1 \xff\n")
    with pytest.raises(UserError, match=r"hyp\.ctm:1: not UTF-8 text .byte 0xff"):
        read_ctm(tmp_path / "hyp.ctm")


def test_alternatives(tmp_path: Path) -> None:
    """One word with marks, when the word with the latest midpoint is said; an empty alternative is no word."""
    path = tmp_path / "hyp.ctm"
    lines = ["1 0.2 SO 0.5", "* * <ALT_BEGIN>", "2 0.2 HE 0.5", "2.2 0.2 IS", "* * <ALT>", "2 0.3 HE'S", "* * <alt>"]
    path.write_text("".join(f"f A {line}\n" for line in [*lines, "* * <ALT_END>", "1.5 0.2 LATE"]))
    assert read_ctm(path) == {
        ("f", "A"): [
            TimedWord("SO", 1, 0.2, 0.5),
            TimedWord("LATE", 1.5, 0.2),
            TimedWord("{ HE IS / HE'S / @ }", 2.2, 0.2),
        ]
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("<ALT_BEGIN> <ALT_BEGIN>", "2: <ALT_BEGIN> stands where no alternatives can begin"),
        ("<ALT_BEGIN> <ALT_END>", "2: there is no word among these alternatives"),
        ("<ALT_BEGIN> <ALT_END> <ALT_END>", "2: there is no word"),
    ],
)
def test_alternatives_that_do_not_fit(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "hyp.ctm").write_text("".join(f"f A * * {mark}\n" for mark in lines.split()))
    with pytest.raises(UserError, match=rf"hyp\.ctm:{message}"):
        read_ctm(tmp_path / "hyp.ctm")
