"""The runs of a recipe to compare: one learner and every strategy with every number of learners, for every value of
every axis, under every seed.

FOLDER/<label>-<learners>[-straggler][-<key>-<value>...]-seed<k> is a run directory like any other: `train`, `decode`
and `report` work on it. Its name depends on the cell alone, and says of an axis only what differs from the recipe, so
that a grid that grew finds what is there; a run that an earlier grid called otherwise is known by its recipe.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.grids.axes import Axes, Point, check_axes, points, read_axes, recipe_part, strategy_part
from roundelay.grids.cells import Cell, Configuration, Work, stem
from roundelay.grids.grid import Contenders, Grid, Tuning
from roundelay.runtime.base import parse_straggler
from roundelay.strategies import make_strategy
from roundelay_speech.grids.cells import Directories, RecipeConfiguration, of_recipe
from roundelay_speech.grids.running import RecipeWork
from roundelay_speech.recipes.known import check_recipe
from roundelay_speech.recipes.recipe import Recipe, load_recipe

OURS = ("strategy", "options", "learners", "seed", "stragglers")  # of section `training`: the grid sets them


@dataclass(frozen=True)
class RecipeGrid(Grid):
    """The runs to compare of a recipe, `base`."""

    base: Recipe

    @property
    def source(self) -> dict[str, Any]:
        training = self.base.training
        return {"recipe": self.base.name, "runtime": training.runtime, "minibatch": plain(training.size)}

    @cached_property
    def _directories(self) -> Directories:
        return Directories(self.folder)

    def cell(self, configuration: Configuration, seed: int) -> Cell:
        return self._directories.cell(configuration, seed)

    @property
    def work(self) -> Work:
        return RecipeWork

    @property
    def about_time(self) -> str:
        """Text that says which seconds are meant; empty where they are real."""
        if self.base.training.runtime != "sim":
            return ""
        cost = self.base.cost
        if cost.cluster is not None:
            return f"; virtual seconds of cluster {cost.cluster.name!r}"
        return f"; virtual seconds, {cost.gradient:g} for a gradient of {cost.gradient_size}"

    @property
    def about_minibatch(self) -> str:
        found: dict[str, dict[str, None]] = {}
        for size in (of_recipe(cell.configuration).base.training.size for cell in self.every_cell):
            whose = "for every learner" if size.per_learner else "a round, over all learners"
            found.setdefault(f"{size.unit} {whose}", {})[f"{size.number:,}"] = None
        return "; ".join(f"{' or '.join(numbers)} {what}" for what, numbers in found.items())


def plan(source: str, overrides: Sequence[str], wanted: Contenders, folder: Path | None = None) -> RecipeGrid:
    """Return the grid over a recipe. One learner stands for the baseline, `sgd`, which is always in it.

    An override with several values is an axis (`compare.axes`). What `tune` names is chosen on dev for every cell of
    the other axes, under the recipe's seed; the seeds that judge then come after it.

    In the simulator a gradient costs in proportion to its frames, unless the recipe says for how many frames
    `cost.gradient` is: one learner's minibatch then.

    Raises:
        UserError: no such recipe, strategy or option; an override of what the grid sets; numbers that are no grid.
    """
    ours = {f"training.{key}" for key in OURS}
    if taken := [text for text in (*overrides, *wanted.tune) if text.partition("=")[0] in ours]:
        raise UserError(
            f"override {taken[0]!r}: a comparison sets it itself; use --strategies, --learners, --seeds or --straggler."
        )
    if wanted.seeds < 1 or not wanted.learners or min(wanted.learners) < 1:
        raise UserError("a comparison needs at least one seed, and one learner or more in every cell.")
    for text in wanted.stragglers:
        parse_straggler(text)
    axes = read_axes(overrides, wanted.tune)
    check_axes(axes, wanted.strategies, partial(check_recipe, source))
    base = load_recipe(source, axes.overrides)
    if base.training.runtime == "sim":
        base = dataclasses.replace(base, cost=base.cost.per_minibatch(base.training.size))
    first = base.training.seed + bool(wanted.tune)
    maker = _Maker(source, axes, base, folder if folder is not None else Path("exp") / base.name / "compare")
    return maker.grid(wanted.ways(), tuple(range(first, first + wanted.seeds)))


class _Maker:
    """Makes the cells of one grid."""

    def __init__(self, source: str, axes: Axes, base: Recipe, folder: Path) -> None:
        self.source, self.axes, self.base = source, axes, base
        self.directories = Directories(folder)
        self._recipes: dict[tuple[str, ...], Recipe] = {}
        self._named: dict[str, RecipeConfiguration] = {}

    def grid(self, ways: Sequence[tuple[str, int, tuple[str, ...]]], seeds: tuple[int, ...]) -> RecipeGrid:
        fixed: dict[str, RecipeConfiguration] = {}
        tunings: dict[str, Tuning] = {}
        for text, count, slow in ways:
            mine = self.axes.of(text)
            for point in points(mine.compared):
                row = self._configuration(text, count, slow, point)
                if not mine.tuned:
                    fixed[row.stem] = self._known(row)
                    continue
                tried = (self._configuration(text, count, slow, (*point, *at)) for at in points(mine.tuned))
                trials = {trial.stem: self._known(trial) for trial in tried}
                cells = (self.directories.cell(trial, self.base.training.seed) for trial in trials.values())
                tunings.setdefault(row.stem, Tuning(row, tuple(a.key for a in mine.tuned), tuple(cells)))
        judging = [self.directories.cell(row, seed) for seed in seeds for row in fixed.values()]
        shown = [axis.key for axis in (*self.axes.compared, *self.axes.tuned) if len(axis.values) > 1]
        return RecipeGrid(
            self.directories.folder, tuple(judging), tuple(tunings.values()), seeds, tuple(shown), self.base
        )

    def _configuration(
        self, text: str, learners: int, stragglers: tuple[str, ...], point: Point
    ) -> RecipeConfiguration:
        strategy = make_strategy(text + strategy_part(point))
        recipe, given = self._recipe(tuple(recipe_part(point))), dict(point)
        still_open = {axis.key for axis in self.axes.of(text).tuned} - set(given)
        values, apart = [], {}
        for axis in (*self.axes.compared, *self.axes.tuned):
            here = None
            if axis.option is not None:
                here = None if axis.key in still_open else getattr(strategy, axis.option, None)
            elif axis.key in given:
                here = _value(recipe, axis.key, given[axis.key])
                if here != _value(self.base, axis.key, None):
                    apart[axis.key] = here
            values.append((axis.key, here))
        name = stem(strategy, learners, stragglers, apart)
        return RecipeConfiguration(strategy, learners, stragglers, tuple(values), name, recipe)

    def _known(self, row: RecipeConfiguration) -> RecipeConfiguration:
        """Return the configuration; a UserError where another one would have the same directories."""
        other = self._named.setdefault(row.stem, row)
        if (other.strategy, other.base) != (row.strategy, row.base):
            raise UserError(
                f"{other.whole_name} and {row.whole_name} would have directories of the same name, {row.stem}: compare "
                "them in two folders (--exp)."
            )
        return other

    def _recipe(self, overrides: tuple[str, ...]) -> Recipe:
        """Return the recipe at these values, with the price of a gradient that the whole grid has."""
        if overrides not in self._recipes:
            recipe = load_recipe(self.source, [*self.axes.overrides, *overrides])
            if recipe.training.runtime == "sim":
                recipe = dataclasses.replace(recipe, cost=recipe.cost.per_minibatch(self.base.training.size))
            self._recipes[overrides] = recipe
        return self._recipes[overrides]


def _value(recipe: Recipe, key: str, written: str | None) -> Any:
    """Return the value of an option; of a whole section as it was written."""
    value = plain(recipe)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return written if isinstance(value, dict) else value
