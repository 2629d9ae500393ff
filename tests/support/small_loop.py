"""Pieces of somebody's training loop, for sessions of one learner."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)


def network_by_sgd() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batches(count: int = 6, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.randn(8, 4, generator=generator).to(dtype), torch.randint(2, (8,), generator=generator)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).float(), y)


def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    torch.autograd.backward(loss_of(model, x, y))
