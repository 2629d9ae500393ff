"""Weights one can follow by eye: minibatch number i has the gradient (i + 1, -1), the learning rate is 1, rows start at
0.

`trajectories.json` holds the rows of three learners after each of three rounds, per strategy, as the simulator makes
them with all learners equally fast. After a change that is meant to change them: WRITE_GOLDEN=1 make test
ARGS=tests/golden, and read the difference. The same writes those of a new strategy; follow one by hand below.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import EVERY, make_strategy
from support.slope import Told

FILE = Path(__file__).with_name("trajectories.json")
ROUNDS = 3


def steady(x: Tensor, batch: Minibatch, out: Tensor) -> None:
    """Gradients that do not depend on the weights."""
    out.copy_(torch.tensor([batch.index + 1.0, -1.0]))


def trajectory(name: str) -> list[list[list[float]]]:
    """Rows after each round, [round][learner][parameter]."""
    learners = 1 if name == "sgd" else 3
    rows = []
    with SimRuntime(
        Cluster(make_strategy(name), Told(2, steady, 9), Sgd(), learners, shared_minibatch=False)
    ) as runtime:
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
    assert name in golden, f"no rows of {name!r} on record: WRITE_GOLDEN=1 make test ARGS=tests/golden"
    assert found == golden[name]


# Followed by hand: first parameters, of the three learners, after each round. Gradients are 1, 2, 3, then 4, 5, 6, then
# 7, 8, 9; their means 2, 5, 8.


def first_parameters(rows: list[list[list[float]]]) -> list[list[float]]:
    return [[row[0] for row in round_] for round_ in rows]


def recorded(name: str) -> list[list[float]]:
    return first_parameters(json.loads(FILE.read_text())[name])


def test_one_learner_and_all_together() -> None:
    assert recorded("sgd") == [[-1.0], [-3.0], [-6.0]]
    assert recorded("ssgd") == [[-2.0] * 3, [-7.0] * 3, [-15.0] * 3]
    assert recorded("delayed-gradient") == [[0.0] * 3, [-2.0] * 3, [-7.0] * 3], "one round behind ssgd"


def test_delay_by_one_by_hand() -> None:
    # Round 1: all rows are 0, so x = -(1, 2, 3). Round 2: their mean -2, minus 4, 5, 6. Round 3: mean -7, minus 7, 8,
    # 9.
    assert recorded("delay-by-one") == [[-1.0, -2.0, -3.0], [-6.0, -7.0, -8.0], [-14.0, -15.0, -16.0]]


def test_block_momentum_by_hand() -> None:
    # Every segment ends with a block, so here every round. zeta = 2/3.
    assert recorded("bsp period=3") == [[-2.0] * 3, [-7.0] * 3, [-15.0] * 3]
    # G = -2, -5, -8 from wherever the block began. D = -2, -4/3 - 5 = -19/3, -38/9 - 8 = -110/9. Rows hold the anchor:
    # W = -2, -25/3, -185/9; blocks begin at B = W + 2/3 D.
    anchors = [[round(w, 4)] * 3 for w in (-2, -25 / 3, -185 / 9)]
    assert recorded("bmuf period=2 nesterov=true") == anchors == recorded("bmuf period=3")
    assert recorded("slowmo period=3") == anchors, "bmuf, while the learning rate is constant"
    # (1 + zeta) / (1 - zeta) = 3, so zeta = 1/2. D = -2, -1 - 5 = -6, -3 - 8 = -11, and W moves by 3/2 D.
    assert recorded("bmuf-fairseq period=2") == [[-3.0] * 3, [-12.0] * 3, [-28.5] * 3]
    # mu = 0.9, rate = 3 x 0.1. v = 2, 6.8, 14.12; W moves by -0.3 ((2, 5, 8) + 0.9 v).
    assert recorded("diloco period=3") == [[-1.14] * 3, [-4.476] * 3, [-10.6884] * 3]


def test_the_field_of_2026_by_hand() -> None:
    # choco-sgd, mixing = 1/2: of the larger parameter int4 leaves nothing out, so half of the way to the mean of -1, -2
    # and -3; then from there minus 4, 5, 6: -5.5, -7, -8.5, half of the way to -7.
    assert recorded("choco-sgd")[:2] == [[-1.5, -2.0, -2.5], [-6.25, -7.0, -7.75]]
    # gasloc, rate = 0.3, momentum = 0.9: y = -0.3, -0.6, -0.9, on a ring of three z = -0.6; y' was 0.
    assert recorded("gasloc period=3")[0] == [-0.87, -1.14, -1.41]
    assert recorded("gasloc:ring period=2 accelerated=mixed") == recorded("diloco period=3"), "three on a ring are all"
    # sparta averages the first parameter, or leaves it alone: here in round 1 and 2, and not in round 3.
    assert recorded("sparta fragments=3") == [[-2.0] * 3, [-7.0] * 3, [-14.0, -15.0, -16.0]]
    # A heavy ball, rate 0.3: learners 0 and 1 are a pair in round 1, u = 1.5 and 3.
    assert recorded("gossip-diloco period=2 nesterov=false")[0] == [-0.45, -0.45, -0.9]


def test_delayed_nesterov_by_hand() -> None:
    # Reports of three learners move the centre by 0.1 of 1, 2 and 3, and the third by 0.3 x 0.9 v more: then it is
    # where diloco is, for gradients are the same wherever they are taken.
    reports = recorded("async-diloco period=2")
    assert reports[0][:2] == [-0.1, -0.3]
    assert [[row[2]] * 3 for row in reports] == recorded("diloco period=3")


def test_a_centre_by_hand() -> None:
    # asgd: the centre goes to -1, -3, -6, -10, ...; a row is the centre as its learner left it.
    assert recorded("asgd") == [[-1.0, -3.0, -6.0], [-10.0, -15.0, -21.0], [-28.0, -36.0, -45.0]]
    # asgd, staleness-aware: reports 0, 1 and 2 updates late count 1, 1 and 1/2; each round all have just read it.
    assert recorded("asgd staleness_aware=true")[0] == [-1.0, -3.0, -4.5]
    # rennala: the third report moves the centre, by the mean, and the others have read it as it was.
    assert recorded("rennala") == [[0.0, 0.0, -2.0], [-2.0, -2.0, -7.0], [-7.0, -7.0, -15.0]]
    # easgd, alpha = 0.3: at first nothing is apart. In round 3 row 0 at -5 and the centre at 0 give way by 1.5 each;
    # row 1 at -7 and the centre, now at -1.5, by 1.65; row 2 at -9 and the centre, at -3.15, by 1.755. Then 7, 8, 9.
    assert recorded("easgd period=2") == [[-1.0, -2.0, -3.0], [-5.0, -7.0, -9.0], [-10.5, -13.35, -16.245]]
    # easgd-sync: all give way to the centre at 0, by 1.5, 2.1 and 2.7.
    assert recorded("easgd-sync period=2")[2] == [-10.5, -12.9, -15.3]


def test_a_chain_of_three_in_consensus_order_by_hand() -> None:
    # T = (2 1 0; 1 1 1; 0 1 2) / 3. Round 1: -(1, 2, 3). Round 2: T x = -(4, 6, 8) / 3, minus 4, 5, 6.
    # Round 3: T x = -(53, 63, 73) / 9, minus 7, 8, 9.
    found = first_parameters(trajectory("dpsgd:graph edges=[[0,1],[1,2]] order=consensus"))
    assert found[0] == [-1.0, -2.0, -3.0]
    assert found[1] == pytest.approx([-16 / 3, -7, -26 / 3], abs=1e-4)
    assert found[2] == pytest.approx([-116 / 9, -15, -154 / 9], abs=1e-4)
