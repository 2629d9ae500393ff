"""The equations, on numbers one can follow; the local optimizer against torch.optim.SGD."""

import pytest
import torch

from roundelay.algorithms.averaging import weighted_mean_
from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.outer_momentum import slow_momentum_
from roundelay.algorithms.parameter_server import Report


@pytest.mark.parametrize(("age", "moved"), [(0, 3.0), (4, 3.0), (5, 0.0), (50, 0.0)])
def test_a_report_that_is_too_old_is_dropped(age: int, moved: float) -> None:
    """Its learner goes on from the centre all the same."""
    mine, centre, pulled = torch.tensor([16.0]), torch.tensor([20.0]), torch.tensor([10.0])
    Report(0.5, max_delay=5)(mine, centre, pulled, age=age)
    assert mine.item() == centre.item() == pulled.item() == 20 + moved


def test_three_rounds_of_slowmo_by_hand() -> None:
    """Learning rate 1/2, 1/2, then 1/4; beta 1/2. Each round the learners gain 1.

    u = -2, W = 1; u = -1 - 2 = -3, W = 5/2; u = -3/2 - 4 = -11/2, W = 5/2 + 11/8.
    """
    anchor, momentum, seen = torch.zeros(1), torch.zeros(1), []
    for rate in (0.5, 0.5, 0.25):
        slow_momentum_(anchor, momentum, anchor + 1, rate, beta=0.5, alpha=1.0)
        seen.append((momentum.item(), anchor.item()))
    assert seen == [(-2.0, 1.0), (-3.0, 2.5), (-5.5, 3.875)]


@pytest.mark.parametrize("weights", [[3.0], [2.0, 1.0], [0.0, 1.0, 4.0], [1e-30, 0.0, 7.0]])
@pytest.mark.parametrize("size", [5, 70_000])
def test_a_mean_has_the_bits_of_products_added_to_nothing(weights: list[float], size: int) -> None:
    """Signs of zero and tiny numbers included: a chain of hosts sums part by part, and must come to the same."""
    generator = torch.Generator().manual_seed(1)
    scales = 10.0 ** torch.randint(-44, 9, (len(weights), size), generator=generator).float()
    given = torch.randn(len(weights), size, generator=generator) * scales
    given[:, ::4] = -0.0
    expected = torch.zeros(size)
    for vector, weight in zip(given, weights, strict=True):
        expected += vector * (weight / sum(weights)) if weight else 0.0
    found = torch.empty(size)
    weighted_mean_(found, [*given], weights)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(
    "sgd", [Sgd(), Sgd(0.9), Sgd(0.9, nesterov=True), Sgd(0.5, weight_decay=0.1), Sgd(weight_decay=0.01)]
)
@pytest.mark.parametrize("update", ["update_", "fused_update_"])
def test_ten_steps_are_those_of_torch(sgd: Sgd, update: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, generator=generator)
    theirs = torch.nn.Parameter(x.clone())
    reference = torch.optim.SGD(
        [theirs], lr=0.1, momentum=sgd.momentum, nesterov=sgd.nesterov, weight_decay=sgd.weight_decay
    )
    memory = {name: torch.zeros(50) for name in sgd.memory}
    for _ in range(10):
        gradient = torch.randn(50, generator=generator)
        theirs.grad, kept = gradient.clone(), gradient.clone()
        reference.step()
        getattr(sgd, update)(x, gradient, memory, 0.1)
        assert torch.equal(gradient, kept), "the gradient may be shared and must not be written"
    torch.testing.assert_close(x, theirs.detach(), rtol=1e-6, atol=1e-6)


def test_a_weighted_mean_by_hand() -> None:
    out = torch.empty(2)
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([5.0, 4.0]), torch.tensor([float("nan")] * 2)]
    weighted_mean_(out, vectors, [3, 1, 0])
    assert out.tolist() == [2.0, 1.0]
    with pytest.raises(ValueError, match="total weight"):
        weighted_mean_(out, vectors, [0, 0, 0])
