"""Reading run directories: whole, going on, interrupted, killed, resumed, damaged, or no run at all."""

import dataclasses
import json
from pathlib import Path

import pytest

from roundelay.core.checksums import write_checked
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, write_text
from roundelay.core.records import (
    SCHEMA,
    Decoded,
    Evaluation,
    Interrupted,
    Record,
    Results,
    RunStarted,
    Segment,
    Staleness,
    to_line,
)
from roundelay.reports.runs import State, load_run, load_runs
from support.fake_runs import EPOCH_FRAMES, Fake, fake_records, fake_results, without_checksum, write_run
from support.said import refusal


def write_events(folder: Path, records: list[Record]) -> None:
    write_text(folder / "events.jsonl", "".join(to_line(record) + "\n" for record in records))


def test_a_finished_run_says_what_its_results_say(tmp_path: Path) -> None:
    fake = Fake(name="four")
    run = load_run(write_run(tmp_path, fake))
    assert run.state is State.FINISHED
    assert run.stopped == "held-out loss fell by less than 0.1 %"
    assert run.results == fake_results(fake, fake_records(fake))
    assert [s.epoch for s in run.segments] == list(range(9))
    assert [e.epoch for e in run.evaluations] == list(range(-1, 9))
    assert "units: 512" in run.recipe
    assert run.seconds == run.results.wall_seconds


@pytest.mark.parametrize(
    ("end", "state", "stopped"),
    [
        ("interrupted", State.INTERRUPTED, "interrupted in epoch 4"),
        ("killed", State.UNFINISHED, "not finished after epoch 3: still running, or killed"),
        ("no results", State.FINISHED, "held-out loss fell by less than 0.1 %"),
    ],
)
def test_a_run_without_results_says_how_far_it_came(tmp_path: Path, end: str, state: State, stopped: str) -> None:
    fake = Fake(end=end, epochs=3)
    run = load_run(write_run(tmp_path, fake))
    assert (run.state, run.stopped) == (state, stopped)
    whole = fake_results(fake, fake_records(fake))
    assert run.results.frames_seen == 3 * EPOCH_FRAMES
    assert run.results.label == whole.label
    assert run.cross_entropy == whole.frame_cross_entropy["dev"]
    assert run.stale_mean == pytest.approx(whole.staleness["mean"])
    assert run.stale_largest == whole.staleness["largest"]
    assert run.results.wall_seconds == pytest.approx(whole.wall_seconds)


def test_results_alone_are_a_run(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake(end="no events")))
    assert run.state is State.FINISHED
    assert not run.segments
    assert not run.evaluations
    assert run.frames_per_second == pytest.approx(40_000)  # frames seen / seconds: nothing finer is known


def test_a_last_line_cut_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Fake(end="killed", epochs=3))
    with open(folder / "events.jsonl", "a") as file:
        file.write('{"kind":"segment","wall_s":12')
    assert len(load_run(folder).segments) == 3


def test_speed_leaves_evaluation_out(tmp_path: Path) -> None:
    """Two segments of 100 frames, at 10 and at 40 frames per second: 200 frames in 12.5 seconds."""
    fake = Fake(learners=2, epochs=2)
    folder = write_run(tmp_path, fake)
    records = []
    for record in fake_records(fake):
        if isinstance(record, Segment):
            speed = 10.0 if record.epoch == 0 else 40.0
            record = dataclasses.replace(record, learner_frames=[60, 40], frames_per_second=speed)  # noqa: PLW2901
        records.append(record)
    write_events(folder, records)
    assert load_run(folder).frames_per_second == pytest.approx(16.0)


def test_the_parts_of_an_interrupted_epoch_are_one(tmp_path: Path) -> None:
    """100 frames at 10 per second, interrupted, then 300 at 60: 400 in 15 seconds, the loss a mean over frames."""
    fake = Fake(learners=2, epochs=1, end="killed")
    folder = write_run(tmp_path, fake)
    records: list[Record] = []
    for record in fake_records(fake):
        if isinstance(record, Segment):
            parts = [
                dataclasses.replace(record, loss=2.0, learner_frames=[60, 40], frames_per_second=10.0, frames=100),
                dataclasses.replace(record, loss=1.0, learner_frames=[200, 100], frames_per_second=60.0, frames=400),
            ]
            start = fake_records(fake)[0]
            assert isinstance(start, RunStarted)
            records += [parts[0], Interrupted(wall_s=10.0, epoch=0, frames=100)]
            records += [dataclasses.replace(start, resumed=True), parts[1]]
        elif isinstance(record, Staleness):
            records += [
                dataclasses.replace(record, histogram=[3, 1], largest=1, mean=0.25),
                dataclasses.replace(record, histogram=[0, 2, 2], largest=2, mean=1.5),
            ]
        else:
            records.append(record)
    write_events(folder, records)
    run = load_run(folder)
    (segment,) = run.segments
    assert (segment.loss, segment.learner_frames, segment.frames) == (1.25, [260, 140], 400)
    assert segment.frames_per_second == pytest.approx(400 / 15)
    (staleness,) = run.staleness
    assert (staleness.histogram, staleness.largest, staleness.mean) == ([3, 3, 2], 2, 0.875)
    assert run.results.staleness == {"mean": 0.875, "largest": 2.0}
    assert run.results.epochs == 1
    assert run.state is State.UNFINISHED  # it went on after the interruption


