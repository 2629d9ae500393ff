"""A storm's schedule of faults, the numbers that follow from what was seen, and its page."""

import math
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import roundelay
from roundelay.core.files import read_json
from roundelay.core.progress import Silent
from roundelay.core.records import CurvePoint, Results, Segment, to_line
from roundelay_lab.storm import running
from roundelay_lab.storm.both import RunEnd, StormOptions, StormResult
from roundelay_lab.storm.faults import FAULTS, LASTS_AT_MOST, Fault, schedule
from roundelay_lab.storm.hosted import HostedCommand, Look, StormCommand
from roundelay_lab.storm.noted import leave_notes
from roundelay_lab.storm.notes import LABEL, NOTE_NAME, Note, note_of
from roundelay_lab.storm.page import render_page
from roundelay_lab.storm.story import Story, Struck
from roundelay_lab.storm.training import EventsTail, work_of
from support.fake_runs import Fake, write_run


def test_faults_come_as_a_poisson_process() -> None:
    """Gaps are exponential: mean and standard deviation are equal, here within 4 standard errors."""
    found = list(islice(schedule(3, 4, 15.0, 3.0, tuple(FAULTS), ("crash", "cut")), 4000))
    gaps = np.diff([0.0, *(fault.at for fault in found)])
    assert abs(gaps.mean() - 15) < 4 * 15 / 4000**0.5
    assert abs(gaps.std() - 15) < 4 * 15 * 2**0.5 / 4000**0.5
    for deck in range(0, 4000, len(FAULTS)):
        assert {fault.kind for fault in found[deck : deck + len(FAULTS)]} == set(FAULTS), "each kind in every five"
    assert {fault.host for fault in found if fault.kind in ("crash", "cut")} == {1, 2, 3}
    assert {fault.host for fault in found if fault.kind == "kill"} == {0, 1, 2, 3}
    assert max(fault.seconds for fault in found) <= LASTS_AT_MOST * 3.0


def test_a_schedule_depends_on_its_seed_alone() -> None:
    one, same, other = (list(islice(schedule(seed, 2, 5.0, 1.0, ["kill", "stop"]), 20)) for seed in (1, 1, 2))
    assert one == same != other


def story() -> Story:
    """Two learners, 100 frames a second; at 10 s one is killed, and is back after 3 s; at 20 s both stand for 4 s."""
    seen = Story(2)
    for at, frames in [(1.0, 0), (10.0, 900), (10.5, 950), (13.0, 1100), (20.0, 1800), (24.0, 1850), (30.0, 2400)]:
        seen.see_frames(at, frames)
    for at, ranks in [(1.0, (0, 1)), (10.2, (0,)), (13.0, (0, 1))]:
        seen.see_living(at, ranks)
    seen.struck += [Struck(10.0, "kill", 1, 10.0), Struck(20.0, "stop", 0, 23.0)]
    seen.seconds = 31.0
    return seen


def test_numbers_of_a_storm() -> None:
    seen = story()
    assert seen.frames_per_second == pytest.approx(2400 / 29)
    kill, stop = seen.recoveries()
    assert [kill.others, kill.victim, stop.others, stop.victim] == [0.5, 3.0, 4.0, None]
    assert Story.from_json(seen.to_json()) == seen
    assert seen.since_training().recoveries()[0].victim == kill.victim


def test_who_lived_and_took_part_stands_beside_the_share() -> None:
    seen = story()
    assert seen.mean_alive == pytest.approx(2 - 2.8 / 29)
    assert [seen.participation] == [None]
    seen.work = (200, 150)
    assert seen.participation == 1.75
    assert seen.hosts_lost(1) == 0, "a killed learner is no lost host, and who is off the network may be missed by none"
    seen.struck += [Struck(9.0, "cut", 1, 11.0), Struck(25.0, "cut", 0, 26.0), Struck(28.0, "crash", 1, 29.0)]
    assert seen.hosts_lost(1) == 2


def test_the_work_of_learners_is_what_means_took_or_else_frames() -> None:
    def segment(means: list[int]) -> Segment:
        return Segment(
            wall_s=1.0,
            epoch=0,
            learning_rate=0.1,
            frames=9,
            loss=1.0,
            accuracy=0.5,
            frames_per_second=1.0,
            learner_frames=[7, 2],
            learner_steps=[1, 1],
            learner_means=means,
        )

    assert work_of([segment([3, 1])]) == (3, 1)
    assert work_of([segment([0, 0]), segment([])]) == (14, 4)


def test_work_that_is_lost_does_not_count() -> None:
    """A run that goes back to a checkpoint counts what it has in the end."""
    seen = Story(1)
    for at, frames in [(0.0, 0), (10.0, 1000), (12.0, 500), (22.0, 1500)]:
        seen.see_frames(at, frames)
    seen.struck.append(Struck(10.5, "crash", 1, 11.0))
    assert seen.frames_per_second == pytest.approx(1500 / 22)
    assert seen.recoveries()[0].others == pytest.approx(11.5)


