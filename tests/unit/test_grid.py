"""Cells of a grid: axes as they are written, who takes them, and directories that are found again."""

from pathlib import Path

import pytest
import yaml

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.grids.axes import GridAxis, is_override, read_axes
from roundelay.grids.grid import Contenders, Grid
from roundelay_speech.grids.grid import plan
from roundelay_speech.grids.running import recipe_of

RECIPE = {
    "name": "toy",
    "corpus": "data/toy",
    "alignment": "exp/toy/alignment",
    "training": {"minibatch": 256},
    "schedule": {"learning_rate": 0.02},
}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(RECIPE))
    return "toy.yaml"


def names(grid: Grid) -> list[str]:
    return [cell.exp.name for cell in grid.cells]


def begin(grid: Grid) -> None:
    """Directories as trainings that began leave them."""
    for cell in grid.cells:
        cell.exp.mkdir(parents=True, exist_ok=True)
        (cell.exp / "recipe.yaml").write_text(yaml.safe_dump(plain(recipe_of(cell))))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.minibatch=256,1024", ("256", "1024")),
        ("training.minibatch=256, 1024,256", ("256", "1024")),
        ("model={name: blstm, layers: 2},dnn", ("{name: blstm, layers: 2}", "dnn")),
        ("decode.word_costs=[0, 1],[2, 3]", ("[0, 1]", "[2, 3]")),
        ("corpus='data/a,b',data/c", ("'data/a,b'", "data/c")),
    ],
)
def test_commas_outside_brackets_and_quotes_part_values(text: str, values: tuple[str, ...]) -> None:
    assert read_axes([text]).compared == (GridAxis(text.partition("=")[0], values),)


def test_what_stands_behind_strategies_is_told_from_them() -> None:
    assert [
        *filter(is_override, ["bmuf,period=5", "corpus=data/a", "adpsgd:fixed-ring,order=alternate", "ssgd", "a.b=c,d"])
    ] == [
        "corpus=data/a",
        "a.b=c,d",
    ]


@pytest.mark.parametrize("text", ["decode.word_costs=[0, 1]", "corpus='data/a,b'", "training.minibatch=5"])
def test_one_value_is_no_axis(text: str) -> None:
    assert read_axes([text]).overrides == (text,)


def test_every_value_of_every_axis_is_trained_by_whom_it_concerns(recipe: str) -> None:
    """Two minibatches; two periods of `bmuf`, none of `ssgd` and `sgd`; `easgd` has the one it names."""
    given = ["training.minibatch=256,512", "strategy.period=5,20"]
    grid = plan(recipe, given, Contenders(["ssgd", "bmuf", "easgd,period=64"], [2], 1))
    assert grid.axes == ("training.minibatch", "strategy.period")
    found = [(c.configuration.strategy.name, *dict(c.configuration.axes).values()) for c in grid.cells]
    once = [("sgd", None), ("ssgd", None), ("bmuf", 5), ("bmuf", 20), ("easgd", 64)]
    assert sorted(found, key=str) == sorted(((name, m, p) for name, p in once for m in (256, 512)), key=str)
    for cell in grid.cells:
        made, values = recipe_of(cell), dict(cell.configuration.axes)
        assert made.training.minibatch == values["training.minibatch"]
        assert dict(made.training.options).get("period") == values["strategy.period"]
    assert "bmuf-period-5-2-training.minibatch-512-seed0" in names(grid)
    assert "ssgd-2-seed0" in names(grid)  # with the recipe's own 256


def test_values_that_are_equal_are_one(recipe: str) -> None:
    assert len(plan(recipe, ["schedule.learning_rate=0.02,2e-2,0.020,0.03"], Contenders(["ssgd"], [2], 1)).cells) == 4


