"""Objectives against torch's own losses and each other, alone and in a training."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.state import Statistics
from roundelay.learner.base import Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import Classification, CrossEntropy, Evidence, Inputs, Objective
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay_speech.objectives import AnyObjective, Smoothed
from roundelay_speech.recipes.known import choices
from roundelay_speech.recipes.recipe import load_recipe
from support.blobs import Blobs, Held
from support.clusters import cluster, make_strategy, plan

REGISTERED: list[Objective] = [cls() for cls in get_args(AnyObjective)]
CLASSIFICATIONS = [one for one in REGISTERED if isinstance(one, Classification)]


def linear() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(6, 3)


def test_the_smoothed_loss_is_torchs() -> None:
    (points,), classes = Blobs().batch("train", np.arange(50))
    module = linear()
    loss, evidence = Smoothed(share=0.3).loss(module, (points,), classes)
    expected = nn.functional.cross_entropy(module(points), classes, label_smoothing=0.3)
    torch.testing.assert_close(loss, expected)
    parameters = list(module.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))
    torch.testing.assert_close(evidence.measure, nn.functional.cross_entropy(module(points), classes))


def test_a_smoothed_loss_by_hand() -> None:
    """Two classes of which the target is 3 times as probable: -log 3/4 with the weight 0.9, -log 1/4 with 0.1."""
    scores = torch.tensor([[3.0, 1.0]]).log()
    loss, _ = Smoothed(share=0.2).loss(nn.Identity(), (scores,), torch.tensor([0]))
    assert float(loss) == pytest.approx(0.9 * np.log(4 / 3) + 0.1 * np.log(4))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_impossible_share(share: float) -> None:
    with pytest.raises(UserError, match=r"training\.objective\.share"):
        Smoothed(share=share)


@pytest.mark.parametrize("objective", CLASSIFICATIONS, ids=lambda o: o.name)
def test_statistics_of_several_minibatches_are_those_of_each(objective: Objective) -> None:
    module = linear()
    batches = [Blobs().batch("train", np.arange(20 * i, 20 * (i + 1))) for i in range(3)]
    found = [objective.loss(module, inputs, targets)[1] for inputs, targets in batches]
    together = Evidence(*(torch.stack(parts) for parts in zip(*found, strict=True)))
    targets = torch.stack([some for _, some in batches])
    each = [objective.statistics(one, its) for one, its in zip(found, targets, strict=True)]
    assert objective.statistics_of_each(together, targets) == each
    assert [one.frames for one in each] == [20, 20, 20]


@pytest.mark.parametrize("objective", CLASSIFICATIONS, ids=lambda o: o.name)
def test_whatever_is_minimised_cross_entropy_and_accuracy_are_reported(objective: Objective) -> None:
    """So schedules, results.json and reports mean the same by `frame cross-entropy`."""
    learner, plain = (ModuleLearner(linear(), Blobs(), objective=one) for one in (objective, CrossEntropy()))
    x = plain.initial()
    found, expected = learner.evaluate(x, "dev"), plain.evaluate(x, "dev")
    assert (found.frames, found.correct) == (expected.frames, expected.correct)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    out = torch.zeros_like(x)
    epoch = EpochPlan(0, 640, 64, 1, 0)
    trained, reported = (one.gradient(x, epoch.piece(0), epoch, out) for one in (learner, plain))
    assert trained.loss == pytest.approx(reported.loss, rel=1e-6)


def test_a_recipe_names_one() -> None:
    assert load_recipe("demo").training.objective == CrossEntropy()
    assert load_recipe("demo", ["training.objective=smoothed"]).training.objective == Smoothed()
    written = ["training.objective.name=smoothed", "training.objective.share=0.2"]
    assert load_recipe("demo", written).training.objective == Smoothed(share=0.2)
    with pytest.raises(UserError, match=r"training\.objective\.name .*smooth.*cross-entropy, smoothed, ctc"):
        load_recipe("demo", ["training.objective=smooth"])
    assert list(choices("objectives")) == [one.name for one in REGISTERED]


class Squares(Objective):
    """Squared distance of points to targets: not a classification."""

    name = "squares"

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        found = module(*inputs).float()
        mean = (found - targets).square().sum(1).mean()
        return mean, Evidence(mean.detach(), found.detach())

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        return Statistics(len(targets), float(evidence.measure) * len(targets))


def line() -> Held:
    """Points and an exact linear function of them."""
    drawn = np.random.default_rng(0)
    points, by = (torch.from_numpy(drawn.standard_normal(shape, dtype=np.float32)) for shape in ((640, 6), (6, 2)))
    return Held(points, points @ by)


@dataclass(frozen=True)
class Regression(Task):
    """A linear module on them."""

    def build(self) -> ModuleLearner:
        torch.manual_seed(0)
        return ModuleLearner(nn.Linear(6, 2), line(), objective=Squares())


@pytest.mark.parametrize("name", ["sgd", "ssgd", "bsp period=3", "asgd", "adpsgd:random"])
def test_strategies_train_any_objective(name: str) -> None:
    """They are told of a gradient, not of what it is the gradient of."""
    learners = 1 if make_strategy(name).name == "sgd" else 2
    with SimRuntime(cluster(name, learners, Regression()), CostModel()) as runtime:
        learner = Regression().build()
        before = learner.evaluate(learner.initial(), "dev").mean_loss
        for epoch in range(4):
            runtime.segment(plan(10, learners, rate=0.05, epoch=epoch))
        after = learner.evaluate(runtime.consensus(), "dev").mean_loss
    assert before > 1
    assert after < before / 4


def test_a_learner_that_nobody_holds_is_given_back_with_its_examples() -> None:
    """A grid builds one after another in one process; each has the features of a whole corpus in reach."""
    examples = Blobs()
    learner = ModuleLearner(linear(), examples)
    epoch = EpochPlan(0, learner.examples, 60, 1, seed=3)
    learner.gradient(learner.initial(), epoch.piece(0), epoch, torch.zeros(learner.parameters))
    gone = weakref.ref(learner)
    del learner
    gc.collect()
    assert gone() is None
