"""Strategies written in one word: name, topology, options."""

from typing import Any

import pytest

from roundelay.core.errors import UserError
from roundelay.strategies import make_strategy, parse_strategy
from roundelay.strategies.adpsgd import AdPsgd
from roundelay.strategies.bmuf import Bmuf
from roundelay.strategies.dpsgd import DPsgd
from roundelay_speech.recipes.recipe import load_recipe


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("ssgd", "ssgd", {}),
        ("adpsgd:fixed-ring", "adpsgd", {"topology": "fixed-ring"}),
        ("bmuf,period=20,nesterov=true", "bmuf", {"period": 20, "nesterov": True}),
        ("bmuf, period=20, momentum=null", "bmuf", {"period": 20, "momentum": None}),
        (
            "x:ring,rate=0.5,graph=[[0, 1], [1, 2]],last={a: 1, b: 2}",
            "x",
            {"topology": "ring", "rate": 0.5, "graph": [[0, 1], [1, 2]], "last": {"a": 1, "b": 2}},
        ),
        ("x,text=a=b", "x", {"text": "a=b"}),
    ],
)
def test_a_name_carries_its_options(text: str, name: str, options: dict[str, Any]) -> None:
    assert parse_strategy(text) == (name, options)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "write NAME"),
        (":ring", "write NAME"),
        ("adpsgd:", "write NAME"),
        ("bmuf,period", "'period' is not KEY=VALUE"),
        ("bmuf,period=", "'period=' is not KEY=VALUE"),
        ("bmuf,=3", "'=3' is not KEY=VALUE"),
        ("bmuf,", "'' is not KEY=VALUE"),
        ("bmuf,period=3,period=4", "period is given twice"),
        ("adpsgd:ring,topology=ring", "topology is given twice"),
        ("bmuf,period=[3", r"'\[3' is not a value"),
    ],
)
def test_what_is_no_name_says_how_to_write_one(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        parse_strategy(text)
    assert "for example bmuf,period=20" in str(error.value)


def test_a_strategy_is_made_from_one_word() -> None:
    assert make_strategy("bmuf,period=5,nesterov=true,rate=1") == Bmuf(period=5, nesterov=True, rate=1.0)
    assert make_strategy("adpsgd:fixed-ring") == AdPsgd("fixed-ring")
    assert make_strategy("dpsgd:graph,edges=[[0,1],[1,2]]") == DPsgd("graph", ((0, 1), (1, 2)))
    assert make_strategy("bmuf,period=5", {"period": 7, "momentum": 0.5}) == Bmuf(period=5, momentum=0.5)


def test_a_recipe_takes_the_word_as_it_is() -> None:
    training = load_recipe("demo", ["training.strategy=bmuf,period=5,nesterov=true"]).training
    assert make_strategy(training.strategy, training.options) == Bmuf(period=5, nesterov=True)
