"""Block momentum beside one learner: how far it goes in as many examples at the same rate, and what becomes of the
local optimizer's momentum at a block's end."""

import math
from functools import cache

import pytest
import torch

from roundelay.algorithms.block_momentum import settle_block
from roundelay.algorithms.local_update import LocalOptimizer, Sgd, after_reset
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.rates import LearnersRate
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import STRATEGIES, make_strategy

ROUNDS = 60
"""Before and while the distance is measured, at least: whole blocks of every short period. Three times as many where
more is remembered than rows, and fifteen times where blocks are long: more than any momentum remembers."""
LONG_BLOCK = 6
LEARNERS = (1, 3, 8)
"""Three make a formula; with the last, an outer rate of diloco would have to be larger than it may be."""
BLOCK_MOMENTUM = ("bmuf", "bmuf-fairseq", "slowmo", "diloco")


@cache
def distance(
    name: str, learners: int, momentum: float = 0.0, shared: bool = True, how: LearnersRate = "as-is"
) -> float:
    """Distance travelled in a round at a gradient that hardly changes, in learning rates times gradients."""
    strategy = make_strategy(name)
    long, remembers = getattr(strategy, "period", 1) > LONG_BLOCK, momentum or strategy.memory
    warm, rate, left = ROUNDS * (15 if long else 3 if remembers else 1), 1e-5, []
    total = 2 * warm
    task = Quadratic(1, examples=total * learners, curvature=(1.0, 1.0), noise=0.0)
    plan = EpochPlan(0, total * learners, learners, learners, 0)
    cluster = Cluster(strategy, task, Sgd(momentum), learners, shared_minibatch=shared, rate=how)
    with SimRuntime(cluster) as runtime:
        for first, last in ((0, warm), (warm, total)):
            runtime.segment(SegmentPlan(plan, rate, first=first * learners, last_round=last))
            left.append(1 - float(runtime.consensus()[0] / QuadraticLearner(task).optimum))
    return math.log(left[0] / left[1]) / rate / (total - warm)


def travelled(name: str, learners: int, shared: bool, how: LearnersRate = "as-is") -> float:
    """Distance relative to `sgd` at the same rate over the same examples; a round in which every learner has a
    minibatch of its own is as many steps of `sgd` as there are learners."""
    return distance(name, learners, shared=shared, how=how) / (1 if shared else learners)


@pytest.mark.parametrize(
    ("name", "learners", "shared"),
    [
        (name, learners, shared)
        for name in STRATEGIES
        for learners in LEARNERS
        for shared in (True, False)
        if learners == 1 or name != "sgd"
        if learners > 1 or shared  # else they are one
    ],
)
def test_every_strategy_moves_as_far_as_it_declares(name: str, learners: int, shared: bool) -> None:
    """Relative to `sgd`: 1 where a round's minibatch is cut over all learners, 1/L where each has its own, unless the
    strategy declares otherwise. Blocks are as long as they are by default for three learners; for others, short."""
    if learners != LEARNERS[1] and getattr(make_strategy(name), "period", 1) > LONG_BLOCK:
        name = f"{name},period={LONG_BLOCK}"
    declared = make_strategy(name).distance(learners, 1 if shared else learners)
    assert travelled(name, learners, shared) == pytest.approx(declared, rel=0.1)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "sgd"])
def test_every_strategy_moves_by_the_sum_of_gradients_at_the_linear_rate(name: str, shared: bool) -> None:
    """As far as `sgd` over the same examples, or as it does anyway where that is further."""
    if getattr(make_strategy(name), "period", 1) > LONG_BLOCK:
        name = f"{name},period={LONG_BLOCK}"
    declared = make_strategy(name).distance(3, 1 if shared else 3)
    assert travelled(name, 3, shared, "linear") == pytest.approx(max(1, declared), rel=0.1)


def test_sgd_itself_takes_its_steps() -> None:
    assert distance("sgd", 1) == pytest.approx(1, rel=0.01), "else all is relative to nothing"


@pytest.mark.parametrize("name", BLOCK_MOMENTUM)
@pytest.mark.parametrize("learners", [1, 2, 4, 8, 16])
def test_block_momentum_declares_what_sgd_travels_under_both_conventions(name: str, learners: int) -> None:
    strategy = make_strategy(name)
    beyond = max(1.0, learners / 7) if name == "diloco" else 1.0  # its outer rate is at most 0.7
    assert strategy.distance(learners, 1) == pytest.approx(1)
    assert strategy.distance(learners, learners) == pytest.approx(1 / beyond)


@pytest.mark.parametrize(
    "name",
    [
        "bmuf",
        "bmuf,period=5",
        "bmuf,period=1",
        "bmuf,period=5,nesterov=true",
        "bmuf,period=5,momentum=0.75",
        "bmuf-fairseq,period=5",
        "slowmo,period=5",
        "diloco",
        "bmuf,period=5,local_momentum=keep",
        "bmuf,period=5,local_momentum=average",
    ],
)
@pytest.mark.parametrize("learners", [4, 8])
def test_block_momentum_makes_up_for_a_local_momentum_that_starts_anew(name: str, learners: int) -> None:
    assert distance(name, learners, momentum=0.9) == pytest.approx(distance("sgd", 1, 0.9), rel=0.1)


