"""DiLoCo beside torchft (https://github.com/pytorch/torchft).

Its regression test records two replicas that take inner steps of -2 (constant gradients) and outer SGD steps at rate 2,
over two fragments of one number each, with six steps between two means of a fragment.

The first record, without delay and without mixing, is plain DiLoCo fragment by fragment. The other five are Streaming
DiLoCo (Douillard et al. 2025, arXiv 2501.18512). `diloco` is held to `streaming` below, a reference for all, which with
TORCHFT=DIR, a checkout, is held to the records themselves.
"""

import json
import os
from pathlib import Path

import pytest
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy
from support.slope import Told

SETTINGS = [(0, 0.0), (0, 0.5), (0, 1.0), (1, 0.0), (1, 0.5), (1, 1.0)]  # (delay, alpha), in the order of the records
PERIOD, FRAGMENTS, STEPS = 6, 2, 30


def streaming(delay: int, alpha: float, steps: int) -> list[list[float]]:
    """Weights of both fragments before each step and after the last, [fragment][step], of replicas that are all alike.

    Every `PERIOD` steps, each fragment in its turn, W_global <- W_global - 2 (W_global - W_local), with the W_local of
    `delay` steps ago; learners go on from (1 - alpha) W_global + alpha W_local.
    """
    found = []
    for fragment in range(FRAGMENTS):
        first = PERIOD // FRAGMENTS * (fragment + 1)
        local = held = sent = 1.0
        history = [local]
        for step in range(1, steps + 1):
            local -= 2
            if (step + delay - first) % PERIOD == 0:
                sent = held - local
            if step >= first and (step - first) % PERIOD == 0:
                held -= 2 * sent
                local = (1 - alpha) * held + alpha * local
            history.append(local)
        found.append(history)
    return found


def steady(parameters: int, points: dict[int, list[float]]) -> Told:
    """Parameters that begin at 1; their gradients are 2. Notes where each minibatch's was taken."""

    def gradient(x: Tensor, batch: Minibatch, out: Tensor) -> None:
        out.fill_(2.0)
        points[batch.index] = x.tolist()

    return Told(parameters, gradient, 2 * STEPS, start=1.0)


def test_plain_diloco_is_torchft_s_without_delay_and_mixing() -> None:
    """The second fragment, whose means are after steps 6, 12, ...: the whole model of our learners, block by block."""
    cluster = Cluster(make_strategy(f"diloco,period={PERIOD},rate=2,momentum=0"), steady(1, {}), Sgd(), 2)
    plan, found = EpochPlan(0, 2 * STEPS, 2, 2, 0), [1.0]
    with SimRuntime(cluster) as runtime:
        for block in range(STEPS // PERIOD):
            runtime.segment(SegmentPlan(plan, 1.0, first=2 * block * PERIOD, last_round=(block + 1) * PERIOD))
            found.append(float(runtime.consensus()[0]))
    assert found == streaming(0, 0.0, STEPS)[1][::PERIOD] == [1, -23, -47, -71, -95, -119]


@pytest.mark.parametrize(("delay", "alpha"), SETTINGS)
def test_streaming_diloco_is_torchft_s(delay: int, alpha: float) -> None:
    """Before every step, each fragment of both learners."""
    options = f"period={PERIOD},rate=2,momentum=0,fragments={FRAGMENTS},delay={delay},mix={alpha}"
    points: dict[int, list[float]] = {}
    task = steady(FRAGMENTS, points)
    with SimRuntime(Cluster(make_strategy(f"diloco,{options}"), task, Sgd(), 2)) as runtime:
        runtime.segment(SegmentPlan(EpochPlan(0, 2 * STEPS, 2, 2, 0), 1.0))
    expected = streaming(delay, alpha, STEPS)
    for index, point in points.items():
        assert point == [expected[fragment][index // 2] for fragment in range(FRAGMENTS)], index
    assert len(points) == 2 * STEPS


def test_the_reference_by_hand() -> None:
    assert streaming(0, 0.0, 4)[0] == [1, -1, -3, -11, -13], "1 - 2 (1 - -5) = -11"
    assert streaming(0, 0.5, 4)[0] == [1, -1, -3, -8, -10], "half way between -11 and -5"
    assert streaming(0, 1.0, 4)[0] == [1, -1, -3, -5, -7], "the local model goes on as it is"
    assert streaming(1, 0.0, 4)[0] == [1, -1, -3, -7, -9], "1 - 2 (1 - -3) = -7, of a model a step old"


@pytest.mark.skipif("TORCHFT" not in os.environ, reason="set TORCHFT to a checkout of torchft to read its records")
@pytest.mark.parametrize("number", range(6))
def test_the_reference_is_what_torchft_recorded(number: int) -> None:
    name = f"torchft.diloco_regression_test.DiLoCoMockedUpdateTest.test_diloco_mocked_updates_{number}.json"
    replicas = json.loads((Path(os.environ["TORCHFT"]) / "test_fixtures" / name).read_text())
    for ((record,),) in ((replica,) for replica in replicas):
        history = record["history"]
        ours = streaming(*SETTINGS[number], len(history) - 1)
        for fragment in range(FRAGMENTS):
            theirs = [history[str(step)][f"layers.{fragment}.weight"][0][0] for step in range(len(history))]
            assert theirs == ours[fragment], fragment
