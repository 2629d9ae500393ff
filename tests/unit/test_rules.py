"""Rules by name: what may be asked of another host, and nothing else."""

import dataclasses
import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.algorithms import rules
from roundelay.algorithms.averaging import pair_average_, weighted_mean_
from roundelay.algorithms.elastic import Pull, set_centre_
from roundelay.algorithms.parameter_server import Report
from roundelay.algorithms.rules import describe, find, register
from roundelay.core.effects import Exchange, Rule
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import EVERY, cluster, make_strategy, plan


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))


@pytest.mark.parametrize(
    ("rule", "private", "aged"),
    [
        (pair_average_, 0, False),
        (set_centre_, 1, False),
        (Pull(0.25), 0, False),
        (Report(), 1, True),
        (Report(0.1, True), 1, True),
    ],
)
def test_a_rule_comes_back_from_its_name_and_numbers(rule: Rule, private: int, aged: bool) -> None:
    found = find(json.loads(json.dumps(describe(rule))), private, aged)
    assert found == rule
    assert type(found) is type(rule)


def scaled_(mine: Tensor, theirs: Tensor, share: float = 0.5) -> None:
    mine.lerp_(theirs, share)


def test_users_may_name_rules_of_their_own(registry: None) -> None:
    with pytest.raises(ValueError, match="is not known by name"):
        describe(scaled_)
    register(scaled_)
    found = find(describe(partial(scaled_, share=1.0)), 0, False)
    mine, theirs = torch.zeros(3), torch.ones(3)
    found(mine, theirs)
    assert torch.equal(mine, theirs)
    with pytest.raises(ValueError, match="without names"):
        describe(partial(scaled_, torch.zeros(3)))
    with pytest.raises(ValueError, match="share is tensor"):
        describe(partial(scaled_, share=torch.ones(3)))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Other:
    alpha: float

    def __call__(self, mine: Tensor, theirs: Tensor) -> None: ...


@pytest.mark.parametrize(
    "rule",
    [
        lambda mine, theirs: None,
        weighted_mean_,
        _Other(1.0),
        Pull(float("nan")),
        Pull("1"),  # type: ignore[arg-type]
        Pull,
    ],
)
def test_what_has_no_name_is_not_described(rule: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 two messages
        describe(rule)


def test_a_rule_is_what_is_registered_not_what_bears_its_name() -> None:
    impostor = dataclasses.make_dataclass("Pull", [("alpha", float)], frozen=True)
    with pytest.raises(ValueError, match="is not known by name"):
        describe(impostor(0.5))


@pytest.mark.parametrize(
    "description",
    [
        None,
        1,
        [],
        {},
        {"name": "pair_average_"},
        {"name": "pair_average_", "numbers": {}, "more": 1},
        {"name": "torch.load", "numbers": {}},
        {"name": "weighted_mean_", "numbers": {}},
        {"name": None, "numbers": {}},
        {"name": ["Pull"], "numbers": {"alpha": 1}},
        {"name": "Pull", "numbers": {}},
        {"name": "Pull", "numbers": {"alpha": "0.5"}},
        {"name": "Pull", "numbers": {"alpha": float("inf")}},
        {"name": "Pull", "numbers": {"alpha": [1]}},
        {"name": "Pull", "numbers": {"alpha": 10**400}},
        {"name": "Pull", "numbers": {"alpha": 1, "__class__": 1}},
        {"name": "Pull", "numbers": [1]},
        {"name": "pair_average_", "numbers": {"mine": 1}},
        {"name": "pair_average_", "numbers": {"weight": 1}},
        {"name": "Report", "numbers": {}},
        {"name": "set_centre_", "numbers": {}},
    ],
)
def test_nothing_else_is_looked_up(description: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 it never gets further than the wire
        find(description, 0, False)


@pytest.mark.parametrize(("private", "aged"), [(0, True), (2, True), (1, False)])
def test_a_rule_is_given_what_it_takes(private: int, aged: bool) -> None:
    with pytest.raises(ValueError, match="does not take these arguments"):
        find(describe(Report()), private, aged)


@pytest.mark.parametrize("name", EVERY)
def test_every_rule_of_every_strategy_has_a_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Exchange] = []
    whole = Exchange.__init__

    def note(self: Exchange, *given: Any, **named: Any) -> None:
        whole(self, *given, **named)
        asked.append(self)

    monkeypatch.setattr(Exchange, "__init__", note)
    learners = 1 if make_strategy(name).name == "sgd" else 4
    with SimRuntime(cluster(name, learners)) as runtime:
        runtime.segment(plan(6, learners))
    for effect in asked:
        describe(effect.rule)
