"""Settings and samplers as learners compare them, and the alarms of a learner that is alone."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import roundelay
from roundelay.attached.hyperparameters import UsersOptimizers, settings_of
from roundelay.core.errors import UserError
from roundelay.runtime.attached.settings import NUMBERS, Settings, SettingsTables
from roundelay.runtime.attached.shares import (
    ANY,
    COUNT,
    FINGERPRINTS,
    FOUND,
    SHARE_SLOTS,
    STATED,
    UNSEEN,
    Shares,
    ShareTables,
    ShareTerms,
)
from roundelay.runtime.hosts.terms import differing
from roundelay.strategies import make_strategy
from support.small_loop import backward, batches, network, network_by_sgd
from support.views import zeros


def grouped(model: nn.Sequential) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters(), "lr": torch.tensor(0.5), "k": 0},
        {"params": model[2].parameters(), "lr": 0.25, "betas": (0.5, 0.75), "k": 7},
    ]
    return torch.optim.Adam(groups, lr=0.1)


def test_numbers_have_names_learning_rates_first_and_are_others_for_a_while() -> None:
    """A number that changes in between stays changed, as what an optimizer counts in its groups does."""
    optimizer = grouped(network())
    numbers = UsersOptimizers([optimizer])
    assert numbers.names[:2] == ["lr of group 0", "lr of group 1"]
    assert numbers.rates == 2
    assert numbers.numbers()[:2] == (0.5, 0.25)
    named = dict(zip(numbers.names, range(len(numbers.names)), strict=True))
    others = [*numbers.numbers()]
    for name, value in {
        "lr of group 0": 0.125,
        "betas[1] of group 1": 0.5,
        "k of group 0": 3,
        "k of group 1": 9,
    }.items():
        others[named[name]] = value
    first, second = optimizer.param_groups
    with numbers.under(others):
        assert (float(first["lr"]), second["betas"], first["k"], second["k"]) == (0.125, (0.5, 0.5), 3, 9)
        first["k"] += 1
    assert (float(first["lr"]), second["betas"], first["k"], second["k"]) == (0.5, (0.5, 0.75), 4, 7)
    assert isinstance(first["lr"], torch.Tensor)
    assert type(second["k"]) is int
    del optimizer.param_groups[1]  # as when a part is trained no more
    with numbers.under(others):
        assert float(first["lr"]) == 0.125
    values = numbers.numbers()
    assert [math.isnan(values[named[name]]) for name in ("lr of group 0", "lr of group 1")] == [False, True]


def test_settings_leave_out_how_an_update_is_computed() -> None:
    model = network()
    found = [settings_of([torch.optim.SGD(model.parameters(), lr=0.1, foreach=how)], model) for how in (True, False)]
    assert found[0] == found[1]
    assert found[0]["parameter of the optimizer"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def settings(count: int, rates: list[list[float]]) -> list[tuple[Settings, torch.optim.Optimizer]]:
    """Of learners with so many parameter groups each, at these rates."""
    tables = zeros(SettingsTables, learners=len(rates))
    found: list[tuple[Settings, torch.optim.Optimizer]] = []
    for rank, several in enumerate(rates):
        parts = [nn.Linear(1, 1) for _ in range(count)]
        groups: list[dict[str, Any]] = [
            {"params": part.parameters(), "lr": rate} for part, rate in zip(parts, several * count, strict=False)
        ]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        facts = settings_of([optimizer], nn.ModuleList(parts))
        found.append((Settings(tables, rank, facts, UsersOptimizers([optimizer]), make_strategy("adpsgd")), optimizer))
    return found


def test_settings_too_long_to_be_shown_are_compared_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    generator = np.random.default_rng(0)
    many = generator.random(300).tolist()
    (first, _), (second, _), (third, _) = settings(300, [many, many, [*many[:-1], 2.0]])
    assert first.say_differences((0, 1, 2))
    assert second.say_differences((0, 1, 2))
    assert not caplog.records
    assert third.say_differences((0, 1, 2))
    assert "checksum of all options" in caplog.messages[0]


@pytest.mark.parametrize(
    ("steps", "rates", "said"),
    [
        ((8, 48), (0.9, 0.1), True),
        ((48, 8), (0.1, 0.9), True),
        ((40, 48), (0.9, 0.1), False),
        ((8, 48), (0.2, 0.0), False),
    ],
)
def test_schedules_that_unequal_learners_follow_by_their_own_steps_are_named(
    steps: tuple[int, int], rates: tuple[float, float], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; not those of nearly equal learners, nor a rate that ends a little later. Both have had a rate of 1."""
    learners = settings(1, [[1.0], [1.0]])
    for at_end in (False, True, True):
        for (one, optimizer), count, rate in zip(learners, steps, rates, strict=True):
            one.taken, optimizer.param_groups[0]["lr"] = count * at_end, rate if at_end else 1.0
            one.note()
        for one, _ in learners:
            one.say_rates_apart((0, 1))
    assert [f"after {steps[1]} and {steps[0]} steps" in text for text in caplog.messages] == [True] * said


