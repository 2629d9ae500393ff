"""Weights one can follow by eye: minibatch number i has the gradient (i + 1, -1), the learning rate is 1, rows start at
0.

`trajectories.json` holds the rows of three learners after each of three rounds, per strategy, as the simulator makes
them with all learners equally fast. After a change that is meant to change them: WRITE_GOLDEN=1 make test
ARGS=tests/golden, and read the difference.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import EVERY, make_strategy

FILE = Path(__file__).with_name("trajectories.json")
ROUNDS = 3


class Steady(Learner):
    """Gradients that do not depend on the weights."""

    parameters, examples = 2, 9

    def initial(self) -> Tensor:
        return torch.zeros(2)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor) -> Statistics:
        out.copy_(torch.tensor([batch.index + 1.0, -1.0]))
        return Statistics(batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics()


@dataclass(frozen=True)
class SteadyTask(Task):
    def build(self) -> Learner:
        return Steady()


def trajectory(name: str) -> list[list[list[float]]]:
    """Rows after each round, [round][learner][parameter]."""
    learners = 1 if name == "sgd" else 3
    rows = []
    with SimRuntime(Cluster(make_strategy(name), SteadyTask(), Sgd(), learners)) as runtime:
        for round_ in range(ROUNDS):
            plan = EpochPlan(0, ROUNDS * learners, learners, learners, 0)
            runtime.segment(SegmentPlan(plan, 1.0, first=round_ * learners, last_round=round_ + 1))
            rows.append([[round(value, 4) for value in row] for row in runtime.rows().tolist()])
    return rows


@pytest.mark.parametrize("name", EVERY)
def test_rows_are_those_on_record(name: str) -> None:
    found = trajectory(name)
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("WRITE_GOLDEN"):
        golden[name] = found
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(golden.items())]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == golden[name]


def test_two_of_them_by_hand() -> None:
    golden = json.loads(FILE.read_text())
    # Minibatches 1, 2, 3 one after the other.
    assert golden["sgd"] == [[[-1.0, 1.0]], [[-3.0, 2.0]], [[-6.0, 3.0]]]
    # Rounds (1, 2, 3), (4, 5, 6), (7, 8, 9): means 2, 5, 8, on all three.
    assert golden["ssgd"] == [[[-2.0, 1.0]] * 3, [[-7.0, 2.0]] * 3, [[-15.0, 3.0]] * 3]
    # Round 1: all rows are 0, so x = -(1, 2, 3). Round 2: their mean -2, minus 4, 5, 6. Round 3: mean -7, minus 7, 8,
    # 9.
    assert [[row[0] for row in rows] for rows in golden["delay-by-one"]] == [
        [-1.0, -2.0, -3.0], [-6.0, -7.0, -8.0], [-14.0, -15.0, -16.0],
    ]  # fmt: skip
