"""The equations, on numbers one can follow, and what they must keep."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from roundelay.algorithms.averaging import pair_average_, weighted_mean_
from roundelay.algorithms.block_momentum import block_update_, block_update_single_
from roundelay.algorithms.elastic import Pull, elastic_mean_, elastic_row, set_centre_
from roundelay.algorithms.outer_momentum import outer_nesterov_, slow_momentum_
from roundelay.algorithms.parameter_server import Report

NUMBERS = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)
SHARES = st.integers(0, 10).map(lambda n: n / 10)


def vectors(*lists: list[float]) -> list[Tensor]:
    return [torch.tensor(numbers) for numbers in lists]


@given(NUMBERS, NUMBERS, SHARES)
def test_what_two_rows_exchange_stays_between_them(a: list[float], b: list[float], alpha: float) -> None:
    """Pair average and elastic pull keep the sum, and bring the two together by 1 - 2 alpha."""
    for rule, left in ((pair_average_, 0.0), (Pull(alpha), 1 - 2 * alpha)):
        mine, theirs = vectors(a, b)
        before, apart = mine + theirs, mine - theirs
        rule(mine, theirs)
        torch.testing.assert_close(mine + theirs, before, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(mine - theirs, left * apart, rtol=1e-5, atol=1e-4)


@given(st.lists(NUMBERS, min_size=1, max_size=5), SHARES)
def test_the_synchronous_springs_keep_the_sum_of_rows_and_centre(rows: list[list[float]], beta: float) -> None:
    learners, alpha = len(rows), beta / len(rows)
    centre, moved = torch.ones(3), [elastic_row(row, torch.ones(3), alpha) for row in vectors(*rows)]
    mean = torch.empty(3)
    weighted_mean_(mean, vectors(*rows), [1.0] * learners)
    elastic_mean_(centre, mean, alpha, learners)
    before = torch.stack(vectors(*rows)).sum(0) + 1
    torch.testing.assert_close(torch.stack(moved).sum(0) + centre, before, rtol=1e-4, atol=1e-3)


def test_springs_by_hand() -> None:
    mine, centre = torch.tensor([1.0]), torch.tensor([5.0])
    Pull(0.25)(mine, centre)
    assert (mine.item(), centre.item()) == (2.0, 4.0)
    assert elastic_row(torch.tensor([1.0]), torch.tensor([5.0]), 0.25).item() == 2.0
    elastic_mean_(centre, torch.tensor([2.0]), 0.125, 4)
    assert centre.item() == 3.0  # half the way
    set_centre_(mine, centre, torch.tensor([9.0]))
    assert (mine.item(), centre.item()) == (2.0, 9.0)


@pytest.mark.parametrize(("aware", "age", "moved"), [(False, 7, 3.0), (True, 0, 3.0), (True, 1, 3.0), (True, 3, 1.0)])
def test_a_report_by_hand(aware: bool, age: int, moved: float) -> None:
    """Read at 10, learned 6, half of it counts; the centre has meanwhile gone to 20."""
    mine, centre, pulled = torch.tensor([16.0]), torch.tensor([20.0]), torch.tensor([10.0])
    Report(0.5, aware)(mine, centre, pulled, age=age)
    assert mine.item() == centre.item() == pulled.item() == 20 + moved


@pytest.mark.parametrize(("age", "moved"), [(0, 3.0), (4, 3.0), (5, 0.0), (50, 0.0)])
def test_a_report_that_is_too_old_is_dropped(age: int, moved: float) -> None:
    """Its learner goes on from the centre all the same."""
    mine, centre, pulled = torch.tensor([16.0]), torch.tensor([20.0]), torch.tensor([10.0])
    Report(0.5, max_delay=5)(mine, centre, pulled, age=age)
    assert mine.item() == centre.item() == pulled.item() == 20 + moved


@given(NUMBERS, NUMBERS, SHARES, SHARES)
def test_the_recursion_of_fairseq_by_two_other_names(a: list[float], b: list[float], zeta: float, eta: float) -> None:
    """Classical with 1 + zeta times the block rate."""
    model, delta, anchor, larger, broadcast = (torch.zeros(3) for _ in range(5))
    for mean in vectors(a, b, a):
        block_update_single_(model, delta, mean, zeta, eta)
        block_update_(anchor, larger, broadcast, mean, zeta, (1 + zeta) * eta, nesterov=False)
        torch.testing.assert_close(model, anchor, rtol=1e-4, atol=1e-3)


def test_three_rounds_of_slowmo_by_hand() -> None:
    """Learning rate 1/2, 1/2, then 1/4; beta 1/2. Each round the learners gain 1.

    u = -2, W = 1; u = -1 - 2 = -3, W = 5/2; u = -3/2 - 4 = -11/2, W = 5/2 + 11/8.
    """
    anchor, momentum, seen = torch.zeros(1), torch.zeros(1), []
    for rate in (0.5, 0.5, 0.25):
        slow_momentum_(anchor, momentum, anchor + 1, rate, beta=0.5, alpha=1.0)
        seen.append((momentum.item(), anchor.item()))
    assert seen == [(-2.0, 1.0), (-3.0, 2.5), (-5.5, 3.875)]


def test_slowmo_at_rate_zero_only_forgets() -> None:
    anchor, momentum = torch.ones(1), torch.full((1,), 4.0)
    slow_momentum_(anchor, momentum, anchor.clone(), 0.0, beta=0.5, alpha=1.0)
    assert (anchor.item(), momentum.item()) == (1.0, 2.0)


@given(st.lists(NUMBERS, min_size=1, max_size=4), SHARES, SHARES)
def test_the_outer_step_of_diloco_is_torch_s_nesterov_step(means: list[list[float]], rate: float, mu: float) -> None:
    """With anchor minus mean for a gradient."""
    anchor, momentum = torch.zeros(3), torch.zeros(3)
    theirs = torch.nn.Parameter(torch.zeros(3))
    mu = min(mu, 0.9)
    reference = torch.optim.SGD([theirs], lr=rate, momentum=mu, nesterov=mu > 0)
    for mean in vectors(*means):
        theirs.grad = theirs.detach() - mean
        reference.step()
        outer_nesterov_(anchor, momentum, mean, rate, mu)
        torch.testing.assert_close(anchor, theirs.detach(), rtol=1e-4, atol=1e-3)


@given(NUMBERS, st.integers(1, 9), st.integers(0, 9))
def test_a_mean_of_equals_weighs_nothing(a: list[float], m: int, n: int) -> None:
    out = torch.empty(3)
    weighted_mean_(out, vectors(a, a), [m, n])
    torch.testing.assert_close(out, torch.tensor(a), rtol=1e-5, atol=1e-5)


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
