"""From the learners that were saved to those that go on: as they were, more or fewer, or under another strategy.

The same learners under the same strategy go on bit for bit. Else:

    row          the model to evaluate, on every learner: the centre, or the mean of the holders' rows (by their masses,
                 where the strategy weighs rows)
    centre       stays, with the vectors beside it
    all others   (momentum, block memory, ...) the mean over the L learners, on every learner; a vector that is the same
                 on all, such as the anchor of block momentum, stays the same bit for bit
    steps        the largest, on every learner: draws by step number go on, and none is made twice
    versions     the largest of the rows', so that they only grow; the centre's stays

Under another strategy, or one that remembers something else by its options, the optimizer's memory is such a mean too.
All that is a strategy's begins as in a new training: the centre with the model, its memory and masses with zeros,
steps, by which strategies know that they begin, and versions with 0.

Legend: P parameters, L learners before, M learners after.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from roundelay.algorithms.averaging import weights_of
from roundelay.runtime.base import Cluster, ClusterState, of_centre
from roundelay.strategies.base import Strategy


@dataclass(frozen=True)
class TrainedBy:
    """The strategy of saved learners, as far as it matters to those that go on."""

    strategy: str
    memory: Sequence[str]  # names of vectors that it remembers
    holders: Sequence[int]  # ranks whose rows are models
    weighed: bool = False  # rows have masses
    centre: bool = False  # there is one

    @classmethod
    def of(cls, strategy: Strategy, ranks: Iterable[int]) -> Self:
        """Describe the strategy of learners `ranks`."""
        centre = strategy.traits.model == "centre"
        return cls(strategy.name, strategy.memory, strategy.holders(tuple(ranks)), strategy.weighed, centre)

    @classmethod
    def from_json(cls, meta: Mapping[str, Any]) -> Self:
        """Read the strategy from the plain values of a save.

        Raises:
            KeyError: the save does not name its strategy.
        """
        known = {name: meta[name] for name in ("weighed", "centre") if name in meta}
        return cls(meta["strategy"], meta["memory"], meta["holders"], **known)

    def to_json(self) -> dict[str, Any]:
        """Return the strategy as plain values, for a save."""
        return {**vars(self), "memory": list(self.memory), "holders": list(self.holders)}

    def remembered_by(self, strategy: Strategy) -> bool:
        """Return True if `strategy` can go on with the saved strategy's memory."""
        return self.strategy == strategy.name and sorted(self.memory) == sorted(strategy.memory)

    def become(self, strategy: Strategy, models: str, optimizers: str) -> str:
        """Return a sentence on the state with which learners begin under `strategy`, if they do not go on as they were.

        Args:
            models: words for the models that are averaged, if there is no centre ("3 models").
            optimizers: words for the optimizers' state with which they begin; "": none.
        """
        model, kept = "the centre" if self.centre else f"the mean of {models}", self.remembered_by(strategy)
        parts = [model, optimizers]
        if kept and self.memory:
            parts.append(f"the mean over learners of what {self.strategy} remembers ({', '.join(self.memory)})")
        what = f"every learner begins with {' and '.join(filter(None, parts))}"
        if kept:
            return what
        dropped = f" (its {', '.join(self.memory)} dropped)" if self.memory else ""
        return f"{self.strategy}{dropped} goes on as {strategy.label}, which begins anew: {what}"


def _widened(state: ClusterState, cluster: Cluster) -> ClusterState:
    """Return `state` with as many scalars a learner as `cluster` has. An earlier version kept fewer for the estimate of
    noise, which then begins anew; the optimizer's, which come first, and the mass, the last, stay."""
    had = state.vectors.get("scalars")
    if had is None or had.shape[1] == cluster.scalars:
        return state
    numbers, first = had.new_zeros(len(had), cluster.scalars), len(cluster.optimizer.scalars)
    numbers[:, :first] = had[:, :first]
    if cluster.strategy.weighed:
        numbers[:, -1] = had[:, -1]
    return replace(state, vectors={**state.vectors, "scalars": numbers})


def gone_on_with(state: ClusterState, cluster: Cluster, trained: TrainedBy) -> ClusterState:
    """Convert `state`, of L learners as `trained` describes, to that of the M learners of `cluster`."""
    had, rows, learners = state.vectors, state.vectors["row"], cluster.learners
    kept, before = trained.remembered_by(cluster.strategy), len(rows)
    if kept and before == learners:
        return _widened(state, cluster)
    goes_on = {*had} if kept else {*had} & {*cluster.optimizer.memory}
    nothing, model = torch.zeros_like(rows[0]), model_of(state, trained.holders, trained.weighed)
    each = {name: mean(had[name]) if name in goes_on else nothing for name in cluster.memory} | {"row": model}
    if cluster.scalars:
        each["scalars"] = numbers = torch.zeros(cluster.scalars, dtype=torch.float64)
        known = mean(had["scalars"]) if "scalars" in had else numbers
        count = len(known) if kept and len(known) == len(numbers) else len(cluster.optimizer.scalars)
        numbers[:count] = known[:count]
    vectors = {name: one.expand(learners, *one.shape).clone() for name, one in each.items()}
    if cluster.centre:
        vectors |= dict.fromkeys(cluster.centre_vectors.values(), nothing[None]) | {"centre": model[None].clone()}
    vectors |= {name: had[name] for name in goes_on if of_centre(name)}
    integers = {"steps": [0] * learners, "versions": [0] * (learners + cluster.centre)}
    if kept:  # behind the learners' may come the centre's
        now = state.integers.items()
        integers = {name: [max(numbers[:before])] * learners + numbers[before:] for name, numbers in now}
    return ClusterState(vectors, integers, state.virtual_ns)


def begun_at(state: ClusterState, x: Tensor) -> ClusterState:
    """Return `state`, of learners that have trained nothing, with model `x` (P,) in every row and in the centre."""
    vectors = {
        name: x.expand_as(value).clone() if name in ("row", "centre") else value
        for name, value in state.vectors.items()
    }
    return ClusterState(vectors, state.integers, state.virtual_ns)


def model_of(state: ClusterState, holders: Sequence[int], weighed: bool = False) -> Tensor:
    """Return the model (P,) to evaluate: the centre, or the mean of the rows of `holders`, by their masses if
    `weighed`."""
    if "centre" in state.vectors:
        return state.vectors["centre"][0]
    weights = weights_of(state.vectors["scalars"][list(holders), -1].tolist()) if weighed else [1.0] * len(holders)
    return mean(state.vectors["row"][list(holders)], weights)


def mean(vectors: Iterable[Tensor], weights: Iterable[float] = itertools.repeat(1.0)) -> Tensor:
    """Return the mean (P,) of vectors (P,) by weights, not all 0: see `RunningMean`."""
    found = RunningMean()
    for vector, weight in zip(vectors, weights, strict=False):
        found.add(vector, weight)
    return found.value


class RunningMean:
    """A weighted mean, in float64, of vectors that come one by one; that of equal vectors is exactly that vector."""

    def __init__(self) -> None:
        self._sum, self._weight = torch.empty(0), 0.0
        self._kind = torch.float32

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add a vector (P,) to the mean, with a weight of 0 or more."""
        if weight:
            self._kind = vector.dtype
            self._sum = self._sum.add_(vector, alpha=weight) if self._weight else vector.double() * weight
            self._weight += weight

    @property
    def value(self) -> Tensor:
        """The mean (P,) of the vectors added so far."""
        return (self._sum / self._weight).to(self._kind)