@pytest.mark.parametrize("options", ["staleness_aware=true", "period=4", "rate=0.25"])
def test_options_of_asgd_count_in_what_it_declares(options: str) -> None:
    declared = make_strategy(f"asgd,{options}").distance(4, 1)
    assert travelled(f"asgd,{options}", 4, shared=True) == pytest.approx(declared, rel=0.1)


def test_block_momentum_and_rate_follow_from_each_other() -> None:
    assert settle_block(None, None, 1 / 4) == (0.75, 1.0), "1 - 1/N and 1: Li et al. 2017, after equation 6"
    assert settle_block(None, None, 1.0) == (0.0, 1.0), "nothing to make up for: model averaging"
    assert settle_block(0.75, None, 1.0) == (0.75, 0.25)
    assert settle_block(None, 0.5, 1.0) == (0.5, 0.5)
    assert settle_block(0.5, None, 1 / 16) == (0.5, 1.0), "not more than 1"
    assert settle_block(0.9, 0.3, 1 / 4) == (0.9, 0.3), "given is given"
    zeta, rate = settle_block(None, None, 1 / 3, single=True)
    assert (1 + zeta) * rate / (1 - zeta) == pytest.approx(3)


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(0.9),
        Sgd(0.9, nesterov=True),
        Sgd(),
        TorchOptimizer("sgd", {"momentum": 0.9}),
        TorchOptimizer("adam"),
        TorchOptimizer("rmsprop", {"momentum": 0.8}),
        TorchOptimizer("rmsprop"),
    ],
)
@pytest.mark.parametrize("steps", [1, 5, 40])
def test_the_share_after_a_reset_is_what_is_left_of_the_distance(optimizer: LocalOptimizer, steps: int) -> None:
    """Both ways are run: `steps` steps with the moments as they are, and as many after they were set to zero."""

    def gone(reset: bool) -> float:
        x = torch.zeros(1, dtype=torch.float32)
        memory = {name: torch.zeros(1) for name in optimizer.memory}
        update = optimizer.attach([x], [memory], torch.zeros(len(optimizer.scalars)).double().numpy())
        update.begin()
        for step in range(1000 + steps):
            if step == 1000:
                x.zero_()
                for name in optimizer.momentum_vectors if reset else ():
                    memory[name].zero_()
            update.update_(0, torch.ones(1), 0.001)
            update.end()
        return x.item()

    assert optimizer.share_after_reset(steps) == pytest.approx(gone(True) / gone(False), rel=1e-3)


def test_the_share_after_a_reset_by_hand() -> None:
    assert after_reset(0.5, 2) == pytest.approx((0.5 + 0.75) / 2)
    assert after_reset(0.5, 2, ahead=True) == pytest.approx((0.75 + 0.875) / 2)
    assert after_reset(0.0, 7) == 1.0


@pytest.mark.parametrize("kind", ["reset", "keep", "average"])
def test_local_momentum_at_the_end_of_a_block(kind: str) -> None:
    """Two learners, one block of one step: gradients differ, and so do the momenta they leave behind."""
    task = Quadratic(6, examples=8, noise=1.0)
    cluster = Cluster(make_strategy(f"bsp,period=1,local_momentum={kind}"), task, Sgd(0.9), 2)
    with SimRuntime(cluster) as runtime:
        runtime.segment(SegmentPlan(EpochPlan(0, 8, 8, 2, 0), 0.1))
        momenta = runtime.state().vectors["momentum"].clone()
    learner, out = task.build(), torch.empty(2, 6)
    for rank in range(2):
        plan = EpochPlan(0, 8, 8, 2, 0)
        learner.gradient(learner.initial(), plan.piece(rank), plan, out[rank])
    expected = {"reset": torch.zeros(2, 6), "keep": out, "average": out.mean(0).expand(2, 6)}[kind]
    torch.testing.assert_close(momenta, expected)
    assert not torch.allclose(out[0], out[1])


@pytest.mark.parametrize("kind", ["reset", "average"])
@pytest.mark.parametrize("optimizer", [Sgd(0.9), TorchOptimizer("adam")])
def test_processes_do_as_the_simulator(kind: str, optimizer: LocalOptimizer) -> None:
    task = Quadratic(37, examples=3 * 64)
    cluster = Cluster(make_strategy(f"bmuf,period=2,local_momentum={kind}"), task, optimizer, 3, shared_minibatch=False)
    plan = SegmentPlan(EpochPlan(0, 3 * 64, 24, 3, 0), 0.01)
    with SimRuntime(cluster) as there, ProcsRuntime(cluster) as here:
        for runtime in (there, here):
            runtime.segment(plan)
        for name, vectors in there.state().vectors.items():
            assert torch.equal(vectors, here.state().vectors[name]), name


def test_what_is_not_reset_kept_or_averaged_is_refused() -> None:
    with pytest.raises(UserError, match="local_momentum is 'drop': choose one of reset, keep, average"):
        make_strategy("bmuf,local_momentum=drop")


@pytest.mark.parametrize("options", ["delay=5", "fragments=3,delay=2,mix=0.5", "mix=0.5", "delay=5,mix=1"])
@pytest.mark.parametrize("learners", [1, 4])
def test_delay_and_mixing_of_diloco_count_in_what_it_declares(options: str, learners: int) -> None:
    name = f"diloco,period=10,rate=0.2,{options}"
    declared = make_strategy(name).distance(learners, 1)
    assert travelled(name, learners, shared=True) == pytest.approx(declared, rel=0.1)
