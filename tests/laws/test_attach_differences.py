"""Learners that attach, draw or train otherwise than others: each difference is refused or said, by name, and what
should not be said is not. All cases run in one start of two processes, support/attached_differences.py."""

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from support import attached_differences
from support.attached_differences import SAMPLERS, mlp, sgd
from support.attached_hosts import HostsOfLearners
from support.launched import reports, run_learners

SCRIPT = str(attached_differences.__file__)
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


@pytest.fixture(scope="module")
def found() -> Found:
    return reports(run_learners(2, SCRIPT).stdout)


def on_hosts(refused: str) -> Found:
    with TemporaryDirectory() as folder, HostsOfLearners((1, 1), [SCRIPT, "hosts", refused, folder]) as hosts:
        return reports(hosts.end()[0])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "parameter of the module 2.weight (4, 8) float32, rank 0 with 2.weight (3, 8) float32"),
        ("name", "parameter of the module first.weight (8, 5) float32, rank 0 with 0.weight (8, 5) float32"),
        ("dtype", "parameter of the module 2.weight (3, 8) bfloat16, rank 0 with 2.weight (3, 8) float32"),
        ("more", "parameter of the module 3.weight (3, 3) float32, rank 0 with none"),
        ("frozen", "parameter of the module 0.bias (8,) float32, frozen, rank 0 with 0.bias (8,) float32"),
        ("buffer", "buffer extra (3,) float32, rank 0 with none"),
    ],
)
def test_what_modules_differ_in_is_named(found: Found, what: str, says: str) -> None:
    assert f"rank 1 attaches with {says}" in found[f"{what} adpsgd"][1]["error"]


OPTIMIZERS = {
    "rate": "lr 0.05, rank 0 with 0.1",
    "option": "nesterov True, rank 0 with False",
    "kind": "optimizer AdamW, rank 0 with SGD",
    "groups": "number of parameter groups 2, rank 0 with 1",
    "members": "parameter of group 0 2.weight, rank 0 with 0.weight",
}


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_optimizers_that_differ_are_refused_where_rows_are_equal_and_said_elsewhere(found: Found, what: str) -> None:
    assert f"rank 1 attaches with {OPTIMIZERS[what]}" in found[f"{what} ssgd"][1]["error"]
    for strategy in ("bsp", "adpsgd"):
        law = found[f"{what} {strategy}"]
        assert not law[0]["said"]
        (said,) = law[1]["said"]
        name, _, value = OPTIMIZERS[what].split(",")[0].rpartition(" ")
        assert said.startswith(f"rank 1 has attached with {name} ")
        assert value in said
        assert law[0]["values"] == law[1]["values"]


@pytest.mark.parametrize("strategy", ["ssgd", "bsp", "adpsgd"])
def test_optimizers_that_do_not_differ_are_not_spoken_of(found: Found, strategy: str) -> None:
    assert [found[f"same {strategy}"][rank]["said"] for rank in range(2)] == [[], []]
    assert [found[f"same rates {strategy}"][rank]["said"] for rank in range(2)] == [[], []]


@pytest.mark.parametrize("how", ["uneven", "plateau"])
@pytest.mark.parametrize("strategy", ["ssgd", "delayed-gradient", "hadpsgd"])
def test_learners_who_average_gradients_stay_one_model_though_their_schedules_differ(
    found: Found, strategy: str, how: str
) -> None:
    law = found[f"{how} rates {strategy}"]
    assert law[0]["rate"] != law[1]["rate"]
    assert law[0]["own"] == law[1]["own"]
    assert not law[0]["said"]
    (said,) = law[1]["said"]
    assert said.startswith("rank 1 has lr 0.")
    assert "where rank 0 has 0." in said


def test_the_schedule_that_counts_is_that_of_the_lowest_rank_that_has_a_gradient(found: Found) -> None:
    """Against one process that has the minibatches of both."""
    model = mlp()
    optimizer = sgd(model, 0.5)
    for rate, (number, ranks) in enumerate([(n, (0, 1) if n < 3 else (0,)) for _ in range(2) for n in range(5)]):
        optimizer.param_groups[0]["lr"] = 0.5 * 0.7**rate
        optimizer.zero_grad()
        x = [torch.randn(4, 5, generator=torch.Generator().manual_seed(1000 * rank + number)) for rank in ranks]
        torch.autograd.backward(model(torch.cat(x)).square().mean())
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(torch.tensor(found["uneven rates ssgd"][0]["own"]), expected, rtol=1e-4, atol=1e-5)


def test_rates_that_differ_after_as_many_steps_are_said_and_those_of_schedules_that_are_not_as_far_are_not(
    found: Found,
) -> None:
    assert "both after 5 steps" in found["plateau rates bsp"][1]["said"][0]
    assert not found["uneven rates bsp"][1]["said"]
    assert not found["uneven rates adpsgd"][1]["said"]


