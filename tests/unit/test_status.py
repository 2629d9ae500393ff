"""`roundelay status`: what a run directory says of the present."""

import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import roundelay
from roundelay.cli import main
from roundelay.core.errors import UserError
from roundelay.core.live import HostSeen, Live, LostSeen, read_live, started_at, whoami
from roundelay.core.progress import Silent
from roundelay.core.records import LearnerJoined, LearnerLost, Record, RunStarted, to_line
from roundelay.core.slow import Spent, slow
from roundelay.job import Interrupt
from roundelay.learner.quadratic import Quadratic
from roundelay.reports.status import Life, grid_rows, headline, host_rows, learner_rows, read_status
from roundelay.runtime.base import Glance, Lost, Straggler
from roundelay.runtime.clocks import unix_clock
from roundelay.runtime.live import LiveFile
from roundelay.runtime.procs.backend import ArenaBackend
from roundelay.runtime.procs.cluster_rows import glanced_distance
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from roundelay.training import train
from support.clusters import ENDLESS, cluster, plan
from support.fake_runs import Fake, fake_records, write_run
from support.runs import job

NOW = 1_800_000_000.0
ME = Live(
    written_at=NOW - 3,
    **whoami(),
    doing="training",
    epoch=4,
    epoch_frames=70_000,
    epoch_of=280_000,
    learners=3,
    loss=1.5,
    staleness=1.25,
    frames_per_second=12_345.6,
    consensus_distance=0.0042,
    living=[0, 2],
    learner_speed=[6000.0, 0.0, 6345.6],
    learner_idle_s=[0.1, 40.0, 0.3],
    lost=[LostSeen(rank=1, reason="killed by signal 9 (SIGKILL)", replaced=True)],
)


