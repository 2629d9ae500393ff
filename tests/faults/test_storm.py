"""`roundelay storm` on two hosts, whole: both runs train every frame, whatever happened, and nothing is left."""

import os
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.records import Segment, of_kind, read_events
from roundelay_lab.namespaces.hosts import why_not
from support.beeps import prepare_beeps

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(400)]


def test_a_run_in_a_storm_trains_every_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_beeps(tmp_path, schedule={"learning_rate": 0.02, "max_epochs": 2}, training={"host_patience": 30.0})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(main.__code__.co_filename).parents[1])]))
    storm = ["storm", "recipe.yaml", "--out", "stormy", "--strategy", "adpsgd", "--faults", "kill", "stop"]
    command = [*storm, "--every", "0.2", "--lasting", "0.3", "--pace", "0.02", "--most", "3"]  # the last at 0.7 of 4 s
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "of the frames that count a second without faults" in said
    result = read_json(Path("stormy/storm-result.json"))
    assert result["faults"] >= 1
    assert result["frames_seen"][0] == result["frames_seen"][1]
    assert result["left"] == 0
    assert 1.0 <= result["learners_alive"] <= 2.0
    assert all(1.0 <= one <= 2.0 for one in result["participation"])
    assert result["hosts_lost"] == 0
    assert result["faults"] <= result["faults_drawn"] == 3
    low, high = result["share_range"]
    assert low <= result["share"] <= high
    for name in ("undisturbed", "storm", "undisturbed-after"):
        segments = of_kind(read_events(Path("stormy") / name / "events.jsonl"), Segment)
        epochs = [sum(sum(s.learner_frames) for s in segments if s.epoch == epoch) for epoch in range(2)]
        assert len(set(epochs)) == 1
    assert Path("stormy/storm.html").read_text().count("<svg") == 1
    before = Path("stormy/storm.json").stat().st_mtime_ns
    assert main(command) == 0  # nothing is run again
    assert Path("stormy/storm.json").stat().st_mtime_ns == before
    assert main([*storm, "--every", "2"]) == 2  # another command in the same folder
    assert "of another command" in capsys.readouterr().err