def test_numbers_that_cannot_all_be_shown_must_be_the_same() -> None:
    many = [0.5] * NUMBERS
    (first, _), (second, _) = settings(NUMBERS, [many, [*many[:-1], 0.25]])
    mine, theirs = second.kept.packed(), first.kept.packed()
    with pytest.raises(UserError, match=r"rank 1 has .* learners who update by them otherwise would train different"):
        second.under(0, mine, theirs, had=True)


def test_samplers_are_compared_by_number_and_slots_are_used_again() -> None:
    shared = zeros(ShareTables, learners=2)
    first, second = (Shares(shared, rank) for rank in range(2))
    for number in range(1, 3 * SHARE_SLOTS):
        first.make(number, ShareTerms(number, 4, 0, 1, 0))
        assert not first.check(number, (0, 1))
    second.make(5, ShareTerms(9, 4, 0, 1, 0))
    assert not second.check(5, (0, 1)), "the first one's is not there any more"
    last = 3 * SHARE_SLOTS - 1
    for number in range(6, last + 1):
        second.make(number, ShareTerms(number, 4, 0, 1, 0))
    assert first.check(last, (0, 1))
    assert second.check(last, (0, 1))
    second.make(last + 1, ShareTerms(9, 4, 3, 0, 0))
    first.make(last + 1, ShareTerms(9, 8, 3, 1, 0))
    with pytest.raises(UserError, match=r"rank 0: its sampler 48 has batch_size=8, shuffle=True, that of rank 1 b"):
        first.check_all((0, 1))
    assert first.check(last + 1, (0,)), "the dead are not asked"


