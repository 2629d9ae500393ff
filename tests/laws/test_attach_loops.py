"""Laws of loops that were not written for a session, of two learners: an optimizer's own step left in, a scaler,
changes by hand, meetings that differ. All run in one start of two processes, support/attached_loops.py."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from roundelay.strategies import STRATEGIES
from support import attached_laws, attached_loops
from support.attached_laws import LEARNERS, STEPS, alone, close, minibatches
from support.launched import reports, run_learners

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]
)
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]
SYNCHRONOUS = [name for name, strategy in STRATEGIES.items() if name != "sgd" and strategy.traits.synchronous]
EVERY = [name for name in STRATEGIES if name != "sgd"]


@pytest.fixture(scope="module", params=["here", "elsewhere", GPU])
def found(request: pytest.FixtureRequest) -> Found:
    """Of modules where the rows are, and of modules elsewhere, which look at copies."""
    done = run_learners(LEARNERS, str(attached_loops.__file__), request.param)
    same = done.stderr.count("rank 1 trains on the same minibatches as rank 0")
    assert same == len(EVERY), "in the law `by hand` it does, under each strategy, and nowhere else"
    late = done.stderr.count("no call of Sequential or of a part of it began this step")
    assert late == LEARNERS, "in the law `calls forward`, once each"
    return reports(done.stdout)


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
    """As one process with the minibatches together skips it; a scaler need not have seen it."""
    close(found["overflow ssgd"][0]["values"], alone("SGD", skip=1))
    close(found["spoilt ssgd"][0]["values"], alone("SGD", skip=1))
    assert torch.tensor(found["spoilt adpsgd"][0]["values"]).isfinite().all()


@pytest.mark.parametrize("name", ["ssgd", "delayed-gradient", "bsp"])
def test_what_nobody_has_a_gradient_of_is_left_alone(found: Found, name: str) -> None:
    """Weight decay included; what one learner has a gradient of is not."""
    law = found[f"unused {name}"]
    start = attached_loops.Heads()
    assert law[0]["values"] == law[1]["values"]
    close(law[0]["third"], attached_laws.values(start.heads[2]))  # bsp's weights are rounded
    second = attached_laws.values(start.heads[1])
    assert law[0]["values"][len(second) : 2 * len(second)] != second


def test_ssgd_with_unused_parameters_is_one_learner(found: Found) -> None:
    model = attached_loops.Heads()
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


CONVEX = {"ssgd": 0.1, "bsp": 0.1, "dpsgd": 0.1, "gossip-pga": 0.1, "adpsgd": 0.15, "hadpsgd": 0.15}
"""The model is a mean of rows as they were after the last step, and so within the bounds that all were clamped to.
Under asynchronous strategies a row may have been mixed with another's before its clamp is added to it, as a difference:
it may then be outside by a part of one update."""


@pytest.mark.parametrize("name", EVERY)
def test_what_all_change_by_hand_is_in_the_model(found: Found, name: str) -> None:
    law = found[f"by hand {name}"]
    assert law[0]["values"] == law[1]["values"]
    largest = torch.tensor(law[0]["values"]).abs().max()
    assert largest < 0.35, "what the module began with, and what it would go back to, is larger: 0.44"
    assert largest <= torch.tensor(CONVEX.get(name, 0.35))


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


@pytest.mark.parametrize("first", [0, 45])
def test_what_is_moved_for_a_gradient_comes_back_exactly(found: Found, first: int) -> None:
    """Each learner's way back rounds otherwise, and yet all hold one model: as with a copy that is put back."""
    kept = found[f"sharpness kept {first}"]
    assert kept[0]["values"] == kept[1]["values"]
    for way in ("named", "data"):
        law = found[f"sharpness {way} {first}"]
        assert [law[rank]["values"] for rank in range(LEARNERS)] == [kept[0]["values"]] * LEARNERS


def test_a_step_begins_with_a_compiled_call(found: Found) -> None:
    """And where it is begun by hand; a forward that nobody hears of takes its gradient before the exchange."""
    called = found["calls called"][0]["values"]
    for way in ("called", "compiled", "forward begun"):
        assert [found[f"calls {way}"][rank]["values"] for rank in range(LEARNERS)] == [called] * LEARNERS
    assert found["calls forward"][0]["values"] != called


def test_parameters_in_16_bits_are_averaged_in_32(found: Found) -> None:
    law = found["rounded"]
    assert law[0] == {**law[1], "rank": 0}
    row = torch.tensor(law[0]["row"])
    assert torch.equal(row.bfloat16().float(), torch.tensor(law[0]["values"]))
    assert not torch.equal(row.bfloat16().float(), row)
    torch.testing.assert_close(row, torch.tensor(alone("SGD momentum")), rtol=0.05, atol=0.02)
