"""Recipes: every mistake is named by its dotted key."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.configure import build, override, plain
from roundelay.core.errors import UserError
from roundelay.schedule import Anneal
from roundelay_speech.recipes.known import known_recipes
from roundelay_speech.recipes.recipe import Recipe, complete, load_recipe

MINIMAL = {"name": "x", "corpus": "data", "alignment": "ali"}


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("training.minibach=3", "training.minibach; did you mean minibatch"),
        ("training.minibatch=many", "training.minibatch is 'many': expected a whole number"),
        ("training.minibatch=true", "training.minibatch"),
        ("training.runtime=moon", "choose one of procs, sim"),
        ("model.layers=0", "model.layers"),
        ("schedule.learning_rate=.nan", r"schedule.learning_rate is not a number \(nan\)"),
        ("decode.beam=nan", r"decode.beam is not a number \(nan\): expected a number"),
        ("decode.scales=[0.1, .nan]", r"decode.scales\[1\] is not a number \(nan\)"),
        ("schedule=7", "schedule: expected a section"),
        ("optimizer.momentum=1", "optimizer.momentum"),
        ("decode.scales=[0.1, x]", r"decode.scales\[1\]"),
        ("optimizer.name=adamm", "optimizer.name is 'adamm': did you mean adam"),
        (
            "optimizer={name: adam, momentum: 0.9}",
            r"optimizer.momentum is no option of name adam.*optimizer=\{name: adam\}",
        ),
        ("optimizer={name: adamw, options: {bettas: 1}}", "optimizer.options.bettas; did you mean betas"),
        ("optimizer={name: adamw, option: {}}", "unknown option optimizer.option; did you mean options"),
        ("schedule.rule=newbop", "schedule.rule is 'newbop': choose one of newbob, anneal"),
        ("schedule.anneal_from=3", "schedule.anneal_from is no option of rule newbob"),
        ("schedule={rule: anneal, halve_below: 0.1}", "schedule.halve_below is no option of rule anneal"),
        ("schedule={rule: anneal, warmup: 1}", "unknown option schedule.warmup"),
        ("training.learners=500", "training.minibatch is 256 frames for 500 learners"),
        (
            "training={minibatch_per_learner: 0, learners: 4}",
            "minibatch_per_learner is 0 frames for 4 learners",
        ),
        ("training={minibatch_per_learner: 64, minibatch: 256}", "training.minibatch is 256, over all .*: give one of"),
        ("training.minibatch_unit=words", "training.minibatch_unit is 'words': choose one of frames, sequences"),
    ],
)
def test_a_wrong_option_is_named(assignment: str, named: str) -> None:
    mapping: dict[str, object] = dict(MINIMAL)
    override(mapping, assignment)
    with pytest.raises(UserError, match=named):
        build(Recipe, mapping)


@pytest.mark.parametrize("name", known_recipes())
def test_optimizer_and_rule_are_chosen_by_one_word_each(name: str) -> None:
    recipe = load_recipe(name, ["optimizer.name=adam", "schedule.rule=anneal", "optimizer.options.betas=[0.8, 0.9]"])
    assert recipe.optimizer == TorchOptimizer("adam", {"betas": [0.8, 0.9]})
    assert isinstance(recipe.schedule, Anneal)
    assert recipe.schedule.learning_rate == load_recipe(name).schedule.learning_rate
    assert build(Recipe, plain(recipe)) == recipe


@pytest.mark.parametrize(
    ("section", "optimizer"),
    [
        ({"momentum": 0.5}, Sgd(0.5)),
        ({"name": "sgd", "momentum": 0.5, "nesterov": True}, Sgd(0.5, True)),
        ({"weight_decay": 0.1}, Sgd(weight_decay=0.1)),
        ({"name": "rmsprop"}, TorchOptimizer("rmsprop")),
    ],
)
def test_optimizers_by_section(section: dict[str, object], optimizer: LocalOptimizer) -> None:
    assert build(Recipe, {**MINIMAL, "optimizer": section}).optimizer == optimizer
    assert build(Recipe, MINIMAL).optimizer == Sgd(0.9)


def test_a_recipe_of_an_earlier_version_is_completed() -> None:
    """As version 0.1.0 wrote these sections."""
    old = {
        **plain(build(Recipe, MINIMAL)),
        "optimizer": {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
        "schedule": {
            "learning_rate": 0.02,
            "halve_below": 0.01,
            "stop_below": 0.001,
            "factor": 0.5,
            "max_epochs": 20,
            "reject_worse": True,
        },
    }
    assert complete(old) == plain(build(Recipe, MINIMAL))


def test_missing_sections_are_all_named() -> None:
    with pytest.raises(UserError, match="name, corpus"):
        build(Recipe, {})


@pytest.mark.parametrize("assignment", ["minibatch", "=3", "name.x=1", "a=[1"])
def test_an_override_that_is_none_is_refused(assignment: str) -> None:
    with pytest.raises(UserError, match="override"):
        override({"name": "x"}, assignment)


def test_numbers_with_an_exponent_are_numbers() -> None:
    mapping = dict(MINIMAL)
    override(mapping, "schedule.learning_rate=1e-3")
    assert build(Recipe, mapping).schedule.learning_rate == 1e-3


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="an4"):
        load_recipe("an5")


@dataclass(frozen=True)
class Graph:
    edges: Sequence[Sequence[int]] = ()


def test_a_sequence_of_sequences_is_held_to_its_type() -> None:
    assert build(Graph, {"edges": [[0, 1], [1, 2]]}) == Graph(((0, 1), (1, 2)))
    with pytest.raises(UserError, match=r"edges\[1\]\[0\] is 'one': expected a whole number"):
        build(Graph, {"edges": [[0, 1], ["one", 2]]})
    with pytest.raises(UserError, match="edges is 3: expected a list"):
        build(Graph, {"edges": 3})