def test_passes_are_compared_by_sampler_epoch_and_place_as_far_as_both_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Learners need not be in the same pass, and one that is written meanwhile is left out."""
    shared = zeros(ShareTables, learners=2)
    first, second = (Shares(shared, rank) for rank in range(2))
    for one in (first, second):
        one.make(1, ShareTerms(first=UNSEEN))
        one.make(2, ShareTerms(first=ANY))
    for number, epoch, what, ours, theirs in (
        (1, 0, STATED, 31, UNSEEN),
        (1, 0, FINGERPRINTS, 5, 6),  # of the first pass that is refused by `check`
        (1, 0, FINGERPRINTS + 2, 7, 7),
        (1, 0, FOUND, 31, 20),
        (1, 0, COUNT, 31, UNSEEN),
        (2, 0, STATED, 9, 9),
        (2, 0, FINGERPRINTS, 9, 9),
        (2, 0, FINGERPRINTS + 3, 1, UNSEEN),
        (2, 1, STATED, UNSEEN, UNSEEN),
        (2, 1, FINGERPRINTS, 2, 2),
        (1, 1, STATED, UNSEEN, UNSEEN),  # before the other is over
        (2, 1, FINGERPRINTS + 4, 3, 4),
    ):
        first.note(number, epoch, what, ours)
        second.note(number, epoch, what, theirs)
    first.note(2, 2, STATED, UNSEEN)  # it is a pass ahead
    first.note(2, 2, FINGERPRINTS, 3)
    shared.passes[1, 2, 0] += 1
    first.say_passes_apart((0, 1))
    assert not caplog.messages
    shared.passes[1, 2, 0] -= 1
    first.say_passes_apart((0,))
    assert not caplog.messages, "the dead are not asked"
    for _ in range(2):
        first.say_passes_apart((0, 1))
    (said,) = caplog.messages
    assert "(sampler 2 of this session), epoch 1 has another batch 64 than on rank 1" in said
    with pytest.raises(UserError, match="begins with another batch than what rank 1 gives"):
        first.check(1, (0, 1))


def test_a_learner_without_a_batch_in_its_first_pass_has_none_that_is_refused() -> None:
    shared = zeros(ShareTables, learners=2)
    first, second = (Shares(shared, rank) for rank in range(2))
    for one in (first, second):
        one.make(1, ShareTerms(first=UNSEEN))
        one.note(1, 0, STATED, UNSEEN)
    first.note(1, 0, FINGERPRINTS, 5)
    second.note(1, 1, STATED, UNSEEN)
    second.note(1, 1, FINGERPRINTS, 6)
    for one in (first, second):
        one.check_all((0, 1))


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ({STATED: 31}, {STATED: 21}, True),
        ({STATED: 31, FOUND: 31, COUNT: 31}, {STATED: 33, FOUND: 31, COUNT: 31}, False),  # lengths are estimates
        ({FOUND: 31, COUNT: 31}, {FOUND: 21, COUNT: 21}, True),
        ({FOUND: 31}, {FOUND: 21, COUNT: 21}, True),
        ({FOUND: 20}, {FOUND: 21, COUNT: 21}, False),
        ({STATED: 1, FOUND: 1, COUNT: 1}, {STATED: 31, FOUND: 2}, True),
    ],
)
def test_passes_of_other_lengths_are_named(
    ours: dict[int, int], theirs: dict[int, int], apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learners = [Shares(shared, rank) for shared in [zeros(ShareTables, learners=2)] for rank in range(2)]
    for one, known in zip(learners, (ours, theirs), strict=True):
        one.make(1, ShareTerms(first=ANY))
        for what, value in ({STATED: UNSEEN} | known).items():
            one.note(1, 0, what, value)
    learners[0].check_all((0, 1))
    learners[1].check_all((0, 1))
    assert sum("epoch 0 has another number of batches than on rank" in text for text in caplog.messages) == 2 * apart


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ([1, 2], (1, 2), []),
        ({"a": [1, 2, 4]}, {"a": [1, 3, 5]}, [("a", 2, 3)]),
        ({"a": ["x"]}, {"a": ["x", "y", "z"]}, [("a", None, "y")]),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}}, [("a.b", 1, 3), ("c", 2, None)]),
    ],
)
def test_of_two_lists_the_first_item_that_differs_is_named(ours: Any, theirs: Any, found: Any) -> None:
    assert differing(ours, theirs) == found


@pytest.mark.parametrize("how", ["backward", "gradient", "zero", "late", "scaler", "nothing"])
def test_a_learner_alone_is_told_of_steps_without_a_gradient(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once; also where they begin after others."""
    model, optimizer = network_by_sgd()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=how == "scaler")
    with caplog.at_level(logging.WARNING), roundelay.attach(model, optimizer, "adpsgd"):
        for number, (x, y) in enumerate(batches(100)):
            optimizer.zero_grad()
            if how == "scaler":
                torch.autograd.backward(scaler.scale(nn.functional.cross_entropy(model(x), y)))
            elif how == "backward" or (how == "late" and number >= 30):
                model(x)
            else:
                backward(model, x, y)
            if how in ("gradient", "zero"):
                optimizer.zero_grad(set_to_none=how == "gradient")
            scaler.step(optimizer)
            scaler.update()
    said = [text for text in caplog.messages if "has had no gradient of Sequential in its last" in text]
    assert len(said) == (how not in ("scaler", "nothing"))


def test_a_learner_alone_trains_on_with_a_loss_that_is_not_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """As the loop does without a session; the model that is evaluated is named."""
    model, optimizer = network_by_sgd()
    with caplog.at_level(logging.WARNING), roundelay.attach(model, optimizer, "adpsgd"):
        torch.autograd.backward(model(next(batches())[0]).sum() * float("nan"))
        optimizer.step()
    assert model.get_parameter("0.weight").isnan().all()
    assert "parameter 0.weight of the model that all have in common is NaN or infinite" in caplog.messages[0]
