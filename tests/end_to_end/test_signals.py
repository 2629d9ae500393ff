"""Schedulers end a training by signals, often sent to all its processes at once."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from roundelay.checkpoint import checkpoints
from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.live import INTERRUPTED, read_live
from roundelay.core.records import (
    CheckpointDamaged,
    CheckpointWritten,
    Interrupted,
    LearnerLost,
    Results,
    RunStarted,
    Segment,
    of_kind,
    read_events,
)
from roundelay_speech.features.partial import Partial
from support.started import SIGNALLED, ends, start, two_hosts, wait_for
from support.until_signalled import LAST

EPOCHS = f"schedule.max_epochs={LAST + 1}"


def options(exp: Path, strategy: str, learners: int) -> list[str]:
    slow = [f"--straggler={rank}:+0.02" for rank in range(learners)]
    return ["--exp", str(exp), "--strategy", strategy, EPOCHS, *slow]


@pytest.mark.parametrize(
    ("number", "strategy", "to_all"),
    [(signal.SIGTERM, "adpsgd", True), (signal.SIGTERM, "ssgd", False), (signal.SIGUSR1, "adpsgd", True)],
)
def test_a_schedulers_signal_ends_a_run_with_a_checkpoint(
    number: signal.Signals, strategy: str, to_all: bool, inside: Path
) -> None:
    exp = inside / f"exp-{number.name}-{strategy}"
    command = ["roundelay.cli", "train", "recipe.yaml", *options(exp, strategy, 2), "--learners", "2"]
    process = start([*SIGNALLED, *command])
    try:
        wait_for(exp / "checkpoints" / "epoch-0001.json", [process])
        if to_all:  # Slurm and systemd do; learners and their fork server leave it to the process that leads
            for _ in range(3):
                os.killpg(process.pid, number)
                time.sleep(0.01)
        else:  # and again, as launchers do, also when the run is over
            while process.poll() is None:
                process.send_signal(number)
                time.sleep(0.01)
        (status,), text = ends([process])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert status == 128 + number, text
    assert "resource_tracker" not in text
    assert f"stopping at the next round ({number.name})" in text
    events = read_events(exp / "events.jsonl")
    assert [record.why for record in of_kind(events, Interrupted)] == [number.name]
    assert not of_kind(events, LearnerLost)
    live = read_live(exp)
    assert live is not None
    assert live.doing == INTERRUPTED
    assert main(command[1:]) == 0
    segments = of_kind(read_events(exp / "events.jsonl"), Segment)
    assert sum(sum(segment.learner_frames) for segment in segments) == segments[-1].frames
    assert Results.from_json(read_json(exp / Results.FILE)).epochs == 4


@pytest.mark.parametrize("which", [0, 1], ids=["on the first host", "on the other"])
def test_a_signal_on_any_host_ends_the_run_on_all_with_its_status(which: int, inside: Path) -> None:
    exp = inside / f"exp-hosts-{which}"
    with two_hosts((1, 2), *options(exp, "adpsgd", 3), before=SIGNALLED) as processes:
        wait_for(exp / "checkpoints" / "epoch-0001.json", processes)
        processes[which].send_signal(signal.SIGTERM)
        statuses, text = ends(processes)
    assert statuses == [143, 143, 143], text
    assert [record.why for record in of_kind(read_events(exp / "events.jsonl"), Interrupted)] == ["SIGTERM"]
    if not which:
        return
    newest = checkpoints(exp / "checkpoints")[-1]  # damaged, all hosts go back to the one before
    newest.with_suffix(".safetensors").write_bytes(b"")
    with two_hosts((1, 2), *options(exp, "adpsgd", 3)) as processes:
        statuses, text = ends(processes)
    assert statuses == [0, 0, 0], text
    events = read_events(exp / "events.jsonl")
    assert [record.file for record in of_kind(events, CheckpointDamaged)] == [f"checkpoints/{newest.name}"]
    segments = of_kind(events, Segment)
    trained = of_kind(events, RunStarted)[0].train_frames
    for epoch in range(4):
        assert sum(sum(one.learner_frames) for one in segments if one.epoch == epoch) == trained


def test_a_signal_to_torchrun_ends_its_run_with_a_checkpoint(inside: Path) -> None:
    exp = inside / "exp-torchrun-signal"
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *SIGNALLED]
    node = start([*launch, "roundelay.cli", "train", "recipe.yaml", *options(exp, "adpsgd", 2)])
    try:
        wait_for(exp / "checkpoints" / "epoch-0001.json", [node])
        node.send_signal(signal.SIGTERM)
        _, text = ends([node])
    finally:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
    assert [record.why for record in of_kind(read_events(exp / "events.jsonl"), Interrupted)] == ["SIGTERM"], text
    assert not of_kind(read_events(exp / "events.jsonl"), LearnerLost)


def test_a_signal_before_training_begins_ends_a_host_that_waits_for_others_at_once(inside: Path) -> None:
    exp = inside / "exp-alone"
    with two_hosts((1, 1), *options(exp, "adpsgd", 2)) as processes:
        processes[1].send_signal(signal.SIGKILL)  # so the first waits, for training.patience_seconds
        wait_for(exp / "recipe.yaml", processes[:1])
        processes[0].send_signal(signal.SIGTERM)
        text = processes[0].communicate(timeout=60)[0]
        assert processes[0].returncode == 143, text
        assert "ended by SIGTERM before training began" in text


@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
def test_checkpoints_inside_epochs_on_two_hosts_change_nothing(strategy: str, inside: Path) -> None:
    exp, once = inside / f"exp-often-{strategy}", inside / f"exp-once-{strategy}"
    common = ["--strategy", strategy, "schedule.max_epochs=2"]
    slow = [f"--straggler={rank}:+0.02" for rank in range(2)]
    with two_hosts((1, 1), "--exp", str(exp), *common, *slow, "training.checkpoint_minutes=0.001") as processes:
        statuses, text = ends(processes)
    assert statuses == [0, 0], text
    events = read_events(exp / "events.jsonl")
    assert sum("-at-" in one.file for one in of_kind(events, CheckpointWritten)) >= 2, "else this shows nothing"
    assert of_kind(events, Segment)[-1].frames == 2 * of_kind(events, RunStarted)[0].train_frames
    if strategy == "ssgd":
        assert main(["train", "recipe.yaml", "--exp", str(once), *common, "--learners", "2"]) == 0
        results = [Results.from_json(read_json(folder / Results.FILE)) for folder in (exp, once)]
        assert results[0].frame_cross_entropy == results[1].frame_cross_entropy


def signalled(command: list[str], file: Path, number: signal.Signals, *, to_all: bool) -> tuple[int, str]:
    """Status and output of a command that has the signal as soon as a file is there."""
    process = start([*SIGNALLED, "roundelay.cli", *command])
    try:
        wait_for(file, [process])
        if to_all:  # as the terminal and `timeout` do
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        (status,), text = ends([process])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return status, text


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)])
def test_a_signal_to_align_keeps_its_passes(number: signal.Signals, to_all: bool, inside: Path) -> None:
    out = inside / f"alignment-{number.name}-{to_all}"
    command = ["align", "recipe.yaml", f"alignment={out}", "align.mono_passes=12", "align.tri_passes=12"]
    status, text = signalled(command, out / "unfinished/state.json", number, to_all=to_all)
    assert status == 128 + number, text
    assert re.search(
        rf"roundelay: (interrupted|ended by SIGTERM); everything up to pass \d+ of 12 of (mono|tri)phones is in "
        rf"{re.escape(str(out))}\. The same command goes on from there\.",
        " ".join(text.split()),
    )
    assert "Traceback" not in text
    assert "resource_tracker" not in text
    assert list(out.glob(".aligning-*")) == []
    if not to_all:
        assert main(command) == 0
        assert (out / "align.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_prepare_says_what_is_kept(
    number: signal.Signals,
    inside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add = Partial.add

    def add_some(self: Partial, *given: Any) -> None:
        if len(self.entries) == 5:
            os.kill(os.getpid(), number)
        add(self, *given)

    source, data = inside / "source", tmp_path / "data"
    command = ["prepare", "kaldi", "--source", str(source), "--lexicon", str(source / "dict.txt"), "--data", str(data)]
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "add", add_some)
        assert main([*command, "--workers", "1"]) == 128 + number
    told = " ".join(capsys.readouterr().err.split())
    assert f"; what is finished, with the features of 5 utterances, is in {data}. The same command goes on" in told
    with monkeypatch.context() as patch:
        done: list[str] = []

        def add_and_note(self: Partial, name: str, *rest: Any) -> None:
            done.append(name)
            add(self, name, *rest)

        patch.setattr(Partial, "add", add_and_note)
        assert main(command) == 0
    assert len(done) == 75
