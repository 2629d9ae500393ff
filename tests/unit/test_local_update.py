"""The local optimizer against torch.optim.SGD, and averages by hand."""

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_, weighted_mean_
from roundelay.algorithms.block_momentum import block_update_
from roundelay.algorithms.local_update import Sgd


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


def test_a_pair_average_keeps_the_sum() -> None:
    mine, theirs = torch.tensor([1.0, 3.0]), torch.tensor([2.0, -1.0])
    pair_average_(mine, theirs)
    assert mine.tolist() == theirs.tolist() == [1.5, 1.0]


def test_a_weighted_mean_by_hand() -> None:
    out = torch.empty(2)
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([5.0, 4.0]), torch.tensor([float("nan")] * 2)]
    weighted_mean_(out, vectors, [3, 1, 0])
    assert out.tolist() == [2.0, 1.0]
    with pytest.raises(ValueError, match="total weight"):
        weighted_mean_(out, vectors, [0, 0, 0])


@pytest.mark.parametrize(
    ("nesterov", "anchors", "broadcasts"),
    [
        # Blocks end at 1, 2, 3, momentum is 1/2.
        # G = 1, D = 1, W = 1; G = 1, D = 3/2, W = 5/2; G = 1/2, D = 5/4, W = 15/4.
        (False, [1.0, 2.5, 3.75], [1.0, 2.5, 3.75]),
        # G = 1, D = 1, W = 1, B = 3/2; G = 1/2, D = 1, W = 2, B = 5/2; G = 1/2, D = 1, W = 3, B = 7/2.
        (True, [1.0, 2.0, 3.0], [1.5, 2.5, 3.5]),
    ],
)
def test_three_blocks_by_hand(nesterov: bool, anchors: list[float], broadcasts: list[float]) -> None:
    anchor, delta, broadcast = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    for mean, anchor_after, broadcast_after in zip((1.0, 2.0, 3.0), anchors, broadcasts, strict=True):
        block_update_(anchor, delta, broadcast, torch.tensor([mean]), 0.5, 1.0, nesterov)
        assert anchor.item() == anchor_after
        assert broadcast.item() == broadcast_after


def test_the_look_ahead_is_taken_back() -> None:
    """With a constant block gradient of 1 the strict recursion tends to steps of 1 / (1 - momentum), not to more."""
    anchor, delta, broadcast, before = torch.zeros(1), torch.zeros(1), torch.zeros(1), 0.0
    for _ in range(200):
        before = anchor.item()
        block_update_(anchor, delta, broadcast, broadcast + 1.0, 0.9, 1.0, nesterov=True)
    assert anchor.item() - before == pytest.approx(10, rel=1e-3)
