"""The manifest: what is written is read, and whatever is wrong is told at once, with file:line."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.data.manifest import Utterance, read_manifest, write_manifest
from support.corpora import NAMES, utterance
from support.said import refusal

WORDS = st.lists(NAMES, min_size=1, max_size=4).map(" ".join)


@st.composite
def utterances(draw: st.DrawFn) -> Utterance:
    """Any sound utterance."""
    rate = draw(st.sampled_from([8000, 16000, 22050, 44100]))
    start, samples = draw(st.integers(0, 10**8)), draw(st.integers(1, 10**7))
    return Utterance(
        id=draw(NAMES),
        recording_id=draw(NAMES),
        path=draw(NAMES) + ".wav",
        start=start / rate,
        duration=samples / rate,
        channel=draw(st.integers(0, 3)),
        sampling_rate=rate,
        num_samples=samples,
        speaker=draw(NAMES),
        text=draw(WORDS),
        gender=draw(st.none() | NAMES),
        language=draw(st.none() | NAMES),
    )


@given(some=st.lists(utterances(), max_size=4, unique_by=lambda u: u.id))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, some: list[Utterance]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.jsonl"
    write_manifest(path, some)
    assert read_manifest(path) == some


def test_one_line_each_with_lhotse_names(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [utterance("a-1", "a.wav"), utterance("a-2", "b.wav", text="NO GO")])
    first, second = (json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines())
    names = "id recording_id path start duration channel sampling_rate num_samples speaker text gender language subset"
    assert set(first) == set(names.split())
    assert (second["id"], second["text"]) == ("a-2", "NO GO")


def test_unknown_fields_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    record = dataclasses.asdict(utterance("a-1", "a.wav")) | {"custom": {"x": 1}, "start": 0}
    del record["gender"]
    (tmp_path / "m.jsonl").write_text("\n" + json.dumps(record) + "\n\n")
    (read,) = read_manifest(tmp_path / "m.jsonl")
    assert read == utterance("a-1", "a.wav")
    assert isinstance(read.start, float)


def test_line_separators_of_unicode_do_not_end_a_line(tmp_path: Path) -> None:
    record = json.dumps(dataclasses.asdict(utterance("a-1", "a\u2028b.wav")), ensure_ascii=False)
    (tmp_path / "m.jsonl").write_text(record + "\n", encoding="utf-8")
    assert read_manifest(tmp_path / "m.jsonl")[0].path == "a\u2028b.wav"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", "", "`id` is ''"),
        ("id", "two words", "must be one word"),
        ("id", 7, "`id` is 7, not text"),
        ("speaker", None, "`speaker` is null, not text"),
        ("start", -0.5, "`start` is -0.5: it must be 0 or more seconds"),
        ("start", "0", '`start` is "0", not a number'),
        ("duration", 0.0, "`duration` is 0.0: it must be more than 0 seconds"),
        ("duration", float("nan"), "`duration` is nan"),
        ("duration", 0.6, "`duration` 0.6 s at 8000 Hz is not `num_samples` 4000"),
        ("channel", True, "`channel` is true, not a whole number"),
        ("channel", -1, "`channel` is -1"),
        ("sampling_rate", 8000.5, "`sampling_rate` is 8000.5, not a whole number"),
        ("num_samples", 0, "`num_samples` is 0"),
        ("text", " \t", "a-1 has an empty transcript"),
        ("path", "", "`path` is ''"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = tmp_path / "m.jsonl"
    good, bad = dataclasses.asdict(utterance("a-0", "a.wav")), dataclasses.asdict(utterance("a-1", "a.wav"))
    path.write_text(json.dumps(good) + "\n" + json.dumps(bad | {field: value}) + "\n")
    said = refusal(read_manifest, path)
    assert f"{path}:2: " in said
    assert message in said
    assert f"{path}:1:" not in said


def test_everything_wrong_is_listed_together(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    record = dataclasses.asdict(utterance("a-1", "a.wav"))
    empty = [json.dumps(record | {"id": f"e-{i}", "text": ""}) for i in range(3)]
    del record["speaker"]
    path.write_text("\n".join([*empty, "{", "[1]", json.dumps(record)]) + "\n")
    lines = refusal(read_manifest, path).splitlines()
    assert "6 faults" in lines[0]
    expected = ["e-0 has an empty", "e-1 has an empty", "e-2 has an empty", "not valid JSON", "not a JSON", "`speaker`"]
    for number, (line, what) in enumerate(zip(lines[1:], expected, strict=True), 1):
        assert f"{path}:{number}:" in line
        assert what in line


def test_repeated_ids(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    line = json.dumps(dataclasses.asdict(utterance("a-1", "a.wav")))
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(UserError, match=r"m\.jsonl:2: the id a-1 is already on line 1"):
        read_manifest(path)
    with pytest.raises(UserError, match="a-1: the id occurs more than once"):
        write_manifest(path, [utterance("a-1", "a.wav")] * 2)


def test_a_missing_or_binary_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl: no such file.*roundelay prepare"):
        read_manifest(tmp_path / "none.jsonl")
    (tmp_path / "m.jsonl").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="not UTF-8"):
        read_manifest(tmp_path / "m.jsonl")
