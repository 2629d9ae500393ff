"""Laws of `roundelay.attach` for two learners. All run in one start of two processes, support/attached_laws.py."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from roundelay.strategies import STRATEGIES
from support import attached_laws
from support.attached_laws import LEARNERS, OPTIMIZERS, SIZES, STEPS, make_optimizer, minibatches, mlp
from support.launched import reports, run_learners

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]
)
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


@pytest.fixture(scope="module", params=["here", "mapped", "elsewhere", GPU])
def found(request: pytest.FixtureRequest) -> Found:
    """Of modules where the rows are, of modules on devices that map each other's rows or do not, for which a processor
    stands in, and of modules on a GPU."""
    done = run_learners(LEARNERS, str(attached_laws.__file__), request.param)
    assert "rank 1 began with other weights or buffers than rank 0" in done.stderr
    same = done.stderr.count("rank 1 trains on the same minibatches as rank 0")
    assert same == len(EVERY), "in the law `by hand` it does, under each strategy, and nowhere else"
    return reports(done.stdout)


def alone(optimizer_name: str, skip: int | None = None) -> list[float]:
    """One process on the minibatches of both learners, round by round; when one has no more, on the other's. It leaves
    out the round `skip`."""
    model = mlp()
    optimizer = make_optimizer(optimizer_name, model)
    for round_, batches in sorted(
        {
            round_: [list(minibatches(rank))[round_] for rank in range(LEARNERS) if round_ < STEPS[rank]]
            for round_ in range(max(STEPS))
        }.items()
    ):
        if round_ == skip:
            continue
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    return attached_laws.values(model)


def close(a: list[float], b: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ssgd_is_one_learner_with_the_minibatches_together(found: Found, optimizer: str) -> None:
    law = found[f"ssgd {optimizer}"]
    assert law[0]["values"] == law[1]["values"]
    close(law[0]["values"], alone(optimizer))


def test_gradients_may_be_accumulated(found: Found) -> None:
    close(found["ssgd SGD momentum micro"][0]["values"], alone("SGD momentum"))


def test_bsp_of_period_one_is_ssgd(found: Found) -> None:
    """Weighted by examples, so the rounds in which one learner has none are right too."""
    close(found["bsp SGD"][0]["values"], alone("SGD"))


def test_a_forward_without_a_step_is_no_step(found: Found) -> None:
    assert found["forward without step"][0]["values"] == found["ssgd SGD momentum"][0]["values"]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "sgd"])
def test_every_strategy_runs_and_learners_agree(found: Found, name: str) -> None:
    law = found[f"every {name}"]
    start = attached_laws.values(mlp(norm=True))
    for what in ("between", "values", "statistics"):
        assert law[0][what] == law[1][what], what
    assert torch.tensor(law[0]["values"]).isfinite().all()
    assert start != law[0]["between"] != law[0]["values"]
    together = STRATEGIES[name].traits.synchronous or name == "hadpsgd"
    steps = [2 * max(STEPS)] * LEARNERS if together else [2 * own for own in STEPS]
    assert law[0]["steps"] == law[1]["steps"] == steps


SYNCHRONOUS = [name for name, strategy in STRATEGIES.items() if name != "sgd" and strategy.traits.synchronous]
EVERY = [name for name in STRATEGIES if name != "sgd"]


@pytest.mark.parametrize("name", EVERY)
def test_a_loop_that_keeps_its_optimizer_step_trains_as_well(found: Found, name: str) -> None:
    """Bit for bit, where the result does not depend on timing."""
    left, right = found[f"unchanged {name}"], found[f"every {name}"]
    assert left[0]["values"] == left[1]["values"]
    assert left[0]["steps"] == right[0]["steps"]
    if name in SYNCHRONOUS:
        assert left[0] == {**right[0], "law": left[0]["law"]}
    assert torch.tensor(left[0]["values"]).isfinite().all()
    assert attached_laws.values(mlp(norm=True)) != left[0]["between"] != left[0]["values"]


@pytest.mark.parametrize("name", EVERY)
def test_what_overflows_on_one_learner_poisons_nobody(found: Found, name: str) -> None:
    """The learner it happened to backs its scale off; nobody waits for it, nothing of it is in a model."""
    law = found[f"overflow {name}"]
    assert law[0]["values"] == law[1]["values"]
    assert torch.tensor(law[0]["values"]).isfinite().all()
    assert [law[rank]["scale"] for rank in range(LEARNERS)] == [2.0**10, 2.0**9]
    together = name in SYNCHRONOUS or name == "hadpsgd"
    assert law[0]["steps"] == ([max(STEPS)] * LEARNERS if together else list(STEPS))


def test_a_skip_is_agreed_on_where_gradients_are_averaged(found: Found) -> None:
    """As one process with the minibatches together skips it."""
    close(found["overflow ssgd"][0]["values"], alone("SGD", skip=1))


@pytest.mark.parametrize("name", ["ssgd", "delayed-gradient", "bsp"])
def test_what_nobody_has_a_gradient_of_is_left_alone(found: Found, name: str) -> None:
    """Weight decay included; what one learner has a gradient of is not."""
    law = found[f"unused {name}"]
    start = attached_laws.Heads()
    assert law[0]["values"] == law[1]["values"]
    close(law[0]["third"], attached_laws.values(start.heads[2]))  # bsp's weights are rounded
    second = attached_laws.values(start.heads[1])
    assert law[0]["values"][len(second) : 2 * len(second)] != second


def test_ssgd_with_unused_parameters_is_one_learner(found: Found) -> None:
    model = attached_laws.Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    for round_ in range(max(STEPS)):
        ranks = [rank for rank in range(LEARNERS) if round_ < STEPS[rank]]
        mine = [(rank, *list(minibatches(rank))[round_]) for rank in ranks]
        x, y = torch.cat([x for _, x, _ in mine]), torch.cat([y for _, _, y in mine])
        second = torch.cat([torch.full((len(x), 1), float(rank)) for rank, x, _ in mine])
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x, second), y))
        optimizer.step()
    close(found["unused ssgd"][0]["values"], attached_laws.values(model))


CONVEX = ["ssgd", "bsp", "adpsgd", "hadpsgd", "dpsgd", "gossip-pga"]
"""The model is a mean of rows as they were after the last step, and so within the bounds that all were clamped to."""


@pytest.mark.parametrize("name", EVERY)
def test_what_all_change_by_hand_is_in_the_model(found: Found, name: str) -> None:
    law = found[f"by hand {name}"]
    assert law[0]["values"] == law[1]["values"]
    largest = torch.tensor(law[0]["values"]).abs().max()
    assert largest < 0.35, "what the module began with, and what it would go back to, is larger: 0.44"
    assert name not in CONVEX or largest <= torch.tensor(0.1)


def test_what_one_changes_by_hand_where_all_have_one_model_is_refused(found: Found) -> None:
    for rank in range(LEARNERS):
        assert (
            f"rank {rank}: of learners [0, 1], whose gradients ssgd averages, [1] changed"
            in (found["by hand alone"][rank]["error"])
        )


@pytest.mark.parametrize("name", EVERY)
def test_learners_in_different_meetings_are_told(found: Found, name: str) -> None:
    for rank in range(LEARNERS):
        assert found[f"meetings {name}"][rank]["error"].startswith(
            "rank 0 is in its 2nd consensus(), rank 1 in close(): all learners must come to the same meetings"
        )


def test_who_comes_with_rank_0s_weights_is_not_warned(found: Found) -> None:
    """Though the others may train before this learner has looked."""
    assert [found["at once"][rank]["agreed"] for rank in range(LEARNERS)] == [True, True]


def test_parameters_in_16_bits_are_averaged_in_32(found: Found) -> None:
    law = found["rounded"]
    assert law[0] == {**law[1], "rank": 0}
    row = torch.tensor(law[0]["row"])
    assert torch.equal(row.bfloat16().float(), torch.tensor(law[0]["values"]))
    assert not torch.equal(row.bfloat16().float(), row)
    torch.testing.assert_close(row, torch.tensor(alone("SGD momentum")), rtol=0.05, atol=0.02)


def test_rows_are_where_they_cost_least(found: Found, request: pytest.FixtureRequest) -> None:
    """Shared where others write them, one's own where nobody does, and on the host where neither can be."""
    kind = request.node.callspec.params["found"]
    for name, strategy in STRATEGIES.items():
        if name == "sgd":
            continue
        where = found[f"every {name}"][0]["rows"]
        if kind == "here":
            assert where == "on the host"
        elif strategy.traits.synchronous and strategy.traits.model == "mean":
            assert where == "on a device of its own"
        elif strategy.traits.synchronous or kind == "elsewhere":
            assert where == "on the host, the module elsewhere"
        else:
            assert where == "shared on devices"


