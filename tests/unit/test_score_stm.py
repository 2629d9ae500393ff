"""STM files and the cutting of recognised words at their segments."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import ErrorCounts
from roundelay_speech.scoring.alignment.groups import Group
from roundelay_speech.scoring.formats.ctm import TimedWord
from roundelay_speech.scoring.formats.stm import StmSegment, cut_at_segments, read_stm, write_stm
from roundelay_speech.scoring.normalise import Rules, case_of_times

names = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters=";<{}()/,>"), min_size=1)
labels = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters=",<>"), min_size=1)
times = st.integers(0, 10**6).map(lambda n: n / 1000)


@st.composite
def some_segments(draw: st.DrawFn) -> StmSegment:
    start, end = sorted((draw(times), draw(times)))
    return StmSegment(
        draw(names),
        draw(names),
        draw(names),
        start,
        end,
        tuple(draw(st.lists(names, max_size=4))),
        tuple(draw(st.lists(labels, max_size=3))),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(some_segments(), max_size=5))
def test_round_trip(tmp_path: Path, segments: list[StmSegment]) -> None:
    write_stm(tmp_path / "ref.stm", segments)
    assert read_stm(tmp_path / "ref.stm") == sorted(segments, key=lambda s: (s.file, s.channel, s.start, s.end))


def test_a_file_as_one_writes_it(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(
        ';; LABEL "swb" "Switchboard" ""\n'
        "sw1 A anna 0.5 2.25 <O,Swb,F> (%HESITATION) { HE IS / HE'S } here\n"
        "\n"
        "sw1 A anna 2.25 3 IGNORE_TIME_SEGMENT_IN_SCORING\n"
        "sw1 A inter_segment_gap 3 4\n"
    )
    first, second, third = read_stm(tmp_path / "ref.stm")
    words = ("(%HESITATION)", "{", "HE", "IS", "/", "HE'S", "}", "here")
    assert first == StmSegment("sw1", "A", "anna", 0.5, 2.25, words, ("O", "Swb", "F"))
    assert first.subset == "Swb"
    assert not first.ignored
    assert second.ignored
    assert second.subset is None
    assert third.words == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("f A s 1", "expected `file channel speaker begin end"),
        ("f A s one 2 W", "the begin is 'one'"),
        ("f A s 1 inf W", "the end is 'inf'"),
        ("f A s 3 2 W", "the segment ends at 2.0 s, before it begins at 3.0 s"),
        ("f A s 1 2 <o,swb W", "the labels .* are not closed"),
        ("f A s 1 2 { W / V", "a '{' is not closed in"),
        ("f A s 1 2 W )", r"a '\)' closes nothing in"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "ref.stm").write_text(f"f A s 0 1 <o> W\n{line}\n")
    with pytest.raises(UserError, match=rf"ref\.stm:2: {message}"):
        read_stm(tmp_path / "ref.stm")


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (StmSegment("f", "A", "two names", 0, 1, ()), "'two names' must be one word"),
        (StmSegment("f", "A", "s", 0, 1, ("",)), "'' must be one word"),
        (StmSegment("f", "A", "s", 2, 1, ()), r"it ends at 1 s"),
        (StmSegment("f", "A", "s", 0, float("nan"), ()), r"it ends at nan s"),
        (StmSegment("f", "A", "s", 0, 1, (), ("a,b",)), "the label 'a,b'"),
        (StmSegment("f", "A", "s", 0, 1, ("<unk>",)), "'<unk>' would be read as labels"),
    ],
)
def test_what_cannot_be_read_is_not_written(tmp_path: Path, segment: StmSegment, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_stm(tmp_path / "ref.stm", [segment])


def test_words_belong_where_their_midpoint_is() -> None:
    """The first segment that ends after it; the last takes what comes after; ignored time swallows its words."""
    segments = [
        StmSegment("f", "A", "anna", 1.0, 2.0, ("A",)),
        StmSegment("f", "A", "bert", 3.0, 5.0, ("B",)),
        StmSegment("f", "A", "x", 6.0, 6.5, ("ignore_time_segment_in_scoring",)),
        StmSegment("f", "A", "x", 6.5, 7.0, ("IGNORETIMESEGMENTINSCORING",)),
        StmSegment("f", "A", "anna", 8.0, 10.0, ("C",)),
    ]
    starts = {"before": 0.1, "edge2": 1.9, "gap": 2.3, "edge5": 4.9, "edge7": 6.9, "gap7": 7.3, "edge10": 9.9}
    cut = cut_at_segments(segments, {("f", "A"): [TimedWord(word, start, 0.2) for word, start in starts.items()]})
    assert cut.hyps == {
        "anna-f-A-0001": ["before"],
        "bert-f-A-0002": ["edge2", "gap"],
        "anna-f-A-0005": ["edge7", "gap7", "edge10"],
    }
    assert cut.refs == {"anna-f-A-0001": ["A"], "bert-f-A-0002": ["B"], "anna-f-A-0005": ["C"]}


def test_nothing_is_lost_unless_it_is_ignored() -> None:
    segments = [StmSegment("f", "A", "s", t, t + 2, ("W",)) for t in range(0, 20, 2)]
    words = [TimedWord(f"W{n}", n / 7, 0.1) for n in range(200)]
    cut = cut_at_segments(segments, {("f", "A"): words})
    assert [w for name in cut.refs for w in cut.hyps[name]] == [w.word for w in words]


def test_channels_must_fit() -> None:
    segments = [StmSegment("f", "A", "s", 0, 1, ("W",)), StmSegment("f", "B", "t", 0, 1, ())]
    word = TimedWord("W", 0, 1)
    with pytest.raises(UserError, match="without a segment in the reference: f C"):
        cut_at_segments(segments, {("f", "A"): [word], ("f", "C"): [word]})
    with pytest.raises(UserError, match="1 of 1 channels with speech have no recognised word: f A"):
        cut_at_segments(segments, {})
    assert cut_at_segments(segments, {}, silent=True).hyps == {"s-f-A-0001": [], "t-f-B-0001": []}
    assert cut_at_segments(segments, {("f", "A"): [word]}).hyps["t-f-B-0001"] == []


def test_from_two_files_to_a_score(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(
        "f A anna 0 2 <o,swb> a b c\nf A gap 2 3 <o> \nf A inter_segment_gap 3 4 <o>\nf A bert 4 6 <o,ch> (uh) d\n"
    )
    (tmp_path / "hyp.ctm").write_text("f A 0.1 0.1 a\nf A 0.3 0.1 x\nf A 2.5 0.1 y\nf A 4.5 0.1 d\n")
    case = case_of_times(tmp_path / "ref.stm", tmp_path / "hyp.ctm")
    assert set(case.refs) == {"anna-f-A-0001", "gap-f-A-0002", "bert-f-A-0004"}
    assert case.groups["anna-f-A-0001"] == Group("anna", "swb")
    assert case.score(Rules()).errors == ErrorCounts(1, 1, 1, 5)