@pytest.mark.parametrize("strategy", ["ssgd", "adpsgd"])
@pytest.mark.parametrize("what", SAMPLERS)
def test_samplers_made_otherwise_are_refused(found: Found, strategy: str, what: str) -> None:
    law = found[f"sampler {what} {strategy}"]
    errors = [law[rank].get("error", "") for rank in range(2)]
    if what == "nothing":
        assert errors == ["", ""]
        assert sorted(law[0]["drawn"] + law[1]["drawn"]) == list(range(40))
    else:
        named = "examples" if what == "dataset" else what
        assert any(
            f"its sampler 1 has {named}=" in error and f", that of rank {r} {named}=" in error
            for error, r in zip(errors, (1, 0), strict=True)
        )


def test_samplers_made_in_another_order_or_by_some_only_are_named(found: Found) -> None:
    swapped = found["samplers swapped adpsgd"]
    assert any("in the same order" in swapped[rank].get("error", "") for rank in range(2))
    for law, made in (("samplers fewer ssgd", 1), ("samplers none adpsgd", 0)):
        (said,) = [line for rank in range(2) for line in found[law][rank]["said"]]
        assert f"rank 0 has made 2 samplers and rank 1 {made}" in said


@pytest.mark.parametrize("strategy", ["ssgd", "bsp", "adpsgd", "easgd"])
def test_a_loss_that_is_not_a_number_stays_with_its_learner(found: Found, strategy: str) -> None:
    law = found[f"nan {strategy}"]
    assert torch.tensor(law[0]["values"]).isfinite().all()
    assert law[0]["values"] == law[1]["values"]
    first, last = law[1]["said"]
    assert "rank 1: the gradient of its step 4 is NaN or infinite, in all parameters (its loss was, it may be)" in first
    assert "rank 1 skipped 2 of its 10 steps" in last
    assert not law[0]["said"]


@pytest.mark.parametrize("strategy", ["ssgd", "bsp", "adpsgd", "easgd"])
def test_a_parameter_that_one_learner_freezes_is_named(found: Found, strategy: str) -> None:
    law = found[f"frozen later {strategy}"]
    assert not law[0]["said"]
    (said,) = law[1]["said"]
    assert said.startswith("rank 1 has frozen parameter 2.weight (requires_grad_(False)) and rank 0 has not")


def test_a_learner_without_data_is_named_where_its_row_counts(found: Found) -> None:
    (said,) = found["idle adpsgd,weights=equal"][0]["said"]
    assert "rank 1 0, rank 0 40. In the model that close() leaves the row of each counts alike" in said
    for strategy in ("adpsgd", "easgd"):  # rows weighed by progress, and a centre
        (said,) = found[f"idle {strategy}"][0]["said"]
        assert said.endswith("rank 1 0, rank 0 40.")
    assert not any(found[f"idle {strategy}"][0]["said"] for strategy in ("ssgd", "bsp"))
    for strategy in ("ssgd", "bsp", "adpsgd", "easgd"):
        (said,) = found[f"idle {strategy}"][1]["said"]
        assert said.startswith("rank 1 came to close() without a step of its own, and waits there while rank 0 trains")
        assert "session.sampler(dataset, batch_size)" in said


def test_a_session_that_nobody_closes_is_said_in_the_end(found: Found) -> None:
    for rank in range(2):
        assert not found["unclosed fails"][rank]["said"]
        for how in ("open", "exits"):
            (said,) = found[f"unclosed {how}"][rank]["said"]
            assert f"rank {rank} ends without session.close()" in said


# Several hosts --------------------------------------------------------------------------------------------------------


def test_two_hosts_hear_of_each_other_what_learners_of_one_do(found: Found) -> None:
    there = on_hosts("sampler")
    assert set(there) < {*found}
    for law in there:
        for rank in range(2):
            mine, theirs = ({**one[law][rank], "drawn": 0} for one in (found, there))
            if "adpsgd" in law:  # which depends on timing
                mine["values"] = theirs["values"] = 0
            if not law.startswith("sampler"):
                assert mine == theirs, (law, rank)
    errors = [said.get("error", "") for said in there["sampler batch_size adpsgd"].values()]
    assert any("its sampler 1 has batch_size=" in error for error in errors)


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("rate ssgd", "lr is 0.1 on the host of learner 0 and 0.05 on the host of learner 1"),
        (
            "shape adpsgd",
            "parameter of the module is '2.weight (3, 8) float32' on the host of learner 0 and "
            "'2.weight (4, 8) float32' on the host of learner 1",
        ),
    ],
)
def test_what_differs_between_hosts_is_named_on_both(refused: str, says: str) -> None:
    law = on_hosts(refused.split(maxsplit=1)[0])[refused]
    for rank in range(2):
        assert says in law[rank]["error"]
