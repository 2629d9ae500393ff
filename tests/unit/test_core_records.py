"""The schema that outlives the process: what is written is what is read, and a kill costs at most the last line."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.records import (
    BY_KIND,
    RECORD_KINDS,
    CheckpointWritten,
    Finished,
    Interrupted,
    Record,
    Results,
    Segment,
    WordErrors,
    from_mapping,
    kind_of,
    of_kind,
    read_events,
    to_line,
)
from support.fake_runs import without_checksum

RECORDS: list[Record] = [
    CheckpointWritten(wall_s=1.5, epoch=0, file="checkpoint-0000.safetensors"),
    Interrupted(wall_s=2.0, epoch=1, frames=1000),
    Finished(wall_s=3.25, virtual_s=9.0, frames=2000, reason="held-out loss fell by less than 0.1 %"),
]


def write_events(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(to_line(record) + "\n" for record in records))
    return path


@given(st.one_of(*(st.builds(cls) for cls in RECORD_KINDS)))
def test_any_record_survives_its_line(record: Record) -> None:
    line = to_line(record)
    assert "\n" not in line
    assert line.isascii()  # so no text inside a record (U+2028, ...) can look like the end of a line
    back = from_mapping(json.loads(line))
    assert type(back) is type(record)
    assert back is not None
    assert to_line(back) == line  # lines, not records, are compared: NaN is not equal to itself


def test_the_line_is_what_people_grep_for() -> None:
    assert to_line(RECORDS[0]) == (
        '{"kind":"checkpoint_written","wall_s":1.5,"virtual_s":null,"epoch":0,"file":"checkpoint-0000.safetensors",'
        '"crc32":"70340e07"}'
    )


def test_kinds_are_distinct_and_in_snake_case() -> None:
    assert len(BY_KIND) == len(RECORD_KINDS)
    assert {kind_of(cls) for cls in RECORD_KINDS} == set(BY_KIND)
    assert kind_of(RECORDS[2]) == "finished"


def test_records_keep_their_order_and_are_chosen_by_kind(tmp_path: Path) -> None:
    records = read_events(write_events(tmp_path / "events.jsonl", RECORDS))
    assert records == RECORDS
    assert of_kind(records, Interrupted) == [RECORDS[1]]
    assert of_kind(records, Segment) == []


def test_wherever_a_kill_cuts_the_file_whole_records_before_it_survive(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.jsonl", RECORDS)
    whole = path.read_bytes()
    ends = [position for position, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert read_events(path) == RECORDS[: sum(end <= cut for end in ends)]


def test_a_newer_version_may_add_kinds_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    newer = {**json.loads(without_checksum(to_line(RECORDS[2]))), "colour": "green"}
    path.write_text(json.dumps({"kind": "teleported", "wall_s": 1.0}) + "\n" + json.dumps(newer) + "\n")
    assert read_events(path) == [RECORDS[2]]


@pytest.mark.parametrize("broken", ["{", '{"kind":"finished"}', '["finished"]', "null"])
def test_a_broken_line_before_the_last_is_named(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f"{to_line(RECORDS[0])}\n{broken}\n{to_line(RECORDS[2])}\n")
    with pytest.raises(UserError, match=r"events\.jsonl:2: damaged, not a record"):
        read_events(path)


def test_no_flipped_bit_passes(tmp_path: Path) -> None:
    """Of every byte of a file of three records: what is read is what was written, or the line is named."""
    path = write_events(tmp_path / "events.jsonl", RECORDS)
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 3):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        line = whole.count(b"\n", 0, place // 8) + 1
        with pytest.raises(UserError, match=rf"events\.jsonl:{line}: damaged"):
            read_events(path)


def test_lines_of_earlier_versions_have_no_checksum_and_are_held_to_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = without_checksum(to_line(RECORDS[0]))
    path.write_text(f"{line}\n{to_line(RECORDS[1])}\n")
    assert read_events(path) == RECORDS[:2]
    path.write_text(line.replace("1.5", '"1.5"') + f"\n{to_line(RECORDS[1])}\n")
    with pytest.raises(
        UserError,
        match=r"events\.jsonl:1: damaged, not a record \(wall_s is '1\.5', a value that this field cannot have",
    ):
        read_events(path)


def test_no_flipped_bit_of_results_passes(tmp_path: Path) -> None:
    RESULTS.write(tmp_path)
    assert Results.read(tmp_path) == RESULTS
    path = tmp_path / Results.FILE
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 7):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(UserError, match=re.escape(str(path))):
            Results.read(tmp_path)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"events\.jsonl: no such file\. Is .* a run directory"):
        read_events(tmp_path / "events.jsonl")
    (tmp_path / "events.jsonl").write_bytes(b"\xff\xfe\n\n")
    with pytest.raises(UserError, match=r"events\.jsonl"):
        read_events(tmp_path / "events.jsonl")


RESULTS = Results(
    name="four",
    strategy="adpsgd",
    label="adpsgd random-ring",
    learners=4,
    runtime="procs",
    corpus="an4",
    seed=1,
    commit="0123abc",
    machine="box",
    parameters=12_500_000,
    minibatch_frames=1024,
    epochs=9,
    frames_seen=3_000_000,
    frame_cross_entropy={"dev": 1.61},
    frame_accuracy={"dev": 0.55},
    wall_seconds=61.5,
    virtual_seconds=None,
    staleness={"mean": 0.9, "largest": 3.0},
    consensus_distance=0.01,
    stopped="newbob",
    wer={"test": WordErrors(wer=5.95, ins=5, del_=9, sub=32, ref=773, utterances=130, acoustic_scale=0.1)},
)


def test_results_survive_json_and_call_deletions_del() -> None:
    value = json.loads(json.dumps(RESULTS.to_json()))
    assert value["wer"]["test"]["del"] == 9
    assert "del_" not in value["wer"]["test"]
    assert Results.from_json(value) == Results.from_json({**value, "colour": "green"}) == RESULTS
    assert RESULTS.wer["test"].del_ == 9  # to_json works on a copy


def test_intervals_and_subsets_survive_json() -> None:
    part = WordErrors(wer=50.0, ins=0, del_=1, sub=0, ref=2, utterances=1, acoustic_scale=0.1)
    whole = dataclasses.replace(RESULTS.wer["test"], interval=[4.4, 7.6], subsets={"swb": part})
    value = json.loads(json.dumps(dataclasses.replace(RESULTS, wer={"test": whole}).to_json()))
    assert value["wer"]["test"]["subsets"]["swb"]["del"] == 1
    assert Results.from_json(value).wer["test"] == whole


def test_word_errors_of_an_older_and_a_newer_version_are_read() -> None:
    older = {"wer": 5.95, "ins": 5, "del": 9, "sub": 32, "ref": 773, "utterances": 130, "acoustic_scale": 0.1}
    assert WordErrors.from_json(older) == WordErrors.from_json({**older, "colour": "green"}) == RESULTS.wer["test"]


def test_results_before_decoding_have_no_word_errors() -> None:
    value = RESULTS.to_json()
    del value["wer"]
    assert Results.from_json(value) == dataclasses.replace(RESULTS, wer={})