def test_a_rejected_epoch_is_not_the_model_kept(tmp_path: Path) -> None:
    fake = Fake(epochs=6, end="killed")  # the sixth epoch of a fake run is rejected
    run = load_run(write_run(tmp_path, fake))
    assert not run.evaluations[-1].accepted
    assert run.cross_entropy == run.evaluations[-2].cross_entropy


def test_simulated_runs_are_timed_in_virtual_seconds(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, Fake(runtime="sim")))
    assert run.simulated
    assert run.seconds == run.results.virtual_seconds != run.results.wall_seconds


def test_decoding_is_read_from_events_until_results_know_it(tmp_path: Path) -> None:
    fake = Fake(decoded=False)
    folder = write_run(tmp_path, fake)
    decoded = Decoded(
        wall_s=999.0,
        split="test",
        wer=10.0,
        errors={"ins": 1, "del": 2, "sub": 7, "ref": 100},
        acoustic_scale=0.1,
        real_time_factor=0.02,
    )
    write_events(folder, [*fake_records(fake), decoded])
    run = load_run(folder)
    errors = run.results.wer["test"]
    assert (errors.ins, errors.del_, errors.sub, errors.ref, errors.wer) == (1, 2, 7, 100, 10.0)
    assert run.state is State.FINISHED
    assert run.seconds < 999  # decoding is no training


def test_another_held_out_split_is_taken_where_there_is_no_dev(tmp_path: Path) -> None:
    fake = Fake(end="killed")
    folder = write_run(tmp_path, fake)
    records = [dataclasses.replace(r, split="val") if isinstance(r, Evaluation) else r for r in fake_records(fake)]
    write_events(folder, records)
    run = load_run(folder)
    assert run.held_out == "val"
    assert run.cross_entropy is not None


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / part, Fake(name="seed1")) for part in ("sgd", "adpsgd")]
    folders.append(write_run(tmp_path, Fake(name="other")))
    assert [run.name for run in load_runs(folders)] == ["sgd/seed1", "adpsgd/seed1", "other"]
    assert load_runs([folders[0], folders[0]])[0].name.endswith("sgd/seed1")  # twice the same: no loop


def test_all_folders_at_fault_are_named_at_once(tmp_path: Path) -> None:
    good = write_run(tmp_path, Fake(name="good"))
    (tmp_path / "empty").mkdir()
    said = refusal(load_runs, [tmp_path / "absent", good, tmp_path / "empty"])
    assert f"{tmp_path / 'absent'}: no such folder" in said
    assert f"{tmp_path / 'empty'}: not a run directory" in said
    assert "good" not in said
    with pytest.raises(UserError, match="No run directory given"):
        load_runs([])


def test_a_run_that_has_recorded_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(UserError, match="nothing recorded yet"):
        load_run(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Fake())
    write_checked(folder / Results.FILE, {**read_json(folder / Results.FILE), "schema": SCHEMA + 1})
    with pytest.raises(UserError, match="newer Roundelay"):
        load_run(folder)


@pytest.mark.parametrize("text", ["[]", '{"name": "x"}', "null", '{"wer": {"test": 5}}', "{"])
def test_damaged_results_are_named(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path, Fake())
    (folder / Results.FILE).write_text(text)
    with pytest.raises(UserError, match=r"results\.json"):
        load_run(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", "one"), ("wall_seconds", "long"), ("frame_cross_entropy", {"dev": []}), ("frame_accuracy", [0.5])],
)
def test_a_field_that_cannot_be_is_named(tmp_path: Path, field: str, value: object) -> None:
    folder = write_run(tmp_path, Fake())
    write_checked(folder / Results.FILE, {**read_json(folder / Results.FILE), field: value})
    with pytest.raises(UserError, match=rf"results\.json: not the results of a run \({field} is "):
        load_run(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "low"},
        {"learner_frames": [1, "two"]},
        {"learner_frames": [10**400]},
        {"frames": 1.5},
        {"virtual_s": "x"},
    ],
)
def test_an_event_that_cannot_be_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    folder = write_run(tmp_path, Fake())
    lines = without_checksum((folder / "events.jsonl").read_text()).splitlines()
    place = next(i for i, line in enumerate(lines) if '"segment"' in line)
    lines[place] = json.dumps({**json.loads(lines[place]), **change})
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=rf"events\.jsonl:{place + 1}: damaged, .*{next(iter(change))} is "):
        load_run(folder)


def test_counts_too_large_for_arithmetic_are_named(tmp_path: Path) -> None:
    """As somebody's editor or a flipped bit may leave them: sums of such exchanges overflow."""
    folder = write_run(tmp_path, Fake())
    lines = [line for line in (folder / "events.jsonl").read_text().splitlines() if '"exchanges"' not in line]
    lines.append(f'{{"kind":"exchanges","wall_s":1.0,"epoch":0,"matrix":[[0,{10**400}],[1,0]]}}')
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=rf"events\.jsonl:{len(lines)}: damaged, .*matrix is "):
        load_run(folder)


def test_a_loss_that_is_no_number_is_null_in_the_file_and_nan_here(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Fake())
    lines = [
        line.replace(json.dumps(json.loads(line)["cross_entropy"]), "null") if '"evaluation"' in line else line
        for line in without_checksum((folder / "events.jsonl").read_text()).splitlines()
    ]
    assert any('null,"accuracy' in line or '"cross_entropy":null' in line for line in lines)
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert any(e.cross_entropy != e.cross_entropy for e in load_run(folder).evaluations)
