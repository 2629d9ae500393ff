"""The cost of one learner ten times slower, in virtual time to the same held-out loss."""

from itertools import count

import pytest

from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Glance, Straggler
from roundelay.runtime.sim import driver
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import cluster, plan

TASK = Quadratic(parameters=20, examples=10**6, curvature=(0.02, 1.0), noise=1.0)
TARGET = 0.15
"""Of 9.4 at the start; the noise alone keeps it at about 0.001."""


@pytest.fixture(autouse=True)
def always_time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator shows itself to its watcher by the wall clock; here between any two batches of events."""
    monkeypatch.setattr(driver, "wall_clock", map(float, count()).__next__)


def seconds_to_target(name: str, learners: int, stragglers: tuple[Straggler, ...]) -> float:
    """Virtual seconds until the consensus model's loss is TARGET."""
    learner, reached = TASK.build(), 0.0

    with SimRuntime(cluster(name, learners, TASK, stragglers=stragglers), CostModel(jitter=0.2)) as runtime:

        def look(glance: Glance) -> bool:
            nonlocal reached
            if not reached and learner.evaluate(runtime.consensus(), "dev").mean_loss <= TARGET:
                assert glance.virtual_seconds is not None
                reached = glance.virtual_seconds
            return reached > 0

        runtime.segment(plan(20_000, learners), look)
    assert reached > 0
    return reached


@pytest.mark.parametrize(
    ("name", "learners", "least", "most"),
    [
        ("adpsgd:random-ring", 8, 1.0, 1.15),  # the ideal is 8 / 7.1 = 1.127
        ("adpsgd:fixed-ring", 8, 1.0, 1.15),
        ("ssgd", 8, 5.0, 9.0),  # a step waits for the slow one; without it, for the allreduce and the slowest of eight
        ("adpsgd:random-ring", 64, 0.98, 1.02),  # 64 / 63.1 = 1.014
    ],
)
def test_time_to_a_loss_beside_one_learner_ten_times_slower(
    name: str, learners: int, least: float, most: float
) -> None:
    slow = seconds_to_target(name, learners, (Straggler(1, 10.0),))
    undisturbed = seconds_to_target(name, learners, ())
    assert least <= slow / undisturbed <= most