def test_buffers_follow_their_rule(found: Found) -> None:
    law = found["buffers"]
    assert law[0]["own"] != law[1]["own"]
    mean = [(a + b) / 2 for a, b in zip(law[0]["own"], law[1]["own"], strict=True)]
    for rank in range(LEARNERS):
        close(law[rank]["mean"], mean)
        assert law[rank]["counted"] == STEPS[0]
        assert law[rank]["after"] == law[rank]["own"]
        assert law[rank]["own_counted"] == STEPS[rank]


def test_learners_begin_from_the_weights_of_rank_0(found: Found) -> None:
    assert found["other weights"][0]["values"] == found["other weights"][1]["values"]
    assert found["other weights"][0]["values"] == attached_laws.values(mlp(seed=0))


@pytest.mark.parametrize("law", ["sampler adpsgd 0", "sampler adpsgd 1", "sampler ssgd 0"])
def test_samplers_share_out_every_example_once(found: Found, law: str) -> None:
    epochs = []
    for epoch in range(2):
        drawn = [found[law][rank]["drawn"][epoch] for rank in range(LEARNERS)]
        batches = [tuple(batch) for mine in drawn for batch in mine]
        assert sorted(number for batch in batches for number in batch) == list(range(25))
        assert max(map(len, batches)) == 3
        epochs.append(set(batches))
    assert epochs[0] != epochs[1]
    if "ssgd" in law:
        assert [len(found[law][rank]["drawn"][0]) for rank in range(LEARNERS)] == [4, 5]  # the last round: one example
        assert found[law][0]["length"] == 5


@pytest.mark.parametrize("strategy", ["bmuf", "dpsgd", "easgd-sync"])
def test_a_state_saved_and_loaded_changes_nothing(found: Found, strategy: str) -> None:
    law = found[f"going on {strategy}"]
    assert law[0]["straight"] == law[0]["values"] == law[1]["values"]


def test_the_minibatches_here_are_uneven() -> None:
    """Else the laws above would say less."""
    assert len(set(STEPS)) == len(set(SIZES)) == LEARNERS


@pytest.mark.parametrize("name", ["bmuf", "bmuf-fairseq", "slowmo", "diloco"])
def test_with_a_minibatch_each_block_momentum_moves_as_far_as_one_learner_on_all_minibatches(
    found: Found, name: str
) -> None:
    """Forty steps of each of two learners are eighty of one, local momentum and its reset included."""
    assert found[f"block momentum {name}"][0]["steps"] == pytest.approx(80, rel=0.05)
    assert found["block momentum bsp"][0]["steps"] == pytest.approx(40, rel=1e-3), "the mean moves as one of them"


def test_averaging_the_momentum_of_optimizers_that_share_nothing_is_refused(found: Found) -> None:
    assert "local_momentum is average" in found["average"][1]["error"]
