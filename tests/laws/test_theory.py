"""Consensus distance and noise floor at rest, on a quadratic, as docs/theory.md derives them."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.topology import ring_matrix
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy

RATE, CURVATURE, ROUNDS, PARAMETERS = 0.05, 0.5, 300, 2048
"""Chance is a matter of 1 / sqrt(2 x parameters x learners): below 1 %."""


def at_rest(name: str, learners: int) -> tuple[float, float]:
    """(consensus distance, loss of the mean a parameter) after so many rounds, gradients with noise of variance 1."""
    task = Quadratic(PARAMETERS, ROUNDS * learners, curvature=(CURVATURE, CURVATURE))
    cluster = Cluster(make_strategy(name), task, Sgd(), learners, 0)
    with SimRuntime(cluster) as runtime:
        runtime.segment(SegmentPlan(EpochPlan(0, ROUNDS * learners, learners, learners, 0), RATE))
        loss = task.build().evaluate(runtime.consensus(), "held out").mean_loss
        return runtime.consensus_distance(), loss / PARAMETERS


def distance(eigenvalues: NDArray[np.float64]) -> float:
    """sqrt of a^2 (1/L) sum_m 1 / (1 - (lambda_m - a h)^2)."""
    terms = 1 / (1 - (eigenvalues - RATE * CURVATURE) ** 2)
    return float(RATE * np.sqrt(terms.sum() / (len(eigenvalues) + 1)))


def own_step(learners: int) -> float:
    return distance(np.zeros(learners - 1))


def ring(learners: int) -> float:
    return distance(np.linalg.eigvalsh(ring_matrix(learners))[:-1].astype(np.float64))


def random_ring(learners: int) -> float:
    ah, mixed = RATE * CURVATURE, (learners / 3 - 1) / (learners - 1)
    return float(RATE * np.sqrt((1 - 1 / learners) / (1 - mixed * (1 - 2 * ah) - ah**2)))


@pytest.mark.parametrize("learners", [8, 32])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("delay-by-one", own_step),
        ("dpsgd:ring,order=consensus", ring),
        ("dpsgd:random-ring,order=consensus", random_ring),
    ],
)
def test_gradient_noise_and_mixing_balance_where_theory_says(
    name: str, expected: Callable[[int], float], learners: int
) -> None:
    found, _ = at_rest(name, learners)
    assert found == pytest.approx(expected(learners), rel=0.03)


@pytest.mark.parametrize("name", ["ssgd", "delay-by-one", "dpsgd:ring,order=consensus", "adpsgd:fixed-ring"])
def test_the_noise_floor_of_the_mean_falls_as_one_over_the_number_of_learners(name: str) -> None:
    """a s^2 / (2 L (2 - a h)), for all whose mixing leaves the mean where it was. Chance: 3 %."""
    for learners in (4, 16):
        floor = RATE / (2 * learners * (2 - RATE * CURVATURE))
        assert at_rest(name, learners)[1] == pytest.approx(floor, rel=0.12)
