"""TextGrids: both forms as Praat writes them, written by hand here; faults with their lines."""

from pathlib import Path

import pytest

from roundelay_speech.hmm.formats.textgrid import Interval, TextGrid, Tier, read_textgrid, without_gaps, write_textgrid
from support.said import refusal

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.5
tiers? <exists>
size = 3
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1.5
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 0.5
            text = ""
        intervals [2]:
            xmin = 0.5
            xmax = 1.5
            text = "say ""no"" 3 times"
    item [2]:
        class = "TextTier"
        name = "bells"
        xmin = 0
        xmax = 1.5
        points: size = 1
        points [1]:
            number = 0.7
            mark = "ding"
    item [3]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1.5
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 1.5
            text = "N"
"""
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
1.5
<exists>
3
"IntervalTier"
"words"
0
1.5
2
0
0.5
""
0.5
1.5
"say ""no"" 3 times"
"TextTier"
"bells"
0
1.5
1
0.7
"ding"
"IntervalTier"
"phones"
0
1.5
1
0
1.5
"N"
"""
WORDS = Tier("words", (Interval(0, 0.5, ""), Interval(0.5, 1.5, 'say "no" 3 times')))
GRID = TextGrid(0, 1.5, (WORDS, Tier("phones", (Interval(0, 1.5, "N"),))))


@pytest.mark.parametrize("text", [LONG, SHORT])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_both_forms_say_the_same(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "a.TextGrid").write_text(text, encoding=encoding)
    assert read_textgrid(tmp_path / "a.TextGrid") == GRID


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_textgrid(tmp_path / "a.TextGrid", GRID)
    assert read_textgrid(tmp_path / "a.TextGrid") == GRID


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"TextGrid"', '"Pitch"', ":2: not a TextGrid"),
        ("xmax = 0.5", "xmax = x", ":18: expected an interval's end, found ''"),
        ("size = 2", "size = 2000", ":14: expected the number of a tier's intervals, not more than the file has left"),
        ("xmin = 0.5", "xmin = 0.6", ":22: interval 2 from 0.6 to 1.5 s does not follow the one before"),
        ('"TextTier"', '"Spline"', ":24: a tier of the unknown class 'Spline'"),
        ('"N"', '"N', "a text without its closing quote"),
        ("<exists>", "<absent>", ":6: a TextGrid without tiers"),
    ],
)
def test_faults_are_named_with_their_lines(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in LONG
    path = tmp_path / "a.TextGrid"
    path.write_text(LONG.replace(before, after, 1))
    said = refusal(read_textgrid, path)
    assert f"{path}" in said
    assert message in said


def test_gaps_become_empty_intervals() -> None:
    found = without_gaps([Interval(1, 2, "a"), Interval(2.5, 4, "b")], 0.5, 3.0)
    assert found == [Interval(0.5, 1, ""), Interval(1, 2, "a"), Interval(2, 2.5, ""), Interval(2.5, 3.0, "b")]
    assert without_gaps([], 0, 1) == [Interval(0, 1, "")]
