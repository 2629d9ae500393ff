"""The factor on one learner's learning rate that lets several learners go further than one.

    as-is     1: the rate is that of one learner. Under averages the model then moves by the mean of the learners' steps
    fastest   the model moves as far in a second as the row of the fastest learner: where rows are weighed by their
              learners' work (`Strategy.weighed`), the fastest's mass over the mean of masses by themselves
              (`fastest_over_mean`); else 1
    linear    the model moves by the sum of all gradients: 1 / `Strategy.distance`
    gain      between the two, by the noise of gradients (algorithms/gain.py). Where rows are weighed: that of `fastest`
              times the gain of as many learners as one would need whose mean has the noise that the model then has
              (`minibatches_averaged`)
    auto      gain where rows can be weighed and each learner has a minibatch of its own, else as-is (`settled`)

Where curvature withholds the gain, a slow learner harms: near the largest stable rate its gradients, at old
snapshots, and the factor that makes up for its row are too much. So a learner under `gain` marks its row as long as
consecutive gradients leave less than half of the gain, at first too, and rows much lighter than one with a mark follow
it (algorithms/averaging.py).

A factor is of the local update alone: the schedule's rate, and the learning rate in records, stay. It follows the
learners that live.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.averaging import fastest_over_mean, minibatches_averaged, shares_of, speeds
from roundelay.algorithms.gain import EARLIER, NOISE_SCALARS, GradientNoise, gain
from roundelay.core.rates import LearnersRate
from roundelay.strategies.base import Strategy

_PARTS = 32
"""Factors are multiples of 1 over this number, to change seldom: a compiled optimizer compiles anew for each."""


def settled(rate: LearnersRate, strategy: Strategy, shared: bool) -> LearnersRate:
    """Return the rule that `auto` stands for under a strategy, with a `shared` minibatch or one each; other rules are
    returned unchanged."""
    if rate != "auto":
        return rate
    return "gain" if not shared and strategy.under("gain", shared).weighed else "as-is"


@final
class RateFactor:
    """The factor on the learning rate of one learner.

    Args:
        shared: True if learners share a round's minibatch; else each has one of its own.
        noise: noise estimated from the learner's gradients; needed for `gain`.
    """

    def __init__(self, rate: LearnersRate, strategy: Strategy, shared: bool, noise: GradientNoise | None) -> None:
        self.rate, self._strategy, self._shared, self.noise = rate, strategy, shared, noise
        self._living: Collection[int] = ()
        self._part = 1.0
        self._largest, self._averaged = 1.0, 1.0

    @property
    def steep(self) -> bool:
        """True while curvature withholds more than half of the gain, as far as is known."""
        return self.noise is not None and self.noise.steep

    def live(self, living: Collection[int], different: int | None = None) -> None:
        """Note that the learners `living` are alive from now on, and how many of them have `different` minibatches
        (None: all); equal ones gain nothing."""
        if living != self._living:
            self._living = living
            self._largest = self._strategy.largest_factor(len(living), self._shared)
            self._averaged = self._strategy.minibatches_in_an_update(len(living))
        self._part = 1.0 if different is None else different / max(1, len(living))

    def factor(
        self,
        step: int,
        gradient: Callable[[], Tensor],
        empty: bool = False,
        others: NDArray[np.float64] | None = None,
    ) -> float:
        """Return the factor for a step, and measure its `gradient` (P,) if later factors depend on it; that of an
        `empty` minibatch is not measured. `others` are the shares that the learner's row knows (`Row.others`)."""
        if self.rate == "linear":
            return self._largest
        found, minibatches = 1.0, self._largest
        if others is not None:
            known = [others[place] for place in {rank % len(others) for rank in self._living}]
            found, alike = fastest_over_mean(known), self._averaged * len(self._living) / max(1, len(known))
            minibatches = alike * minibatches_averaged(speeds(known))
        if self.noise is not None:
            averaged = max(1.0, self._part * self._averaged)
            found *= 1 + (gain(self.noise.signal, self._part * minibatches, averaged) - 1) * self.noise.free
            found = 1.0 if self.noise.early else found
            if self.noise.wants(step) and not (empty and self._averaged == 1):
                self.noise.look(step, gradient())
        return round(_PARTS * found) / _PARTS


