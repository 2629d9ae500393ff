"""Optimizers of torch on a row in chunks, against the same optimizer on the whole vector."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import LocalOptimizer, RowUpdate
from roundelay.algorithms.torch_optimizer import CLASSES, TorchOptimizer, fitting
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK, chunks

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in fitting()),
    ("adam", {"amsgrad": True, "weight_decay": 0.1, "betas": [0.8, 0.99]}),
    ("adamw", {"fused": True}),
    ("rmsprop", {"momentum": 0.9, "centered": True}),
    ("sgd", {"momentum": 0.9, "dampening": 0.5}),
    ("adagrad", {"initial_accumulator_value": 0.25}),
    ("asgd", {"lambd": 0.01, "t0": 2}),
    ("nadam", {"decoupled_weight_decay": True, "weight_decay": "1e-2"}),
]


class Kept:
    """Memory that a runtime would own for one learner."""

    def __init__(self, optimizer: LocalOptimizer, x: Tensor, cuts: Sequence[slice]) -> None:
        self.optimizer, self.x, self.cuts = optimizer, x.clone(), cuts
        self.memory = {name: torch.zeros_like(x) for name in optimizer.memory}
        self.scalars: NDArray[np.float64] = np.zeros(len(optimizer.scalars))

    def begin(self) -> RowUpdate:
        update = self.optimizer.attach(
            [self.x[cut] for cut in self.cuts],
            [{name: vector[cut] for name, vector in self.memory.items()} for cut in self.cuts],
            self.scalars,
        )
        update.begin()
        return update

    def copy(self) -> "Kept":
        other = Kept(self.optimizer, self.x, self.cuts)
        for name, vector in self.memory.items():
            other.memory[name].copy_(vector)
        other.scalars[:] = self.scalars
        return other

    def equals(self, other: "Kept") -> bool:
        return (
            torch.equal(self.x, other.x)
            and all(torch.equal(vector, other.memory[name]) for name, vector in self.memory.items())
            and self.scalars.tolist() == other.scalars.tolist()
        )


def walk(update: RowUpdate, cuts: Sequence[slice], gradients: Sequence[Tensor], rates: Sequence[float]) -> None:
    for gradient, rate in zip(gradients, rates, strict=True):
        for number, cut in enumerate(cuts):
            update.update_(number, gradient[cut], rate)
        update.end()


def numbers(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def cut(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def whole(name: str, options: dict[str, Any], x: Tensor, gradients: Sequence[Tensor], rates: Sequence[float]) -> Tensor:
    """The path on which torch takes the whole vector."""
    parameter = nn.Parameter(x.clone())
    given_ = {key: tuple(v) if isinstance(v, list) else float(v) if v == "1e-2" else v for key, v in options.items()}
    reference = CLASSES[name]([parameter], **given_)
    for gradient, rate in zip(gradients, rates, strict=True):
        reference.param_groups[0]["lr"], parameter.grad = rate, gradient.clone()
        reference.step()
    return parameter.detach()


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    rates=st.lists(st.floats(0.001, 0.5), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_chunks_go_where_the_whole_vector_goes(
    name: str, options: dict[str, Any], sizes: list[int], rates: list[float], seed: int
) -> None:
    x, cuts = numbers(sum(sizes), seed), cut(sizes)
    gradients = [numbers(len(x), seed + 100 * (step + 1)) for step in range(len(rates))]
    given_before = [gradient.clone() for gradient in gradients]
    kept = Kept(TorchOptimizer(name, options), x, cuts)
    walk(kept.begin(), cuts, gradients, rates)
    torch.testing.assert_close(kept.x, whole(name, options, x, gradients, rates), rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, gradients, given_before)), "the gradient may be shared and must not be written"


@pytest.mark.parametrize("name", fitting())
def test_on_the_grid_of_the_house_nothing_is_rounded_differently(name: str) -> None:
    x = numbers(2 * CHUNK, 0)
    gradients, rates = [numbers(len(x), seed) for seed in (1, 2, 3, 4)], [0.1, 0.1, 0.05, 0.2]
    kept = Kept(TorchOptimizer(name), x, list(chunks(len(x))))
    walk(kept.begin(), kept.cuts, gradients, rates)
    assert torch.equal(kept.x, whole(name, {}, x, gradients, rates))


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@given(before=st.integers(0, 4), after=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_memory_and_scalars_are_all_there_is(
    name: str, options: dict[str, Any], before: int, after: int, seed: int
) -> None:
    """Carried to another process at any moment, also before the first step, they go on bit for bit."""
    cuts = cut([5, 30, 2])
    gradients = [numbers(37, seed + step) for step in range(before + after)]
    rates = [0.1 / (step + 1) for step in range(before + after)]
    one = Kept(TorchOptimizer(name, options), numbers(37, seed), cuts)
    walk(one.begin(), cuts, gradients[:before], rates[:before])
    other = one.copy()
    walk(one.begin(), cuts, gradients[before:], rates[before:])  # a segment ends and the next begins
    walk(other.begin(), cuts, gradients[before:], rates[before:])
    assert one.equals(other)
    undisturbed = Kept(TorchOptimizer(name, options), numbers(37, seed), cuts)
    walk(undisturbed.begin(), cuts, gradients, rates)
    assert one.equals(undisturbed)


def test_first_steps_by_hand() -> None:
    """Values that are not zero at the start: Rprop's step sizes are the rate of the first step, Adagrad's sum is an
    option, and NAdam's product begins at 1."""
    cuts, x = cut([1]), torch.tensor([1.0])
    rprop = Kept(TorchOptimizer("rprop"), x, cuts)
    walk(rprop.begin(), cuts, [torch.tensor([3.0])] * 2, [0.25, 17.0])
    assert rprop.memory["step_size"].item() == pytest.approx(0.25 * 1.2)
    assert rprop.x.item() == pytest.approx(1 - 0.25 - 0.3)
    adagrad = Kept(TorchOptimizer("adagrad", {"initial_accumulator_value": 7.0}), x, cuts)
    walk(adagrad.begin(), cuts, [torch.tensor([3.0])], [0.5])
    assert adagrad.memory["sum"].item() == 16.0
    assert adagrad.x.item() == pytest.approx(1 - 0.5 * 3 / 4)
    nadam = Kept(TorchOptimizer("nadam"), x, cuts)
    walk(nadam.begin(), cuts, [torch.tensor([3.0])], [0.5])
    begun, step, product = nadam.scalars.tolist()
    assert (begun, step) == (1, 1)
    assert product == pytest.approx(0.9 * (1 - 0.5 * 0.96**0.004))


