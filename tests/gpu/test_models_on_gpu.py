"""Acoustic models on a GPU compute what they compute on the processor, within rounding: 1e-4 of a gradient's length in
float32 (TF32 off), 0.06 under bfloat16 autocast, on either."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.learner import gradient_graphs
from roundelay.learner.gradient_graphs import AFTER, same_operations
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Objective
from roundelay_speech.models import BlstmConfig, DnnConfig
from roundelay_speech.objectives import Ctc, Smoothed
from support import toy_units
from support.blobs import Blobs
from support.on_gpu import NEEDED, ON_GPU, device, distance, exact
from support.toy_corpus import FILTERS
from support.toy_models import TINY, tiny, toy
from support.toy_units import UNALIGNED

pytestmark = NEEDED
EXACT, ROUNDED = 1e-4, 0.06


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    exact()


def without_dropout(learner: ModuleLearner, dropout: float = 0.0) -> ModuleLearner:
    """Random numbers differ between devices."""
    for part in learner.module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = dropout
    return learner


def aligned(
    name: str,
    where: torch.device | None,
    autocast: bool,
    compiled: bool = False,
    objective: Objective | None = None,
    dropout: float = 0.0,
) -> ModuleLearner:
    store, labels, splits, _ = toy()
    network = tiny(name)
    examples = network.examples(store, labels, splits)
    made = ModuleLearner(
        network, examples, autocast, device=where, compiled=compiled, objective=objective or CrossEntropy()
    )
    return without_dropout(made, dropout)


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
    network = config.network(FILTERS, states)
    learner = ModuleLearner(network, network.examples(store, labels, splits), device=device())
    plan = EpochPlan(0, learner.examples, 90, 2, seed=3)
    x = learner.initial().to(device())
    found = [torch.empty_like(x) for _ in range(3)]
    for out, piece in zip(found, (1, 0, 1), strict=True):
        learner.gradient(x, plan.piece(piece), plan, out, resident=True)
        torch.rand(7, device=device())
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.skipif(not ON_GPU, reason="graphs are CUDA's")
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_a_graph_computes_what_its_kernels_do(name: str, autocast: bool) -> None:
    """Recorded at one minibatch and replayed with others, dropout too; modules that do other operations each time are
    not recorded."""
    by_graph, by_kernels = (aligned(name, device(), autocast, dropout=0.3) for _ in range(2))
    by_kernels._graphs = None
    plan = EpochPlan(0, by_graph.examples, min(90, by_graph.examples), 2, seed=3)
    x = by_graph.initial().to(device())
    found, expected = torch.empty_like(x), torch.empty_like(x)
    for number, piece in enumerate([0] * (AFTER + 2) + [1] * (AFTER + 2) + [0, 1]):
        x.mul_(1.01)
        statistics = by_graph.gradient(x, plan.piece(piece), plan, found, resident=True)
        assert statistics == by_kernels.gradient(x, plan.piece(piece), plan, expected, resident=True)
        assert torch.equal(found, expected), (number, distance(found, expected))
    recorded = 0 if by_graph._graphs is None else by_graph._graphs.number
    assert (recorded > 0) == same_operations(by_graph.module)


@pytest.mark.skipif(not ON_GPU, reason="graphs are CUDA's")
@pytest.mark.parametrize("heard", [True, False])
def test_a_module_that_cannot_be_recorded_is_computed_kernel_by_kernel(
    heard: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the GPU for a value on the way, which is heard of before it is recorded, or breaks the recording off."""
    if not heard:
        monkeypatch.setattr(gradient_graphs, "Listening", nullcontext)
        monkeypatch.setattr(nullcontext, "asks", "", raising=False)

    class Asking(nn.Linear):
        same_operations = True

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    asking, plain = Asking(6, 3), Asking(6, 3)
    plain.load_state_dict(asking.state_dict())
    there = ModuleLearner(asking, Blobs(), device=device())
    here = ModuleLearner(plain, Blobs())
    plan = EpochPlan(0, 64, 16, 1, seed=3)
    found, expected = torch.empty(there.parameters, device=device()), torch.empty(there.parameters)
    x = there.initial().to(device())
    for number in range(AFTER + 3):
        there.gradient(x, plan.piece(number % 4), plan, found, resident=True)
        here.gradient(here.initial(), plan.piece(number % 4), plan, expected)
        assert distance(found, expected) < EXACT
    torch.manual_seed(0)
    assert torch.rand(3, device=device()).isfinite().all()
    assert sum("without a CUDA graph" in message for message in caplog.messages) == 1


@pytest.mark.skipif(not ON_GPU, reason="of torch for CUDA")
def test_float32_is_rounded_to_tf32_by_default() -> None:
    """docs/models.md says so."""
    torch.backends.cudnn.allow_tf32 = True
    compare(lambda where: aligned("blstm", where, autocast=False), 5e-3)
