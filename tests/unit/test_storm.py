"""A storm's schedule of faults, the numbers that follow from what was seen, and its page."""

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.records import CurvePoint, Results, to_line
from roundelay.storm.both import StormOptions, StormResult
from roundelay.storm.faults import FAULTS, LASTS_AT_MOST, SPARES_THE_FIRST, checked_kinds, schedule
from roundelay.storm.page import render_page
from roundelay.storm.story import Story, Struck
from roundelay.storm.training import EventsTail
from support.fake_runs import Fake, write_run


def test_faults_come_as_a_poisson_process() -> None:
    """Gaps are exponential: mean and standard deviation are equal, here within 4 standard errors."""
    found = list(islice(schedule(3, 4, 15.0, 3.0, tuple(FAULTS)), 4000))
    gaps = np.diff([0.0, *(fault.at for fault in found)])
    assert abs(gaps.mean() - 15) < 4 * 15 / 4000**0.5
    assert abs(gaps.std() - 15) < 4 * 15 * 2**0.5 / 4000**0.5
    assert {fault.kind for fault in found} == set(FAULTS)
    assert {fault.host for fault in found if fault.kind in SPARES_THE_FIRST} == {1, 2, 3}
    assert {fault.host for fault in found if fault.kind == "kill"} == {0, 1, 2, 3}
    assert max(fault.seconds for fault in found) <= LASTS_AT_MOST * 3.0


def test_a_schedule_depends_on_its_seed_alone() -> None:
    one, same, other = (list(islice(schedule(seed, 2, 5.0, 1.0, ["kill", "stop"]), 20)) for seed in (1, 1, 2))
    assert one == same != other


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(UserError, match=r"no fault 'flood': choose from kill, crash"):
        checked_kinds(["kill", "flood"])


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
    results = Results.from_json(read_json(write_run(tmp_path, Fake(label="<b>adpsgd")) / Results.FILE))
    options = StormOptions("demo", tmp_path)
    result = StormResult(calm, story(), (results, results))
    assert result.share == pytest.approx(24 / 29)
    page = render_page(result, options)
    assert page == render_page(result, options)
    assert "82.8" in page
    assert "<b>adpsgd" not in page
    assert len(re.findall("<tr>", page)) == 3  # titles, and two faults
    assert result.to_json()["victim_s"] == (3.0, 3.0)


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
