"""Acoustic models on a GPU compute what they compute on the processor, within rounding: 1e-4 of a gradient's length in
float32 (TF32 off), 0.05 under bfloat16 autocast, on either."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Objective
from roundelay_speech.models import BlstmConfig, DnnConfig, make_network
from roundelay_speech.objectives import Ctc, Smoothed
from support import toy_units
from support.on_gpu import NEEDED, ON_GPU, device, distance, exact
from support.toy_corpus import FILTERS
from support.toy_models import TINY, tiny, toy
from support.toy_units import UNALIGNED

pytestmark = NEEDED
EXACT, ROUNDED = 1e-4, 0.05


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    exact()


def without_dropout(learner: ModuleLearner) -> ModuleLearner:
    """Random numbers differ between devices."""
    for part in learner.module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return learner


def aligned(
    name: str, where: torch.device | None, autocast: bool, compiled: bool = False, objective: Objective | None = None
) -> ModuleLearner:
    store, labels, splits, _ = toy()
    network = tiny(name)
    examples = network.examples(store, labels, splits)
    made = ModuleLearner(
        network, examples, autocast, device=where, compiled=compiled, objective=objective or CrossEntropy()
    )
    return without_dropout(made)


def compare(make: Callable[[torch.device | None], ModuleLearner], bound: float) -> None:
    """Gradients at two points, with copies and without, and an evaluation."""
    here, there = make(None), make(device())
    plan = EpochPlan(0, here.examples, min(90, here.examples), 2, seed=3)
    out, resident = torch.empty(here.parameters), torch.empty(here.parameters, device=device())
    for scale in (1.0, 1.1):
        x = here.initial() * scale
        expected = _gradient(here, x, plan)
        there.gradient(x, plan.piece(1), plan, out)
        there.gradient(x.to(device()), plan.piece(1), plan, resident, resident=True)
        assert distance(out, expected) < bound
        assert distance(resident, expected) < bound
    found, wanted = there.evaluate(x, "dev"), here.evaluate(x, "dev")
    assert found.frames == wanted.frames
    assert found.mean_loss == pytest.approx(wanted.mean_loss, rel=bound)


def _gradient(learner: ModuleLearner, x: Tensor, plan: EpochPlan) -> Tensor:
    out = torch.empty(learner.parameters)
    learner.gradient(x, plan.piece(1), plan, out)
    return out


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_gradients_are_those_of_the_processor(name: str, autocast: bool) -> None:
    compare(lambda where: aligned(name, where, autocast), ROUNDED if autocast else EXACT)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_smoothed_targets(autocast: bool) -> None:
    compare(
        lambda where: aligned("dnn", where, autocast, objective=Smoothed(share=0.1)), ROUNDED if autocast else EXACT
    )


@pytest.mark.parametrize("name", UNALIGNED)
def test_ctc(name: str) -> None:
    def make(where: torch.device | None) -> ModuleLearner:
        toy_units.examples_of.cache_clear()
        return without_dropout(ModuleLearner(*toy_units.examples_of(name), device=where, objective=Ctc()))

    compare(make, 1e-3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "autocast"), [("dnn", True), ("blstm", False)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_compiled_module(name: str, autocast: bool) -> None:
    """The processor's is not compiled."""
    compare(lambda where: aligned(name, where, autocast, compiled=where is not None), ROUNDED if autocast else EXACT)


@pytest.mark.parametrize("config", [DnnConfig(dropout=0.3), BlstmConfig(layers=2, cells=16, dropout=0.3)])
def test_dropout_is_a_function_of_the_minibatch(config: DnnConfig | BlstmConfig) -> None:
    """On the device, too, whatever was drawn before: the same bits, as a replay needs them."""
    store, labels, splits, states = toy()
    network = make_network(config, FILTERS, states)
    learner = ModuleLearner(network, network.examples(store, labels, splits), device=device())
    plan = EpochPlan(0, learner.examples, 90, 2, seed=3)
    x = learner.initial().to(device())
    found = [torch.empty_like(x) for _ in range(3)]
    for out, piece in zip(found, (1, 0, 1), strict=True):
        learner.gradient(x, plan.piece(piece), plan, out, resident=True)
        torch.rand(7, device=device())
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.skipif(not ON_GPU, reason="of torch for CUDA")
def test_float32_is_rounded_to_tf32_by_default() -> None:
    """docs/models.md says so."""
    torch.backends.cudnn.allow_tf32 = True
    compare(lambda where: aligned("blstm", where, autocast=False), 5e-3)