def write(folder: Path, live: Live | None, *records: Record) -> Path:
    """A run directory that says just this."""
    folder.mkdir(exist_ok=True)
    if live is not None:
        (folder / Live.FILE).write_text(json.dumps(live.to_json()))
    if records:
        (folder / "events.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    live = dataclasses.replace(ME, hosts=[HostSeen(name="a", ranks=[0, 1], heard_s=0.5)])
    value = live.to_json() | {"of a later version": 1}
    value["hosts"][0]["of a later version"] = 2
    assert Live.from_json(json.loads(json.dumps(value))) == live
    assert read_live(tmp_path) is None
    (tmp_path / Live.FILE).write_text('{"written_at": 1')
    with pytest.raises(UserError, match=r"live\.json:1:\d+: not valid JSON .*Delete it"):
        read_live(tmp_path)


def test_a_running_run_says_how_far_it_is_and_who_is_lost(tmp_path: Path) -> None:
    start = fake_records(Fake(learners=3))[0]
    found = read_status(write(tmp_path / "exp", ME, start), NOW)
    assert (found.life, found.life.well, found.age_s) == (Life.RUNNING, True, 3.0)
    lines = headline(found)
    assert "training epoch 5, 25 % of 280,000 frames" in lines[0]
    assert "heard 3.0 s ago" in lines[0]
    assert lines[1] == "adpsgd random-ring, 3 learners on procs, seed 1, 1.83M parameters"
    assert lines[2] == "minibatch: 1,024 frames a round (341 a learner)"
    assert lines[3] == "now: 12,346 frames/s, loss 1.500, staleness 1.2, consensus distance 0.0042"
    assert lines[4] == "lost: learner 1, killed by signal 9 (SIGKILL); another is starting"
    columns, rows = learner_rows(found)
    assert columns == ["learner", "state", "frames/s", "last minibatch"]
    assert rows[1] == ("1", "lost", "0", "40.0 s ago")
    assert [row[1] for row in rows] == ["lives", "lost", "lives"]
    assert host_rows(found) == ([], [])


def test_what_is_counted_and_measured_has_its_name(tmp_path: Path) -> None:
    """Nothing is called a frame, and no loss cross-entropy, where utterances are trained by CTC."""
    records = fake_records(Fake(learners=3, examples="utterances", epochs=1))
    write(tmp_path, dataclasses.replace(ME, written_at=NOW, process=os.getpid()), *records)
    status = read_status(tmp_path, NOW)
    lines = " ".join([*headline(status), *learner_rows(status)[0], *grid_rows([status])[0]])
    assert "dev after epoch 1: CTC loss " in lines
    assert "utterances right " in lines
    assert lines.count("utterances/s") == 3
    assert not re.search("frame|cross-entropy|accuracy", lines)


def test_hosts_are_named_where_there_are_several(tmp_path: Path) -> None:
    hosts = [
        HostSeen(name="north", ranks=[0, 1]),
        HostSeen(name="south", ranks=[2], alive=False, heard_s=12.0, sent_bytes=50_000_000),
    ]
    found = read_status(write(tmp_path, dataclasses.replace(ME, hosts=hosts, living=[0, 1])), NOW)
    assert [row[1] for row in learner_rows(found)[1]] == ["north", "north", "south"]
    assert host_rows(found)[1][1] == ("south", "2", "lost", "12.0 s ago", "50.0", "0.0")
    assert [one.rank for one in found.lost] == [2]
    assert len(host_rows(found)[0]) == 6
    hosts[1] = dataclasses.replace(hosts[1], rows="int8, in 4 parts, 0.07 s an exchange")
    columns, rows = host_rows(read_status(write(tmp_path, dataclasses.replace(ME, hosts=hosts)), NOW))
    assert (columns[-1], [row[-1] for row in rows]) == ("rows go as", ["–", "int8, in 4 parts, 0.07 s an exchange"])


ALIKE = Spent(steps=100, computing=30.0, between=1.0)
WAITING = "Its gradient and update take 0.9 s, 3.0 times the others'"


@pytest.mark.parametrize(
    ("changes", "others", "cause"),
    [
        ({"computing": 90.0}, {}, f"0.91 s of its own a step, 2.9 times the others' median. {WAITING}."),
        (
            {"computing": 90.0, "coreless": 50.0},
            {"coreless": 5.0},
            f"{WAITING}: 55% of its time it was ready, and other processes had its cores.",
        ),
        ({"computing": 90.0, "coreless": 50.0}, {"coreless": 30.0}, f"{WAITING}."),
        ({"computing": 90.0}, {"means": 60.0}, f"{WAITING}; the others wait for it in means, 66% of their time."),
        (
            {"computing": 90.0, "means": 9.0, "steps": 100},
            {"meetings": 31.0, "means": 6.2},
            f"{WAITING}; the others wait for it at meetings, 45% of their time.",
        ),
        (
            {"between": 70.0},
            {},
            "It waits for batches, or its loop does other things between steps: 0.7 s, 70% of its time.",
        ),
        ({"exchanges": 31.0}, {}, "It waits for exchanges, whose rows come slowly: 0.31 s, 50% of its time."),
        ({"steps": 30, "computing": 27.0, "between": 0.3}, {}, f"{WAITING}."),
    ],
)
def test_why_a_learner_is_slow(changes: dict[str, Any], others: dict[str, Any], cause: str) -> None:
    """Also where all wait for each other, and none takes fewer steps; a learner without a step is not looked at."""
    other = dataclasses.replace(ALIKE, **others)
    one = dataclasses.replace(ALIKE, **changes)
    said = slow([other, one, other, Spent()])
    assert list(said) == [1]
    assert said[1].startswith("learner 1 is slow: ")
    assert said[1].endswith(cause)
    excess = one.own - one.steps * other.own / other.steps
    assert slow([one, other], excess - 0.1) == {0: said[1].replace("learner 1", "learner 0")}
    assert slow([one, other], excess + 0.1) == {}


def test_learners_that_are_nearly_alike_are_not_called_slow() -> None:
    assert slow([ALIKE, dataclasses.replace(ALIKE, computing=40.0)]) == {}
    assert slow([ALIKE]) == slow([]) == slow([Spent(), ALIKE]) == {}


def test_the_status_says_who_is_slow_and_why(tmp_path: Path) -> None:
    live = dataclasses.replace(ME, spent=[ALIKE, dataclasses.replace(ALIKE, computing=90.0), ALIKE])
    lines = headline(read_status(write(tmp_path, live), NOW))
    assert lines[-1] == f"Learner 1 is slow: 0.91 s of its own a step, 2.9 times the others' median. {WAITING}."


def test_a_process_that_is_gone_left_a_dead_run(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    live = dataclasses.replace(ME, process=process.pid, started=started_at(process.pid))
    write(tmp_path, live)
    lives = read_status(tmp_path, NOW).life
    process.kill()
    process.wait()
    assert (lives, read_status(tmp_path, NOW).life) == (Life.RUNNING, Life.DEAD)
    assert "ended without a word in epoch 5" in headline(read_status(tmp_path, NOW))[0]
    # Another process of the same number is not it.
    write(tmp_path, dataclasses.replace(ME, started=ME.started + 1))
    assert read_status(tmp_path, NOW).life is Life.DEAD


def test_of_another_host_only_silence_can_be_told(tmp_path: Path) -> None:
    write(tmp_path, dataclasses.replace(ME, host=platform.node() + "-other"))
    assert read_status(tmp_path, NOW).life is Life.RUNNING
    assert read_status(tmp_path, NOW + 100).life is Life.SILENT


@pytest.mark.parametrize(
    ("records", "lost"),
    [
        ([], [1]),
        ([LearnerJoined(wall_s=2, rank=1, copied=0)], []),
        ([LearnerJoined(wall_s=2, rank=1, copied=0), LearnerLost(wall_s=3, rank=0, reason="gone")], [0]),
        (fake_records(Fake(epochs=0, end="killed"))[:1], []),
    ],
)
def test_places_are_empty_until_they_are_taken_again(tmp_path: Path, records: list[Record], lost: list[int]) -> None:
    write(tmp_path, None, LearnerLost(wall_s=1, rank=1, reason="killed"), *records)
    found = read_status(tmp_path, NOW)
    assert ([one.rank for one in found.lost], found.life) == (lost, Life.UNKNOWN)


def test_finished_interrupted_and_foreign_directories(tmp_path: Path) -> None:
    assert read_status(write_run(tmp_path, Fake(name="done")), NOW).life is Life.FINISHED
    interrupted = write(tmp_path / "cut", dataclasses.replace(ME, doing="interrupted"))
    assert (read_status(interrupted, NOW).life, Life.INTERRUPTED.well) == (Life.INTERRUPTED, False)
    failed = read_status(write(tmp_path / "failed", dataclasses.replace(ME, doing="failed", why="no disk")), NOW)
    assert headline(failed)[0].endswith("failed in epoch 5: no disk")
    with pytest.raises(UserError, match="not a run directory"):
        read_status(tmp_path, NOW)
    with pytest.raises(UserError, match="no such folder"):
        read_status(tmp_path / "nothing", NOW)


def test_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, dataclasses.replace(ME, written_at=unix_clock()), fake_records(Fake(learners=3))[0])
    assert main(["status", str(tmp_path)]) == 0
    assert "adpsgd random-ring, 3 learners" in capsys.readouterr().out
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["life"] == "running"
    write(tmp_path, dataclasses.replace(ME, doing="failed", why="no disk"))
    assert main(["status", str(tmp_path), "--watch"]) == 1, "a run that does not run is not watched"
    assert main(["status", str(tmp_path / "nothing")]) == 2


def test_a_folder_of_runs_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid"
    (grid / "notes").mkdir(parents=True)
    write_run(grid, Fake(name="done", learners=2))
    assert main(["status", str(grid)]) == 0
    assert "1 run, 1 finished" in " ".join(capsys.readouterr().out.split())
    write(grid / "cut", dataclasses.replace(ME, doing="interrupted"))
    assert main(["status", str(grid)]) == 1, "somebody has to go on with it"
    head, _, *rows = (line.split() for line in capsys.readouterr().out.splitlines() if line.strip())
    assert head[-6:] == ["2", "runs,", "1", "finished,", "1", "interrupted"]
    assert [row[:2] for row in rows] == [["cut", "interrupted"], ["done", "finished"]]
    assert main(["status", str(grid), "--json"]) == 1
    assert [run["life"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["interrupted", "finished"]


# What a training writes -----------------------------------------------------------------------------------------------


def test_a_training_tells_of_itself_while_it_trains_and_is_silent_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundelay.runtime.live.AT_MOST_EVERY", 0.0)
    told: list[Live] = []

    class Curious(Silent):
        def start(self, what: str, total: int | None = None) -> None:
            self.advance()

        def advance(self, n: int = 1, note: str = "") -> None:
            live = read_live(tmp_path / "exp")
            assert live is not None
            told.append(live)

    task = Quadratic(parameters=37, examples=640)
    train(job("adpsgd", task, runtime="procs"), tmp_path / "exp", Curious(), Interrupt())
    assert {live.doing for live in told} == {"starting", "training", "evaluating"}
    assert {(live.learners, live.epoch_of) for live in told} == {(3, 640)}
    assert all(live.process_lives() for live in told)
    assert read_status(tmp_path / "exp", unix_clock()).life is Life.FINISHED
    assert read_live(tmp_path / "exp") is None


def test_how_a_training_ended_stays(tmp_path: Path) -> None:
    interrupt = Interrupt()
    interrupt.asked = True
    assert train(job("adpsgd", Quadratic(examples=640)), tmp_path / "cut", Silent(), interrupt) is None
    assert read_status(tmp_path / "cut", unix_clock()).life is Life.INTERRUPTED
    with pytest.raises(KeyError), LiveFile(tmp_path, 3, 640):
        raise KeyError("row")
    live = read_live(tmp_path)
    assert live is not None
    assert (live.doing, live.why) == ("failed", "'row'")


def test_speed_is_of_late_and_by_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("roundelay.runtime.live.wall_clock", lambda: clock)
    with LiveFile(tmp_path, 2, 1000) as file:
        clock = 10.0
        file.train(0, 100)
        for clock, frames in ((12.0, (60, 40)), (13.0, (70, 40)), (22.0, (160, 50))):
            lost = (Lost(1, "killed"),) if clock == 22.0 else ()
            file.look(Glance(sum(frames), 2.0, 0.5, 2, living=(0, 1), learner_frames=frames, lost=lost))
        live = read_live(tmp_path)
    assert live is not None
    assert (live.epoch_frames, live.frames_per_second, live.learner_speed) == (310, 11.0, [10.0, 1.0])
    assert live.learner_idle_s == [0.0, 0.0]
    assert [one.reason for one in live.lost] == ["killed"]


def test_what_seconds_are_spent_on_is_of_the_last_two_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the minute that runs, and of the one before."""
    clock = 0.0
    monkeypatch.setattr("roundelay.runtime.live.wall_clock", lambda: clock)
    found = []
    with LiveFile(tmp_path, 1, label="adpsgd") as file:
        for clock in (10.0, 40.0, 70.0, 100.0, 130.0, 160.0, 190.0):
            file.look(Glance(0, 0.0, 0.0, 1, learner_frames=(int(clock),), spent=(Spent(int(clock), 2 * clock),)))
            live = read_live(tmp_path)
            assert live is not None
            found.append(live.spent[0])
        file.train(1, 0)  # counts begin anew
        file.look(Glance(0, 0.0, 0.0, 1, learner_frames=(0,), spent=(Spent(),)))
    assert [one.steps for one in found] == [0, 30, 60, 90, 60, 90, 60]
    assert all(one.computing == 2 * one.steps for one in found)


def test_a_loop_s_seconds_are_its_gradients_or_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation after a meeting is neither, for nothing tells how long it takes."""
    clock = 0.0
    monkeypatch.setattr("roundelay.runtime.attached.learner.wall_clock", lambda: clock)
    monkeypatch.setattr(ArenaBackend, "now", staticmethod(lambda: clock))
    model = torch.nn.Linear(1, 1)
    with roundelay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        for _ in range(3):
            clock += 100.0  # the first batch, and then an evaluation
            for _ in range(2):
                loss = model(torch.ones(1, 1)).sum()
                clock += 4.0
                loss.backward()
                session.step()
                clock += 16.0
            session.meet()
        (spent,) = session._learner.counts.spent()
    assert (spent.computing, spent.between, spent.meetings, spent.own) == (6 * 4.0, 3 * 16.0, 0.0, 72.0)


def test_a_disk_that_cannot_be_written_is_not_its_business(tmp_path: Path) -> None:
    with LiveFile(tmp_path / "nowhere", 2, 1000) as file:
        file.train(0, 0)
        file.interrupt()
    assert not (tmp_path / "nowhere").exists()


def test_a_glance_tells_who_lives_and_what_each_has_trained() -> None:
    glances: list[Glance] = []

    def look(glance: Glance) -> bool:
        if not glances:
            os.kill(runtime.process_ids()[1], signal.SIGKILL)
        glances.append(glance)
        return glance.learners_alive < 3

    slow = tuple(Straggler(rank, seconds=0.02) for rank in range(3))
    with ProcsRuntime(cluster("adpsgd", 3, stragglers=slow), threads=1, deaths=Deaths("go-on")) as runtime:
        runtime.segment(plan(ENDLESS, 3), look)
    assert glances[0].living == (0, 1, 2)
    assert glances[-1].living == (0, 2)
    assert [lost.rank for lost in glances[-1].lost] == [1]
    assert all(sum(glance.learner_frames) == glance.frames for glance in glances)
    assert glances[-1].consensus_distance is not None
    assert all(one.computing >= 0.02 * one.steps > 0 for one in glances[-1].spent)


@pytest.mark.parametrize("parameters", [1, 37, 2048, 16_384, 100_003])
def test_a_glance_at_the_consensus_distance_is_near_the_truth(parameters: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = list(torch.randn(4, parameters, generator=generator))
    stacked = torch.stack(rows)
    truth = float((stacked - stacked.mean(0)).square().mean().sqrt())
    assert glanced_distance(rows) == pytest.approx(truth, rel=0.02 if parameters > 1 else 1e-6)
    assert glanced_distance(rows[:1]) == 0.0


def test_a_start_of_an_unknown_runtime_is_told_as_it_is(tmp_path: Path) -> None:
    start = fake_records(Fake())[0]
    assert isinstance(start, RunStarted)
    write(tmp_path, None, dataclasses.replace(start, learners=1, runtime="other"))
    assert "1 learner on other" in headline(read_status(tmp_path, NOW))[1]
