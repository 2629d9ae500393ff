"""The time-delay network: its size on paper, its factors, and how far it sees."""

import pytest
import torch

from roundelay.core.errors import UserError
from roundelay_speech.models import TdnnfConfig
from roundelay_speech.models.tdnnf import semi_orthogonal


def test_its_size_is_that_on_paper() -> None:
    layers = 6 * (2 * 2 * 512 * 128 + 3 * 512)  # two factors, a bias, a norm
    found = sum(p.numel() for p in TdnnfConfig().network(40, 500).parameters())
    assert found == 512 * 121 + 2 * 512 + layers + 500 * 513
    assert round(found / 1e6, 1) == 1.9


@pytest.mark.parametrize(("options", "message"), [({"strides": ()}, "strides"), ({"bottleneck": 1025}, "is 1025")])
def test_impossible_ones_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TdnnfConfig(**options)  # type: ignore[arg-type]


def test_it_sees_the_sum_of_its_strides_on_each_side() -> None:
    network = TdnnfConfig(strides=(1, 2), width=8, bottleneck=4, deltas=0).network(5, 3).eval()
    mean, std = torch.zeros(1, 5), torch.ones(1, 5)
    features = torch.randn(1, 20, 5, generator=torch.Generator().manual_seed(0))
    lengths, index = torch.tensor([20]), torch.arange(20)
    changed = features.clone()
    changed[0, 10] += 1.0
    with torch.inference_mode():
        before, after = (network(some, mean, std, lengths, index) for some in (features, changed))
    assert (before != after).any(1).nonzero().flatten().tolist() == list(range(7, 14))


def test_factors_are_nearer_to_semi_orthogonal_than_what_is_learned() -> None:
    """Rows of one length, at right angles: the step's error is of second order, whatever the length."""
    base = torch.linalg.qr(torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0].T
    torch.testing.assert_close(semi_orthogonal(3.0 * base), 3.0 * base)
    errors = []
    for noise in (0.02, 0.01):
        used = semi_orthogonal(base + noise * torch.ones_like(base).tril())
        product = used @ used.T
        errors.append(float((product / product.diagonal().mean() - torch.eye(6)).norm()))
    assert errors[0] < 0.02
    assert errors[1] < errors[0] / 3


def test_first_factors_begin_semi_orthogonal() -> None:
    network = TdnnfConfig(strides=(1, 3), width=8, bottleneck=4).network(5, 3)
    first = [value for name, value in network.named_parameters() if name.endswith("first.weight")]
    assert len(first) == 2
    for factor in first:
        torch.testing.assert_close(factor @ factor.T, torch.eye(4))
