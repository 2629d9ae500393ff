"""The factor on one learner's learning rate that lets several learners go further than one.

    as-is     1: the rate is that of one learner. Under averages the model then moves by the mean of the learners' steps
    linear    the model moves by the sum of all gradients: 1 / `Strategy.distance`
    gain      between the two, by the noise of gradients (algorithms/gain.py)

A factor is of the local update alone: what a schedule says, and what records call the learning rate, stay. It follows
the learners that live.
"""

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.gain import EARLIER, NOISE_SCALARS, GradientNoise, gain
from roundelay.core.rates import LearnersRate
from roundelay.strategies.base import Strategy


@final
class RateFactor:
    """Of one learner.

    Args:
        shared: learners share a round's minibatch; else each has one of its own.
        noise: estimated from its gradients; needed for `gain`.
    """

    def __init__(self, rate: LearnersRate, strategy: Strategy, shared: bool, noise: GradientNoise | None) -> None:
        self.rate, self._strategy, self._shared, self.noise = rate, strategy, shared, noise
        self._living, self._largest, self._averaged = 0, 1.0, 1.0

    def live(self, living: int) -> None:
        """So many learners live from now on."""
        if living != self._living:
            self._living = living
            self._largest = self._strategy.largest_factor(living, self._shared)
            self._averaged = self._strategy.minibatches_in_an_update(living)

    def factor(self, step: int, gradient: Callable[[], Tensor], empty: bool = False) -> float:
        """Return the factor for this step, and look at its `gradient` (P,), where the next ones depend on it. One of an
        empty minibatch, which no other learner's is in, tells nothing."""
        if self.rate == "linear":
            return self._largest
        if self.noise is None:
            return 1.0
        found = gain(self.noise.signal, self._largest, self._averaged)
        if self.noise.wants(step) and not (empty and self._averaged == 1):
            self.noise.look(step, gradient())
        return found


def noise_memory(rate: LearnersRate, largest: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of vectors (P,) and of numbers that a learner keeps for its factor."""
    return ((EARLIER,), NOISE_SCALARS) if rate == "gain" and largest > 1 else ((), ())


def rate_factor(
    rate: LearnersRate, strategy: Strategy, shared: bool, memory: Mapping[str, Tensor], scalars: NDArray[np.float64]
) -> RateFactor | None:
    """Return the factor of a learner that keeps `memory`, and for it these `scalars`; None: it is always 1."""
    if rate == "as-is" or (rate == "gain" and EARLIER not in memory):
        return None
    noise = GradientNoise(scalars, memory[EARLIER]) if rate == "gain" else None
    return RateFactor(rate, strategy, shared, noise)


def said_at_start(rate: LearnersRate, strategy: Strategy, learners: int, shared: bool) -> str:
    """Return a sentence on the rate that was chosen; empty where there is nothing to choose."""
    largest = strategy.largest_factor(learners, shared)
    if learners == 1 or (rate == "as-is" and largest == 1):
        return ""
    if largest == 1:
        why = "they share one minibatch" if shared else f"{strategy.label} moves by the sum of their gradients already"
        return f"rate {rate}: {learners} learners train at the learning rate as it is, for {why}"
    if rate == "as-is":
        return (
            f"rate as-is: each of {learners} learners trains at the learning rate of one, and the model moves by "
            f"1/{largest:.3g} of the sum of their gradients; rate gain or linear moves it further"
        )
    if rate == "linear":
        return (
            f"rate linear: {learners} learners train at {largest:.3g} times the learning rate, so that the model "
            + ("moves by the sum of their gradients")
        )
    return (
        f"rate gain: {learners} learners train at 1 to {largest:.3g} times the learning rate, by the noise of their "
        "gradients"
    )


def work_of(factors: NDArray[Any], steps: NDArray[np.int64], moves: float) -> tuple[float, float]:
    """Return how many steps of one learner the common model has moved by, and the steps of the fastest learner.

    Args:
        factors: (L,) sums over the steps of each learner.
        moves: `Strategy.moves`.
    """
    return float(factors.sum()) * moves, float(steps.max(initial=0))


def said_at_end(rate: LearnersRate, strategy: Strategy, learners: int, shared: bool, work: float) -> str:
    """Return a sentence on how far learners came who moved the model by `work` times the steps of the fastest; empty
    where all that is known beforehand."""
    largest = strategy.largest_factor(learners, shared)
    if learners == 1 or shared or largest == 1:
        return ""
    if rate == "gain":
        return f"{learners} learners did the work of {work:.2f} (rate gain)"
    return f"{learners} learners moved the model as far as {work:.2f} would at the learning rate of one (rate {rate})"
