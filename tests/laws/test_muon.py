"""Muon as a local optimizer: matrices are updated as a whole, by torch's own arithmetic, under every strategy that
leaves rows in one piece."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from roundelay.algorithms.muon import Muon
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.flat import pieces
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.agreeing import assert_equal
from support.blobs import BlobTask
from support.clusters import EVERY, MANY, make_strategy

ROUNDS, RATE = 6, 0.05
MUON = Muon({"weight_decay": 0.01}, TorchOptimizer("adamw", {"weight_decay": 0.1}), 0.5)

pytestmark = pytest.mark.usefixtures("one_thread")


TASK = BlobTask(dropout=0.0, width=11)
"""Two layers, one of them taller than wide."""


def cluster(name: str, learners: int) -> Cluster:
    return Cluster(make_strategy(name), TASK, MUON, learners)


def plan(learners: int) -> SegmentPlan:
    return SegmentPlan(EpochPlan(0, ROUNDS * 40, 40, learners, 1), RATE)


def bare(learners: int = 1) -> Tensor:
    """A plain loop over the whole minibatches, or the means of their parts' gradients, by torch's optimizers."""
    learner, epoch = TASK.build(), plan(learners).epoch
    x, gradient = learner.initial(), torch.empty(learner.parameters)
    module = nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 3))
    parameters = list(module.parameters())
    for p, piece in zip(parameters, pieces(module, x), strict=True):
        p.data = piece
    matrices, rest = ([p for p in parameters if (p.ndim == 2) == is_matrix] for is_matrix in (True, False))
    optimizers = (
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=RATE / 2, weight_decay=0.1, foreach=False),
    )
    for index in range(ROUNDS):
        learner.gradient(x, epoch.piece(index), epoch, gradient)
        for p, piece in zip(parameters, pieces(module, gradient), strict=True):
            p.grad = piece.clone()
        for optimizer in optimizers:
            optimizer.step()  # type: ignore[no-untyped-call]
    return x.detach()


ADMITTED = [name for name in EVERY if not make_strategy(name).cuts_rows]


@pytest.mark.parametrize("name", [n for n in ADMITTED if make_strategy(n).traits.alone_is_sgd])
def test_one_learner_is_the_bare_loop(name: str) -> None:
    """Bit for bit, but where a centre or an anchor takes differences, which round."""
    with SimRuntime(cluster(name, 1)) as runtime:
        runtime.segment(plan(1))
        if runtime.cluster.strategy.memory == ():
            assert torch.equal(runtime.consensus(), bare())
        else:
            torch.testing.assert_close(runtime.consensus(), bare(), rtol=0.01, atol=1e-3)


def test_two_learners_under_ssgd_are_the_large_minibatch() -> None:
    """Means of gradients round otherwise, and Newton-Schulz steps are in sixteen bits: 2^-8 of a step."""
    with SimRuntime(cluster("ssgd", 2)) as runtime:
        runtime.segment(plan(2))
        rows = runtime.rows()
    assert torch.equal(rows[0], rows[1])
    torch.testing.assert_close(rows[0], bare(), rtol=0, atol=ROUNDS * RATE * 2**-8)
    assert not torch.allclose(rows[0], TASK.build().initial(), atol=0.1)


@pytest.mark.parametrize("name", ["bmuf period=3", "asgd", "adpsgd:random"])
def test_a_run_cut_in_two_is_the_whole_run(name: str) -> None:
    """All that Muon and the other optimizer remember is state."""
    first, second = (SegmentPlan(EpochPlan(epoch, 120, 40, 3, 1), RATE) for epoch in range(2))
    with SimRuntime(cluster(name, 3), CostModel(jitter=0.3)) as runtime:
        runtime.segment(first)
        middle = runtime.state()
        runtime.segment(second)
        whole = runtime.state()
    assert whole.vectors["scalars"][:, 0].tolist() == [1.0] * 3, "it has begun"
    with SimRuntime(cluster(name, 3), CostModel(jitter=0.3)) as runtime:
        runtime.load(middle)
        runtime.segment(second)
        assert_equal(runtime.state(), whole)


@pytest.mark.parametrize("name", [n for n in MANY if make_strategy(n).cuts_rows])
def test_strategies_that_cut_rows_are_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=r"muon, which updates matrices as a whole.*choose a strategy without fragments"
    ):
        SimRuntime(cluster(name, 3))


def test_those_that_cut_rows_say_so() -> None:
    assert {make_strategy(n).name for n in MANY if make_strategy(n).cuts_rows} == {"diloco", "divshare", "sparta"}
    assert not make_strategy("divshare fragments=1").cuts_rows


def test_a_row_that_is_one_vector_is_the_other_optimizer_s() -> None:
    """A learner that has no shapes has no matrices."""
    vectors = [torch.linspace(-1, 1, 7), torch.linspace(-1, 1, 7)]
    for x, optimizer in zip(vectors, (Muon(), TorchOptimizer("adamw")), strict=True):
        memory = {name: torch.zeros(7) for name in optimizer.memory}
        update = optimizer.attach([x], [memory], torch.zeros(len(optimizer.scalars)).double().numpy())
        update.begin()
        for _ in range(3):
            update.update_(0, torch.ones(7), 0.1)
            update.end()
    assert all(torch.equal(a, b) for a, b in pairwise(vectors))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": {"lr": 0.1}}, "schedule.learning_rate"),
        ({"options": {"nesterow": True}}, r"optimizer\.options\.nesterow; did you mean nesterov"),
        ({"options": {"momentum": -1.0}}, "muon cannot be used with"),
        ({"others_rate": 0.0}, r"optimizer\.others_rate is 0\.0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Muon(**options)  # type: ignore[arg-type]