def test_a_learner_without_scalars_begins_anew() -> None:
    cuts, gradients = cut([4, 3]), [numbers(7, seed) for seed in range(3)]
    kept = Kept(TorchOptimizer("adam"), numbers(7, 9), cuts)
    walk(kept.begin(), cuts, gradients, [0.1] * 3)
    kept.x.copy_(numbers(7, 9))
    kept.scalars[:] = 0  # its vectors are not zero, but nothing says that they hold anything
    walk(kept.begin(), cuts, gradients, [0.1] * 3)
    torch.testing.assert_close(kept.x, whole("adam", {}, numbers(7, 9), gradients, [0.1] * 3))


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Adafactor", "Muon"])
def test_an_optimizer_that_cannot_walk_in_chunks_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}'.*cannot update a vector in pieces.*Choose one of .*adamw"):
        TorchOptimizer(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adamq", {}, "optimizer.name is 'adamq': did you mean adam"),
        ("adamw", {"lr": 0.1}, "schedule.learning_rate"),
        ("adamw", {"bettas": 1}, "optimizer.options.bettas; did you mean betas"),
        ("adamw", {"momentum": 0.9}, "optimizer.options.momentum; adamw has betas, eps"),
        ("adamw", {"betas": [0.9, 2]}, r"adamw cannot be used with .*Invalid beta parameter at index 1: 2"),
        ("adam", {"capturable": True}, "adam cannot be used with"),
    ],
)
def test_a_wrong_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TorchOptimizer(name, options)


def test_every_name_is_known_in_any_case_and_travels() -> None:
    for name in fitting():
        optimizer = TorchOptimizer(CLASSES[name].__name__)
        assert optimizer.memory == TorchOptimizer(name).memory
        again = pickle.loads(pickle.dumps(optimizer))
        assert again == optimizer
        assert (again.memory, again.scalars) == (optimizer.memory, optimizer.scalars)