def test_the_page_tells_the_share_and_every_fault(tmp_path: Path) -> None:
    calm = Story(2)
    calm.see_frames(0.0, 0)
    calm.see_frames(24.0, 2400)
    outcome = RunEnd.of(Results.from_json(read_json(write_run(tmp_path, Fake(label="<b>adpsgd")) / Results.FILE)))
    options = StormOptions("demo", tmp_path)
    faster = Story(2)
    faster.see_frames(0.0, 0)
    faster.see_frames(20.0, 2400)
    result = StormResult(calm, story(), faster, (outcome, outcome))
    assert result.calm == pytest.approx(110)
    assert result.share == pytest.approx(2400 / 29 / 110)
    assert [*result.shares] == pytest.approx([20 / 29, 24 / 29])
    assert "no host was lost" in result.whole
    page = render_page(result, options)
    assert page == render_page(result, options)
    assert result.whole.startswith("75.2 % (69.0 to 82.8) of the frames that count a second without faults; 1.90 of 2 ")
    assert "82.8" in page
    assert "<b>adpsgd" not in page
    assert len(re.findall("<tr>", page)) == 3  # titles, and two faults
    assert result.to_json()["victim_s"] == (3.0, 3.0)
    assert "would not have ended" not in page
    storm = story()
    storm.calmed = 26.0
    assert "there were none after 25 s" in render_page(replace(result, storm=storm), options)


class Fragile(HostedCommand):
    """A synchronous run on a clock that only pauses move: every crash ends it, and it begins anew. It starts within a
    second or so, and takes so many seconds of work."""

    def __init__(self, folder: Path, starting: float, work: float) -> None:
        self.clock, self._starting, self._work, self._began, self._dead = 0.0, starting, work, 0.0, False
        super().__init__(NoHosts(), Never(folder / "run", 2, 1))  # type: ignore[arg-type]

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def start(self, host: int) -> None:
        if host == 0:
            self._began, self._dead = self.clock + self._starting, False

    def status(self, host: int) -> int | None:
        if self._dead:
            return 1
        return 0 if self.clock - self._began > self._work else None

    def look(self) -> Look:
        return Look(counted=(int(10 * (self.clock - self._began)),) if self.clock > self._began else ())

    def crash(self, host: int) -> None:
        self._dead = True

    def end(self, host: int) -> None:
        pass

    def learner(self, host: int, choice: float) -> int | None:
        return None


class NoHosts:
    def heal(self, host: int) -> None:
        pass

    def cut(self, host: int) -> None:
        pass

    def rate(self, rate: str, *hosts: int) -> None:
        pass

    def processes(self, host: int) -> list[int]:
        return []


class Never(StormCommand):
    spares_the_first = ("crash",)

    def told(self) -> dict[str, Any]:
        return {}

    def on(self, hosts: Any) -> HostedCommand:
        raise AssertionError


@pytest.mark.parametrize(("starting", "calmed"), [(0.1, 61.0), (30.0, 150.0)])
def test_a_run_that_faults_never_let_end_ends_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: float, calmed: float
) -> None:
    """A fault a second: what needs nine seconds is not done in a minute; what needs half a minute to start never
    starts, and three vain starts are enough."""
    run = Fragile(tmp_path, starting, work=9.0)
    monkeypatch.setattr(running, "pause", run.pause)
    monkeypatch.setattr(running, "steady_clock", lambda: run.clock)
    faults = schedule(0, 2, 1.0, 0.5, ["crash"], ("crash",))
    seen = running._Watcher(run, faults, 0.5, Silent(), 60.0).run()
    assert seen.calmed is not None
    assert seen.calmed <= calmed
    assert seen.starts > 1
    assert seen.seconds < seen.calmed + 3 * (starting + 9.0)
    assert seen.progress[-1][1] >= 85


class Succeeding(Fragile):
    """A run of two hosts that goes on without the first when that is killed: the other leads, and ends well. A killed
    second host comes back."""

    def __init__(self, folder: Path, work: float) -> None:
        super().__init__(folder, 1.0, work)
        self.command = replace(self.command, peers=True)
        self.started: list[int] = []
        self.dead: set[int] = set()

    def start(self, host: int) -> None:
        self.started.append(host)
        self.dead.discard(host)
        if len(self.started) == 1:
            super().start(host)

    def status(self, host: int) -> int | None:
        if host in self.dead:
            return -9
        return 0 if self.clock - self._began > self._work else None

    def crash(self, host: int) -> None:
        self.dead.add(host)