def test_a_grid_that_changed_finds_what_is_there(recipe: str) -> None:
    folder = Path("grid")

    def made(*given: str, strategies: tuple[str, ...] = ("ssgd",)) -> set[str]:
        return set(names(plan(recipe, [*given], Contenders(strategies, [2], 1), folder)))

    first = plan(recipe, ["training.minibatch=256,512"], Contenders(["ssgd"], [2], 1), folder)
    begin(first)
    there = set(names(first))
    assert made("training.minibatch=128,256,512", strategies=("ssgd", "bsp")) > there  # it grew
    # A value by itself, an axis more that is at the recipe's own value, and none:
    assert made("training.minibatch=512") == {n for n in there if "512" in n}
    assert made("training.minibatch=512,256", "schedule.learning_rate=0.02,0.04") > there
    assert made() == {n for n in there if "512" not in n}


def test_another_recipe_under_the_same_name_is_not_taken_for_it(recipe: str) -> None:
    """Its directory is that of its name: whoever trains there is told whose it is."""
    begin(plan(recipe, [], Contenders(["ssgd"], [2], 1), Path("grid")))
    other = plan(recipe, ["optimizer.momentum=0.5"], Contenders(["ssgd"], [2], 1), Path("grid"))
    assert names(other) == ["sgd-1-seed0", "ssgd-2-seed0"]
    usual = plan(recipe, [], Contenders(["ssgd"], [2], 1))
    assert recipe_of(other.cells[1]).optimizer != recipe_of(usual.cells[1]).optimizer


def test_values_whose_names_are_the_same_are_refused(recipe: str) -> None:
    with pytest.raises(UserError, match="directories of the same name"):
        plan(recipe, ["corpus=data/a,data-a"], Contenders(["ssgd"], [2], 1))


def test_a_minus_stays_in_the_name(recipe: str) -> None:
    grid = plan(recipe, ["decode.word_cost=1.0,-1.0"], Contenders(["ssgd"], [2], 1))
    assert names(grid)[2:] == ["ssgd-2-decode.word_cost-1.0-seed0", "ssgd-2-decode.word_cost-minus-1.0-seed0"]


def test_the_seed_that_tunes_judges_nothing(recipe: str) -> None:
    tune = ["schedule.learning_rate=0.02,0.04", "strategy.period=5,20"]
    grid = plan(recipe, ["training.minibatch=256,512"], Contenders(["bmuf", "ssgd"], [2], 3, tune=tune))
    assert grid.seeds == (1, 2, 3)
    assert grid.cells == ()
    assert {cell.seed for tuning in grid.tunings for cell in tuning.trials} == {0}
    assert [(t.configuration.strategy.name, len(t.trials), t.keys) for t in grid.tunings[:4:2]] == [
        ("sgd", 2, ("schedule.learning_rate",)),
        ("bmuf", 4, ("schedule.learning_rate", "strategy.period")),
    ]
    assert grid.size == (2 + 4 + 2) * 2 + 3 * 3 * 2


def test_who_is_not_tuned_is_judged_by_the_same_seeds(recipe: str) -> None:
    grid = plan(recipe, [], Contenders(["bmuf", "ssgd"], [2], 2, tune=["strategy.period=5,20"]))
    assert names(grid) == ["sgd-1-seed1", "ssgd-2-seed1", "sgd-1-seed2", "ssgd-2-seed2"]
    assert [t.configuration.strategy.name for t in grid.tunings] == ["bmuf"]


def test_all_gradients_of_a_grid_are_priced_alike(recipe: str) -> None:
    """Else four times the minibatch would take as long."""
    grid = plan(recipe, ["training.runtime=sim", "training.minibatch=256,1024"], Contenders(["ssgd"], [2], 1))
    assert {recipe_of(cell).cost.frames_per_gradient for cell in grid.cells} == {256}


