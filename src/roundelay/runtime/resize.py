"""The state of L learners as a state of M: for a run that goes on with another number of them.

    row          the model to evaluate, on every learner: the centre, or the mean of the holders' rows (by their masses,
                 where the strategy weighs rows)
    centre       stays, and what is kept beside it
    all others   (momentum, block memory, ...) the mean over the L learners, on every learner; a vector that is the same
                 on all, such as the anchor of block momentum, stays bit for bit what it is
    steps        the largest, on every learner: whatever is drawn by step number goes on, and nothing is drawn twice
    versions     the largest of the rows', so that they only grow; the centre's stays

Legend: P parameters, L learners before, M learners after.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.runtime.base import Cluster, ClusterState, of_centre


def resized(state: ClusterState, holders: Sequence[int], learners: int, weighed: bool = False) -> ClusterState:
    """`state`, of L learners of whom `holders` hold models, as a state of `learners`; `weighed`: rows have masses."""
    before = len(state.vectors["row"])
    centre = state.vectors.get("centre")
    vectors = {}
    for name, value in state.vectors.items():
        if of_centre(name):
            vectors[name] = value
        else:
            one = _mean(value) if name != "row" else _model(state, holders, weighed) if centre is None else centre[0]
            vectors[name] = one.expand(learners, *one.shape).clone()
    integers = {
        name: [max(numbers[:before])] * learners + numbers[before:]  # behind the learners' may come the centre's
        for name, numbers in state.integers.items()
    }
    return ClusterState(vectors, integers, state.virtual_ns)


def begun_at(state: ClusterState, x: Tensor) -> ClusterState:
    """`state`, of learners that have trained nothing, with model `x` (P,) in every row and in the centre."""
    vectors = {
        name: x.expand_as(value).clone() if name in ("row", "centre") else value
        for name, value in state.vectors.items()
    }
    return ClusterState(vectors, state.integers, state.virtual_ns)


def beginning_after(before: int, cluster: Cluster) -> str:
    """A sentence on the state that the learners of `cluster` begin with, where there were `before` of them."""
    model = "the centre" if cluster.centre else f"the mean of {before} models"
    what = f"every learner begins with {model}"
    if cluster.memory:
        what += f" and the mean over learners of what they remember ({', '.join(cluster.memory)})"
    return f"{what}; the schedule, the rounds of the epoch and the place in it stay"


def _model(state: ClusterState, holders: Sequence[int], weighed: bool) -> Tensor:
    rows = state.vectors["row"][list(holders)]
    if not weighed:
        return _mean(rows)
    shares = shares_of(state.vectors["scalars"][list(holders), -1].tolist())
    return _mean(rows.double() * (torch.tensor(shares, dtype=torch.float64) * len(holders))[:, None]).to(rows.dtype)


def _mean(vectors: Tensor) -> Tensor:
    """The mean (P,) of (L, P), summed in float64: the mean of equal vectors is that vector."""
    total = torch.zeros(vectors.shape[1:], dtype=torch.float64)
    for vector in vectors:
        total += vector
    return (total / len(vectors)).to(vectors.dtype)
