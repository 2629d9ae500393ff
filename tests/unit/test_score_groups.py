"""Word errors by speaker and subset, and the table that sclite prints."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import ErrorCounts, Score, score
from roundelay_speech.scoring.alignment.groups import (
    Group,
    by_gender,
    by_map,
    by_speaker,
    by_subset,
    group_of,
    sclite_table,
)
from roundelay_speech.scoring.normalise import read_groups, write_groups
from roundelay_speech.scoring.output import OutputOptions, describe, frequent_errors

REFS = {"s1-u1": "A B C", "s1-u2": "D E", "s2-u1": "F G H I J"}
HYPS = {"s1-u1": "A B C", "s1-u2": "D X E", "s2-u1": "F I K"}
GROUPS = {"s1-u1": Group("s1", "swb"), "s1-u2": Group("s1", "callhm"), "s2-u1": Group("s2", "callhm")}


@pytest.fixture
def result() -> Score:
    refs, hyps = ({name: text.split() for name, text in side.items()} for side in (REFS, HYPS))
    return score(refs, hyps)


def test_parts_add_up(result: Score) -> None:
    speakers, subsets = by_speaker(result, {}), by_subset(result, GROUPS)
    assert {name: part.errors for name, part in speakers.items()} == {
        "s1": ErrorCounts(1, 0, 0, 5),
        "s2": ErrorCounts(0, 2, 1, 5),
    }
    assert list(subsets) == ["callhm", "swb"]
    for parts in (speakers, subsets):
        assert sum((part.errors for part in parts.values()), ErrorCounts()) == result.errors


def test_no_subsets_and_some(result: Score) -> None:
    assert by_subset(result, {}) == {}
    some = by_subset(result, {"s1-u1": Group("s1", "swb")})
    assert [len(part.utterances) for part in some.values()] == [1, 2]
    assert list(some) == ["swb", "no subset"]


def test_women_and_men(result: Score) -> None:
    known = {name: Group(group.speaker, gender="Female") for name, group in GROUPS.items() if group.speaker == "s1"}
    found = by_gender(result, known | {"s2-u1": Group("s2", gender="m")})
    assert {name: part.errors for name, part in found.items()} == {
        "women": ErrorCounts(1, 0, 0, 5),
        "men": ErrorCounts(0, 2, 1, 5),
    }
    assert [(name, len(part.utterances)) for name, part in by_gender(result, known).items()] == [
        ("women", 2),
        ("not said", 1),
    ]
    assert by_gender(result, GROUPS) == {}


def test_groups_of_a_map(result: Score) -> None:
    """An utterance by its whole name or the part behind its speaker's, before its speaker; names in any case."""
    assert list(by_map(result, GROUPS, {"S1": "north", "s2": "south"})) == ["north", "south"]
    found = by_map(result, GROUPS, {"s1": "north", "s1-u2": "south", "u9": "east"})
    assert {name: [u.id for u in part.utterances] for name, part in found.items()} == {
        "north": ["s1-u1"],
        "south": ["s1-u2"],
        "not said": ["s2-u1"],
    }
    assert list(by_map(result, GROUPS, {"u2": "late"})) == ["late", "not said"]
    assert by_map(result, GROUPS, {"s3": "west"}) == {}


@pytest.mark.parametrize(("name", "speaker"), [("s1-u1", "s1"), ("s1_u1", "s1"), ("alone", "alone"), ("-x", "-x")])
def test_the_speaker_of_a_name(name: str, speaker: str) -> None:
    assert group_of(name, {}) == Group(speaker)


def test_the_table(result: Score) -> None:
    """Mean, deviation and median are of the speakers; numbers by hand."""
    rows = [
        line.strip("|").replace("|", " ").split() for line in sclite_table(by_speaker(result, {}), result).splitlines()
    ]
    cells = {row[0]: row[1:] for row in rows if len(row) == 9}
    assert cells["s1"] == ["2", "5", "100.0", "0.0", "0.0", "20.0", "20.0", "50.0"]
    assert cells["s2"] == ["1", "5", "40.0", "20.0", "40.0", "0.0", "60.0", "100.0"]
    assert cells["Sum/Avg"] == ["3", "10", "70.0", "10.0", "20.0", "10.0", "40.0", "66.7"]
    assert cells["Mean"] == ["1.5", "5.0", "70.0", "10.0", "20.0", "10.0", "40.0", "75.0"]
    assert cells["S.D."] == ["0.7", "0.0", "42.4", "14.1", "28.3", "14.1", "28.3", "35.4"]
    assert cells["Median"] == cells["Mean"]


def test_lines_of_the_table_are_equally_long(result: Score) -> None:
    named = {"a very long name of a speaker": result, "b": result}
    for title in ("", "short", "long " * 40):
        assert len({len(line) for line in sclite_table(named, result, title).splitlines()}) == 1


def test_frequent_errors(result: Score) -> None:
    assert frequent_errors(result, 1).splitlines() == [
        "1 substitution:",
        "     1  J -> K",
        "2 deletions:",
        "     1  G",
        "        and 1 more, as rare or rarer",
        "1 insertion:",
        "     1  X",
    ]


def test_subsets_that_are_none(result: Score) -> None:
    with pytest.raises(UserError, match="no utterance has a subset"):
        describe("hyp.trn", result, {}, OutputOptions(subsets=True))


def test_groups_survive_their_file(tmp_path: Path) -> None:
    write_groups(tmp_path / "groups.json", GROUPS)
    assert read_groups(tmp_path / "groups.json") == GROUPS


@pytest.mark.parametrize("text", ["[]", '{"u": 1}', '{"u": {"speaker": 1}}', '{"u": {"speaker": "s", "subset": 2}}'])
def test_groups_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "groups.json").write_text(text)
    with pytest.raises(UserError, match=r"groups\.json.*roundelay decode"):
        read_groups(tmp_path / "groups.json")
