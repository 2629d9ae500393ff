"""Costs of simulated learners as processes measured them; rates beyond the edge of those tried."""

from pathlib import Path

import pytest
import yaml

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.files import write_text
from roundelay.core.records import Exchanges, RunStarted, Segment, to_line
from roundelay.grids.grid import Cell, Contenders, Tuning
from roundelay.grids.results import CellOutcome, CellState, tuned
from roundelay.grids.scaling import OneClock, TrainedWay, measured_cluster
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.strategies import make_strategy
from roundelay_speech.grids.running import RecipeConfiguration
from roundelay_speech.grids.trials import RecipeTrials
from roundelay_speech.recipes.recipe import load_recipe

STEPS = 100


def way(folder: Path, text: str, learners: int, frames: int, gradient: float, slow: tuple[str, ...] = ()) -> TrainedWay:
    """A way with one run, whose every learner made a hundred steps of these frames and seconds, and talked each time:
    0.01 s an exchange, 0.03 s a mean."""
    strategy, exp = make_strategy(text), folder / f"{text.replace(':', '-')}-{learners}-{len(slow)}"
    exp.mkdir()
    talks, averages = strategy.name == "adpsgd", strategy.name == "ssgd"
    records = [
        RunStarted(
            wall_s=0.0,
            strategy=strategy.name,
            label=strategy.label,
            runtime="procs",
            learners=learners,
            seed=1,
            commit="",
            machine="2 cores of a Sample CPU",
            parameters=1000,
            minibatch_frames=frames * learners,
            train_frames=frames * learners * STEPS,
        ),
        Segment(
            wall_s=1.0,
            epoch=0,
            learning_rate=0.1,
            frames=frames * learners * STEPS,
            loss=1.0,
            accuracy=0.5,
            frames_per_second=1e4,
            learner_frames=[frames * STEPS] * learners,
            learner_steps=[STEPS] * learners,
            learner_gradient_s=[gradient * STEPS] * learners,
            learner_update_s=[0.001 * STEPS] * learners,
            learner_exchange_s=[0.01 * STEPS * talks] * learners,
            learner_mean_s=[0.03 * STEPS * averages] * learners,
            learner_means=[STEPS * averages] * learners,
        ),
        Exchanges(
            wall_s=1.0, epoch=0, matrix=[[STEPS * talks * (i != j) for j in range(learners)] for i in range(learners)]
        ),
    ]
    write_text(exp / "events.jsonl", "".join(to_line(record) + "\n" for record in records))
    training = {"strategy": text, "learners": learners, "stragglers": list(slow)}
    (exp / "recipe.yaml").write_text(yaml.safe_dump({"training": training}))
    what = RecipeConfiguration(strategy, learners, slow, (), exp.name, load_recipe("an4"))
    tuning = Tuning(what, (), ())
    return TrainedWay(tuned(tuning, []), (CellOutcome(Cell(exp, what, 1), CellState.FINISHED, trained=True),))


def clock(folder: Path, *ways: TrainedWay) -> OneClock:
    return OneClock(RecipeTrials.of("an4", [], Contenders(["ssgd"], (2,), 1), (0.1, 0.2), folder), ways)


def test_a_simulated_learner_costs_what_processes_measured(tmp_path: Path) -> None:
    """256 frames in 0.06 s and 128 in 0.035 s: 0.01 s and 0.0001953 s a frame. The slow way says nothing of costs."""
    made = measured_cluster(
        clock(
            tmp_path,
            way(tmp_path, "sgd", 1, 256, 0.06),
            way(tmp_path, "ssgd", 2, 128, 0.035),
            way(tmp_path, "adpsgd:random-ring", 2, 128, 0.035),
            way(tmp_path, "ssgd", 2, 128, 0.5, slow=("1:3x",)),
        )
    )
    assert made.compute.seconds == pytest.approx(0.01)
    assert made.compute.seconds_per_frame == pytest.approx(0.025 / 128)
    assert made.compute.update == pytest.approx(0.001)
    assert made.exchange == pytest.approx(0.01)
    assert made.allreduce.seconds == {"2": pytest.approx(0.03)}
    assert build(VirtualCluster, yaml.safe_load(yaml.safe_dump(plain(made)))) == made
    assert made.first(16).learners == 16


def test_equal_minibatches_cost_what_one_alone_takes(tmp_path: Path) -> None:
    """Learners that share a host slow each other down; those that are simulated have one each."""
    ways = way(tmp_path, "sgd", 1, 256, 0.06), way(tmp_path, "ssgd", 2, 256, 0.07)
    made = measured_cluster(clock(tmp_path, *ways))
    assert made.compute.seconds == pytest.approx(0.06)
    assert made.compute.seconds_per_frame == 0.0


def test_one_learner_alone_measures_no_talking(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--learners 1,2"):
        measured_cluster(clock(tmp_path, way(tmp_path, "sgd", 1, 256, 0.06)))