def test_a_number_of_the_recipe_is_priced_in_the_unit_it_was_written_in(recipe: str) -> None:
    """256 frames of the recipe are not 256 utterances where an override counts those, and minibatches are an axis."""
    in_sequences = ["training.runtime=sim", "training.minibatch_unit=sequences", "model=blstm"]
    own = plan(recipe, [*in_sequences, "training.minibatch=16,32"], Contenders(["ssgd"], [2], 1))
    given = plan(recipe, [*in_sequences, "training.minibatch=16"], Contenders(["ssgd"], [2], 1))
    prices = [
        {(c.frames_per_gradient, c.sequences_per_gradient) for c in (recipe_of(cell).cost for cell in grid.cells)}
        for grid in (own, given)
    ]
    assert prices == [{(256, None)}, {(None, 16)}]


def test_sequences_of_two_lengths_have_no_price_by_their_number(recipe: str) -> None:
    axes = ["training.runtime=sim", "training.minibatch_unit=sequences", "training.minibatch=16"]
    two = "model={name: blstm, chunk: 21},{name: blstm}"
    with pytest.raises(UserError, match=r"axis model sequences are of 21 frames and of whole utterances, but"):
        plan(recipe, [*axes, two], Contenders(["ssgd"], [2], 1))
    with pytest.raises(UserError, match=r"axis model\.chunk sequences .* but 16 .*cost\.frames_per_gradient=336"):
        plan(recipe, [*axes, "model={name: blstm}"], Contenders(["ssgd"], [2], 1, tune=["model.chunk=21,42"]))
    plan(recipe, [*axes, two, "cost.frames_per_gradient=336"], Contenders(["ssgd"], [2], 1))
    plan(
        recipe,
        [*axes, "model={name: blstm, chunk: 21},{name: blstm, chunk: 21, cells: 8}"],
        Contenders(["ssgd"], [2], 1),
    )
    plan(recipe, [*axes[1:], two], Contenders(["ssgd"], [2], 1))  # real time has no prices


def test_an_axis_may_be_the_minibatch_of_every_learner(recipe: str) -> None:
    """It takes the place of the recipe's total; the baseline has the same for its one learner."""
    grid = plan(recipe, ["training.minibatch_per_learner=64,128"], Contenders(["ssgd"], [4], 1))
    found = [
        (cell.configuration.learners, recipe_of(cell).training.size.a_round(cell.configuration.learners))
        for cell in grid.cells
    ]
    assert found == [(1, 64), (1, 128), (4, 256), (4, 512)]
    assert grid.about_minibatch == "64 or 128 frames for every learner"


@pytest.mark.parametrize(
    ("given", "tune", "strategies", "said"),
    [
        (["strategy.period=1,5"], [], ["ssgd"], "none of the strategies ssgd takes a value of it"),
        (["strategy.perod=1,5"], [], ["bmuf"], "Did you mean period"),
        (["strategy.period=1,5"], [], ["bmuf,period=5"], "those aside that they name themselves"),
        (["strategy.period=one,5"], [], ["bmuf"], "bmuf.period"),
        (["training.minibatch=256,,512"], [], ["ssgd"], "a value between commas is empty"),
        (["training.minibatch="], [], ["ssgd"], "write training.minibatch=null"),
        (["strategy.period="], [], ["bmuf"], "write strategy.period=null"),
        (["training.minibatch=256,many"], [], ["ssgd"], "training.minibatch is 'many'"),
        (["training.minibatch=256,512", "training.minibatch=5"], [], ["ssgd"], "given twice"),
        (["training.minibatch=256"], ["training.minibatch=256,512"], ["ssgd"], "given twice"),
        ([], ["schedule.learning_rate=0.1"], ["ssgd"], "several different values"),
        ([], ["strategy.period=5,5"], ["bmuf"], "several different values.*strategy.period=VALUE,VALUE"),
        ([], ["schedule.learning_rat=0.1,0.2"], ["ssgd"], "did you mean learning_rate"),
        ([], ["training.seed=1,2"], ["ssgd"], "--seeds"),
        (["training.seed=1,2"], [], ["ssgd"], "--seeds"),
    ],
)
def test_what_is_no_axis_is_named(
    recipe: str, given: list[str], tune: list[str], strategies: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        plan(recipe, given, Contenders(strategies, [2], 1, tune=tune))