def test_the_first_host_is_killed_where_another_may_lead_and_faults_that_meet_nothing_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started again while the other goes on. What was meant for it then, and a kill where there is no
    learner, is drawn and meets nothing; what was meant for the second while it is down waits for it."""
    run = Succeeding(tmp_path, work=40.0)
    monkeypatch.setattr(running, "pause", run.pause)
    monkeypatch.setattr(running, "steady_clock", lambda: run.clock)
    said = [("crash", 1), ("cut", 1), ("crash", 0), ("slow", 0), ("kill", 1), ("slow", 1)]
    times = [5.0, 5.5, 12.0, 12.5, 13.0, 13.5]
    faults = iter([Fault(at, kind, host, 3.0, 0.5) for at, (kind, host) in zip(times, said, strict=True)])
    seen = running._Watcher(run, faults, 0.5, Silent(), 60.0).run()
    assert run.started == [0, 1, 1]
    assert [(one.kind, one.host) for one in seen.struck] == [("crash", 1), ("cut", 1), ("crash", 0), ("slow", 1)]
    assert seen.drawn == len(said)
    assert seen.starts == 1
    assert seen.hosts_lost(1) == 2


class Joining(Succeeding):
    """The same, where a host is in the run five seconds after it was started. One that is not looks in vain for a first
    host that is lost, and never ends by itself."""

    def __init__(self, folder: Path, work: float) -> None:
        super().__init__(folder, work)
        self.since: dict[int, float] = {}

    def start(self, host: int) -> None:
        super().start(host)
        self.since[host] = self.clock
        if len(self.started) > 2 and host == 0:
            self._began = self.clock

    def status(self, host: int) -> int | None:
        return super().status(host) if 0 not in self.dead or host in self.dead or self.takes_part(host) else None

    def takes_part(self, host: int) -> bool:
        return self.since[host] + 5.0 < min(self.clock, self.lost)

    @property
    def lost(self) -> float:
        return self.when if 0 in self.dead else math.inf

    def crash(self, host: int) -> None:
        super().crash(host)
        self.when = self.clock

    def end(self, host: int) -> None:
        self.dead.add(host)


@pytest.mark.parametrize(("second", "started"), [(6.0, [0, 1, 1, 0, 1]), (9.0, [0, 1, 0, 1])])
def test_where_no_host_is_left_in_the_run_to_lead_it_all_are_given_the_command_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: float, started: list[int]
) -> None:
    """The first host is killed ten seconds after training has begun. The second was before, and its command is given
    again three seconds after that: it is not in the run by then, or is down."""
    run = Joining(tmp_path, work=40.0)
    monkeypatch.setattr(running, "pause", run.pause)
    monkeypatch.setattr(running, "steady_clock", lambda: run.clock)
    faults = iter([Fault(second, "crash", 1, 3.0, 0.5), Fault(10.0, "crash", 0, 3.0, 0.5)])
    seen = running._Watcher(run, faults, 0.5, Silent(), 60.0).run()
    assert seen.starts == 2
    assert run.started == started
    assert seen.seconds < 60.0


def test_a_note_of_a_learner_is_read_whole_or_not_at_all() -> None:
    note = Note(steps=7, living=(0, 2, 62), at=3.5)
    assert note_of(note.packed()) == note
    assert note_of(note.packed()[:-1]) is None
    assert note_of(note.packed()[:-8] + Note(8, (), 0.0).packed()[-8:]) is None


def test_a_learner_of_a_script_leaves_a_note_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundelay, "attach", roundelay.attach)
    leave_notes(tmp_path)
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with roundelay.attach(module, optimizer, "ssgd") as session:
        for step in range(3):
            optimizer.zero_grad()
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            note = note_of((tmp_path / NOTE_NAME.format(rank=0)).read_bytes())
            assert note is not None
            assert step <= note.steps <= session.steps
            assert note.living == (0,)
    assert (tmp_path / LABEL).read_text() == "ssgd, 1 learners"


def test_records_are_told_once_when_a_log_is_cut_back(tmp_path: Path) -> None:
    def line(frames: int) -> str:
        point = CurvePoint(
            wall_s=frames / 100,
            epoch=0,
            frames=frames,
            learning_rate=0.1,
            loss=1.0,
            frames_per_second=100.0,
            staleness=0.0,
        )
        return to_line(point) + "\n"

    tail, path = EventsTail(tmp_path), tmp_path / "events.jsonl"
    assert tail.new() == []
    path.write_text(line(100) + line(200) + line(300)[:20])
    assert [one.frames for one in tail.new() if isinstance(one, CurvePoint)] == [100, 200]
    path.write_text(line(100))
    assert tail.new() == []
    path.write_text(line(100) + line(150))
    assert [one.frames for one in tail.new() if isinstance(one, CurvePoint)] == [150]
