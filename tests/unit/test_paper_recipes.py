"""Recipes of published experiments: what they train, by which schedule; and recipes that begin with another."""

from pathlib import Path

import pytest

from roundelay.core.errors import UserError
from roundelay.schedule import Newbob, SchedulePosition, advance, start
from roundelay_speech.features.store import StoredPart
from roundelay_speech.models.frontend import Columns
from roundelay_speech.recipes.known import known_recipes, read_recipe
from roundelay_speech.recipes.recipe import Recipe, load_recipe

PUBLISHED = (
    StoredPart("fmllr", 40, 0, "none", filterbank=False),
    StoredPart("logmel", 40),
    StoredPart("speaker", 100, 0, "none", spliced=False, filterbank=False),
)
"""260 inputs: 40, 40 with two deltas, 100."""

SIZES = {
    "an4": 1_720_820,
    "an4_blstm": 1_562_612,
    "an4_cldnn": 1_571_412,
    "an4_published": 7_113_204,
    "demo": 534_010,
    "fsdd": 429_668,
    "ibm-blstm": 42_581_504,
    "ibm-blstm-small": 700_212,
    "kaldi": 1_720_820,
    "li2017-cldnn": 16_873_435,
    "li2017-dnn": 12_466_779,
    "librispeech": 12_466_779,
    "mini_librispeech": 1_977_320,
    "mini_librispeech_blstm": 2_864_104,
    "switchboard": 42_581_504,
}
"""Parameters with 40 filterbanks and as many tied states as the recipe asks for."""


def parameters(recipe: Recipe, features: Columns) -> int:
    network = recipe.model.network(features, recipe.align.tied_states)
    return sum(p.numel() for p in network.parameters())


def test_networks_have_as_many_parameters_as_is_said() -> None:
    found = {name: parameters(load_recipe(name), 40) for name in known_recipes()}
    assert {name: found[name] for name in SIZES} == SIZES


def test_the_inputs_of_the_large_recurrent_network() -> None:
    """More inputs, 140, at the two directions of the first layer alone: 4 gates of 512 cells each."""
    recipe = load_recipe("ibm-blstm")
    assert recipe.model.network(PUBLISHED, 32_000).frontend.width == 260
    assert recipe.model.network(40, 32_000).frontend.width == 120
    assert parameters(recipe, PUBLISHED) == SIZES["ibm-blstm"] + 2 * 4 * 512 * 140 == 43_154_944


@pytest.mark.parametrize("name", ["ibm-blstm", "ibm-blstm-small", "switchboard"])
def test_the_rate_rises_tenfold_in_ten_epochs_and_falls_by_the_root_of_two(name: str) -> None:
    recipe = load_recipe(name)
    schedule, size = recipe.schedule, recipe.training.size
    assert (size.unit, size.per_learner) == ("sequences", False)
    assert size.number == 10 * (schedule.base_minibatch or 0)
    now: SchedulePosition = start(schedule, size.number)
    rates = []
    while not now.stopped:
        warmup = schedule.warmup(size.number, now.epoch, 100)
        rates.append(now.learning_rate * (warmup.factor(0) if warmup else 1.0))
        now, _ = advance(schedule, now, 1.0)
    low = schedule.learning_rate
    assert rates[:10] == pytest.approx([low + 0.9 * epoch * low for epoch in range(10)], rel=0.02)
    assert rates[10:] == pytest.approx([10 * low / 2 ** (epoch / 2) for epoch in range(1, 7)])


@pytest.mark.parametrize("name", ["li2017-dnn", "li2017-cldnn"])
def test_the_protocol_of_li(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.training.size.per_learner
    assert (recipe.training.learners, recipe.align.tied_states) == (4, 5723)
    assert recipe.init.first.epochs == 1
    schedule = recipe.schedule
    assert isinstance(schedule, Newbob)
    assert (schedule.halve_below, schedule.stop_below, schedule.factor, schedule.reject_worse) == (
        0.01,
        0.001,
        0.5,
        True,
    )
    size = {"li2017-dnn": (4096, "frames"), "li2017-cldnn": (100, "sequences")}[name]
    assert (recipe.training.size.number, recipe.training.size.unit) == size
    assert recipe.training.strategy == {"li2017-dnn": "bmuf,period=5", "li2017-cldnn": "bmuf,period=80"}[name]


def test_switchboard_is_the_large_recurrent_network() -> None:
    one, other = read_recipe("switchboard"), read_recipe("ibm-blstm")
    assert one == {**other, "name": "switchboard"}


# Recipes that begin with another --------------------------------------------------------------------------------------


def test_a_recipe_says_what_differs(tmp_path: Path) -> None:
    """Values take the place of values; a section that names another kind is taken whole; a file beside is found."""
    (tmp_path / "first.yaml").write_text("base: ibm-blstm\nname: first\nschedule: {rule: newbob, learning_rate: 0.5}\n")
    (tmp_path / "second.yaml").write_text(
        "base: first.yaml\nname: second\nmodel: {layers: 3}\ntraining: {minibatch: 7}\n"
    )
    base, made = read_recipe("ibm-blstm"), read_recipe(str(tmp_path / "second.yaml"))
    assert made["name"] == "second"
    assert made["schedule"] == {"rule": "newbob", "learning_rate": 0.5}
    assert made["model"] == {**base["model"], "layers": 3}
    assert made["training"] == {**base["training"], "minibatch": 7}
    assert made["align"] == base["align"]


def test_one_of_two_options_takes_the_place_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: li2017-dnn\nname: mine\ntraining: {minibatch: 512}\n")
    assert load_recipe(str(tmp_path / "mine.yaml")).training.size.text(4) == "512 frames a round (128 a learner)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: itself.yaml\n", "does not need this one"),
        ("base: [1]\n", "name or file"),
        ("base: li2017\n", "no recipe 'li2017'"),
    ],
)
def test_a_base_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "itself.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        read_recipe(str(tmp_path / "itself.yaml"))
