"""Costs from recorded runs, and the throughput they predict."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.records import Exchanges, Record, RunStarted, Segment, of_kind, read_events, to_line
from roundelay.job import Interrupt
from roundelay.learner.quadratic import Quadratic
from roundelay.schedule import Newbob
from roundelay.simulation.scenario import Measured, read_run
from roundelay.strategies import make_strategy
from roundelay.training import train
from roundelay_lab.calibrate import Costs, calibrate
from support.clusters import MINIBATCH
from support.runs import job

CORES = 2
WORK, UPDATE, EXCHANGE, MEAN = 1e-4, 0.002, 0.005, 0.004
"""Of the imagined host: core seconds a frame, and seconds with a core of one's own."""


def crowd(learners: int) -> float:
    return max(1.0, learners / CORES)


def step(strategy: str, learners: int) -> tuple[dict[str, float], float]:
    """(seconds of the parts of one step, all of it) on the imagined host, 512 frames a round."""
    frames = 512 / learners
    parts = {"gradient": WORK * frames * learners / CORES, "update": UPDATE * crowd(learners)}
    if strategy.startswith("ssgd") and learners > 1:
        parts["mean"] = MEAN * crowd(learners)
    if strategy.startswith("asgd"):
        parts["exchange"] = EXCHANGE * crowd(learners)
    return parts, sum(parts.values())


def fake(folder: Path, strategy: str, learners: int, **changes: Any) -> Path:
    """A run directory of 100 steps on the imagined host; a slower segment comes first."""
    folder.mkdir()
    parts, whole = step(strategy, learners)
    training = {"strategy": strategy, "options": {}, "learners": learners, **changes.pop("training", {})}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"training": training}))
    time: dict[str, Any] = {"wall_s": 1.0}
    records: list[Record] = [
        RunStarted(
            **time,
            strategy=strategy,
            label=strategy,
            runtime=changes.pop("runtime", "procs"),
            learners=learners,
            seed=0,
            commit="",
            machine=f"some processor, {changes.pop('cores', CORES)} cores, torch 2",
            parameters=1,
            minibatch_frames=512,
            train_frames=51200,
        )
    ]
    for epoch, slow in enumerate((3.0, 1.0)):
        spent: dict[str, Any] = {
            f"learner_{name}_s": [100 * slow * seconds] * learners for name, seconds in parts.items()
        }
        spent = {name: spent.get(name, [0.0] * learners) for name in SPENT}
        records.append(
            Segment(
                **time,
                epoch=epoch,
                learning_rate=0.1,
                frames=51200 * (epoch + 1),
                loss=1.0,
                accuracy=0.0,
                frames_per_second=512 / (whole * slow),
                learner_frames=[51200 // learners] * learners,
                learner_steps=[100] * learners,
                **(spent if changes.get("spent", True) else {}),
                learner_means=[100 * ("mean" in parts)] * learners,
            )
        )
        count = 100 * ("exchange" in parts)
        matrix = [[0] * learners + [count] for _ in range(learners)]
        records.append(Exchanges(**time, epoch=epoch, matrix=matrix))
    (folder / "events.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    return folder


SPENT = ("learner_gradient_s", "learner_update_s", "learner_exchange_s", "learner_mean_s")


def test_a_run_is_read_at_its_fastest_segment(tmp_path: Path) -> None:
    run = read_run(fake(tmp_path / "a", "ssgd", 4))
    assert (run.learners, run.cores, run.frames) == (4, CORES, 128)
    assert run.gradient == pytest.approx(WORK * 128 * 2)
    assert run.mean == pytest.approx(MEAN * 2)
    assert run.exchange is None


def test_runs_are_predicted_from_the_others_and_the_rest_from_all(tmp_path: Path) -> None:
    """The imagined host obeys the model, so every prediction is exact but for the server's queue."""
    exps = [
        fake(tmp_path / f"{strategy}-{learners}", strategy, learners)
        for strategy, learners in (("ssgd", 2), ("ssgd", 4), ("sgd", 1), ("asgd", 2))
    ]
    costs, lines = calibrate(exps)
    found = {(line.label, line.learners): line for line in lines}
    assert {key for key, line in found.items() if line.measured is None} == {
        ("ssgd", 1),
        ("asgd period 1", 1),
        ("asgd period 1", 4),
    }
    for (label, learners), line in found.items():
        expected = 512 / step(label, learners)[1]
        close = pytest.approx(expected, rel=0.01 if "asgd" not in label else 0.05)
        if label == "asgd period 1" and line.measured is not None:
            assert line.frames_per_second is None  # nobody else exchanges
        else:
            assert line.frames_per_second == close
        assert line.own == (None if line.measured is None else close)
        assert line.measured is None or line.measured == pytest.approx(expected)
    assert costs.cores == CORES


def test_work_that_does_not_depend_on_frames_is_seen() -> None:
    def run(learners: int, frames: float) -> Measured:
        seconds = (0.01 + 1e-4 * frames) * max(1.0, learners / 4)
        return Measured("", make_strategy("ssgd"), learners, 4, frames, 1.0, seconds, 0.0, None, 0.001)

    costs = Costs((run(4, 100.0), run(8, 50.0)))
    assert costs.gradient(16, 25.0) == pytest.approx((0.01 + 1e-4 * 25) * 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runtime": "sim"}, "real learners"),
        ({"training": {"stragglers": ["1:3x"]}}, "without stragglers"),
        ({"spent": False}, "does not say where the seconds went"),
        ({"cores": "many"}, "how many cores"),
    ],
)
def test_runs_without_costs_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"a: .*{says}"):
        calibrate([fake(tmp_path / "a", "ssgd", 2, **changes)])


def test_runs_of_two_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 and 8 cores"):
        calibrate([fake(tmp_path / "a", "ssgd", 2), fake(tmp_path / "b", "ssgd", 2, cores=8)])


@pytest.mark.parametrize(("name", "spends"), [("ssgd", "mean"), ("adpsgd", "exchange"), ("asgd period=2", "exchange")])
def test_real_learners_say_where_their_seconds_went(tmp_path: Path, name: str, spends: str) -> None:
    task = Quadratic(parameters=50, examples=20 * MINIBATCH)
    made = job(name, task, runtime="procs", learners=2, schedule=Newbob(0.05, stop_below=None, max_epochs=2))
    train(made, tmp_path / "exp", Silent(), Interrupt())
    for segment in of_kind(read_events(tmp_path / "exp" / "events.jsonl"), Segment):
        spent = {kind: getattr(segment, f"learner_{kind}_s") for kind in ("gradient", "update", "exchange", "mean")}
        assert all(len(seconds) == 2 for seconds in spent.values())
        assert all(sum(spent[kind]) > 0 for kind in ("gradient", "update", spends))
        other = "exchange" if spends == "mean" else "mean"
        assert sum(segment.learner_means) == (sum(segment.learner_steps) if spends == "mean" else 0)
        assert spends == "exchange" or spent[other] == [0, 0]
        wall = sum(segment.learner_frames) / segment.frames_per_second
        assert all(sum(seconds[rank] for seconds in spent.values()) <= wall for rank in range(2))