def noise_memory(rate: LearnersRate, largest: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of vectors (P,) and of numbers that a learner keeps for its factor."""
    return ((EARLIER,), NOISE_SCALARS) if rate == "gain" and largest > 1 else ((), ())


def rate_factor(
    rate: LearnersRate, strategy: Strategy, shared: bool, memory: Mapping[str, Tensor], scalars: NDArray[np.float64]
) -> RateFactor | None:
    """Return the factor on a learner's rate, estimated in `memory` and `scalars`; None: it is always 1."""
    if rate == "as-is" or (rate == "gain" and EARLIER not in memory) or (rate == "fastest" and not strategy.weighed):
        return None
    noise = GradientNoise(scalars, memory[EARLIER]) if rate == "gain" else None
    return RateFactor(rate, strategy, shared, noise)


def said_at_start(rate: LearnersRate, strategy: Strategy, learners: int, shared: bool) -> str:
    """Return a sentence on the factor that a run begins with; "" if there is nothing to choose."""
    largest, usual = strategy.largest_factor(learners, shared), rate in ("fastest", "as-is")
    if learners == 1 or (usual and largest == 1):
        return ""
    if largest == 1:
        why = "they share one minibatch" if shared else f"{strategy.label} moves by the sum of their gradients already"
        return f"rate {rate}: {learners} learners train at the learning rate as it is, for {why}"
    together, alone = f"the model of {learners} learners moves", "as far in a second as the fastest of them alone would"
    noise = "by the noise of their gradients"
    each = (
        f"each of {learners} learners trains at the learning rate of one, and the model moves by 1/{largest:.3g} of "
        "the sum of their gradients; rate gain or linear moves it further"
    )
    said = {
        "as-is": each,
        "fastest": f"{together} {alone}, by gradients with less noise; rate gain moves it further"
        if strategy.weighed
        else each,
        "linear": f"{learners} learners train at {largest:.3g} times the learning rate, so that the model moves by the "
        "sum of their gradients",
        "gain": f"{together} 1 to {largest:.3g} times {alone}, {noise}"
        if strategy.weighed
        else f"{learners} learners train at 1 to {largest:.3g} times the learning rate, {noise}",
    }
    return f"rate {rate}: {said[rate]}"


def work_of(
    factors: NDArray[Any], steps: NDArray[np.int64], strategy: Strategy, learners: int, minibatches_a_round: int
) -> tuple[float, float]:
    """Return by how many steps of one learner the common model has moved, and the steps of the fastest learner.

    Args:
        factors: (L,) sums over the steps of each learner; all 0: every factor was 1.
        steps: (L,) number of steps of each learner.
        learners: number of living learners.
    """
    factors, most = factors if factors.any() else steps, float(steps.max(initial=0))
    if strategy.weighed:  # masses are as steps; where a slow row follows, the others' part is larger than is said
        return float(np.dot(shares_of(steps.tolist()), factors)), most
    return float(factors.sum()) * strategy.moves(learners, minibatches_a_round), most


def said_at_end(
    rate: LearnersRate,
    strategy: Strategy,
    learners: int,
    shared: bool,
    work: float,
    averaged: float = 1.0,
    different: int | None = None,
) -> str:
    """Return a sentence on the progress of learners that moved the model by `work` times the steps of the fastest, and
    averaged `averaged` minibatches (`minibatches_averaged`); "" if both are known beforehand. `different` learners have
    minibatches of their own; None: all."""
    largest = strategy.largest_factor(learners, shared)
    if learners == 1 or shared or largest == 1:
        return ""
    if rate == "gain":
        equal = different is not None and different < learners
        work, why = (min(work, float(different or 1)), ", for their minibatches were equal") if equal else (work, "")
        return f"{learners} learners did the work of {work:.2f} (rate gain){why}"
    if rate == "fastest" and strategy.weighed:
        return (
            f"{learners} learners moved the model as far as {work:.2f} would at the learning rate of one, with the "
            f"noise of minibatches {averaged:.2f} times as large (rate fastest)"
        )
    return f"{learners} learners moved the model as far as {work:.2f} would at the learning rate of one (rate {rate})"
