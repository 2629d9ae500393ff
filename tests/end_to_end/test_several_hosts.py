"""`roundelay train` on two hosts, which are two process trees here, started by the variables that torchrun sets."""

import json
import os
import signal
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.records import (
    Evaluation,
    Interrupted,
    LearnersChanged,
    Links,
    Results,
    Segment,
    of_kind,
    read_events,
)
from support.ports import free_port
from support.started import SECRET, SIGNALLED, ends, start, two_hosts, wait_for
from support.until_signalled import LAST


def test_interrupted_on_one_host_and_gone_on_with_on_another_number_of_them(inside: Path) -> None:
    exp = inside / "exp-hosts"
    slow = [f"--straggler={rank}:+0.02" for rank in range(3)]
    common = ["--exp", str(exp), "--strategy", "adpsgd", f"schedule.max_epochs={LAST + 1}"]
    with two_hosts((1, 2), *common, *slow, before=SIGNALLED) as processes:
        wait_for(exp / "checkpoints" / "epoch-0001.json", processes)
        processes[1].send_signal(signal.SIGINT)  # on the host that does not conduct
        statuses, text = ends(processes)
    assert statuses == [130, 130, 130], text
    assert not (exp / Results.FILE).exists()
    assert of_kind(read_events(exp / "events.jsonl"), Interrupted)

    there = start(["roundelay.cli", "train", "recipe.yaml", *common, "--learners", "2"])
    statuses, text = ends([there])
    assert statuses == [0], text
    events = read_events(exp / "events.jsonl")
    assert [(changed.before, changed.after) for changed in of_kind(events, LearnersChanged)] == [(3, 2)]
    links = of_kind(events, Links)
    assert {(link["host"], link["peer"]) for link in links[0].links} == {(0, 1), (1, 0)}
    results = Results.from_json(read_json(exp / Results.FILE))
    assert (results.learners, results.epochs) == (2, 4)
    frames = [segment.frames for segment in of_kind(events, Segment)]
    train = json.loads((exp / "events.jsonl").read_text().splitlines()[0])["train_frames"]
    assert frames[-1] == 4 * train


def test_hosts_start_from_a_first_phase_that_the_first_of_them_has_trained(inside: Path) -> None:
    exp = inside / "hosts-first" / "exp"
    options = ["--exp", str(exp), "--strategy", "bsp", "schedule.max_epochs=1", "init.first.epochs=1"]
    with two_hosts((1, 1), *options) as processes:
        statuses, text = ends(processes)
    assert statuses == [0, 0], text
    (phase,) = (exp.parent / "first").iterdir()
    end = Results.from_json(read_json(phase / Results.FILE))
    assert str(phase) in Results.from_json(read_json(exp / Results.FILE)).started_from
    before = of_kind(read_events(exp / "events.jsonl"), Evaluation)[0]
    assert before.cross_entropy == pytest.approx(end.frame_cross_entropy["dev"])


def test_torchrun_starts_nodes_that_are_hosts_and_one_host_repeats_what_they_did(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp, port = inside / "exp-torchrun", free_port()
    command = [
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(port),
    ]
    train = ["-m", "roundelay.cli", "train", "recipe.yaml", "--exp", str(exp), "--strategy", "hadpsgd", "--record"]
    nodes = [start([*command, "--node-rank", str(node), *train, "schedule.max_epochs=1"]) for node in range(2)]
    try:
        statuses, text = ends(nodes)
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
            node.communicate()
    assert statuses == [0, 0], text
    results = Results.from_json(read_json(exp / Results.FILE))
    assert (results.learners, results.label) == (4, "hadpsgd random-ring nodes of 2")
    assert main(["replay", str(exp)]) == 0
    assert "repeated to the same weights, bit for bit" in " ".join(capsys.readouterr().out.split())


def test_hosts_that_disagree_say_in_what(inside: Path) -> None:
    port, processes = free_port(), []
    for rank, rate in enumerate(("0.05", "0.06")):
        processes.append(
            start(
                [
                    "roundelay.cli",
                    "train",
                    "recipe.yaml",
                    "--exp",
                    str(inside / f"exp-differ-{rank}"),
                    "--strategy",
                    "adpsgd",
                    f"schedule.learning_rate={rate}",
                ],
                WORLD_SIZE=2,
                RANK=rank,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
        )
    statuses, text = ends(processes)
    assert statuses == [2, 2], text
    what = "recipe.schedule.learning_rate is 0.05 on the host of learner 0 and 0.06 on the host of learner 1"
    assert text.count(what) == 2, text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategy", "ssgd", "--on-death", "shrink"], "on several hosts the death of a learner ends the run"),
        (["--strategy", "bmuf,quorum=2", "--record"], "it gathers a quorum between them"),
        (["--strategy", "ssgd", "--record", "--wire", "bf16"], "leave wire and means between hosts out, or record"),
        (["--strategy", "adpsgd", "--runtime", "sim"], "hosts train together on procs"),
        (["--strategy", "hadpsgd,node_size=2"], "a node must be on one host"),
        (["--strategy", "adpsgd", "--learners", "5"], "WORLD_SIZE is 2: leave --learners out"),
        (["--strategy", "bsp", "--wire", "int8"], "training.wire is int8, but bsp period 5 sends no rows"),
        (["--strategy", "sgd"], "strategy sgd is for one learner"),
    ],
)
def test_what_cannot_be_done_on_several_hosts_is_refused(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    world = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **SECRET}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "recipe.yaml", "--exp", str(inside / "exp-refused"), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
