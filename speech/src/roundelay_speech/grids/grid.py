"""The runs of a recipe to compare: one learner and every strategy with every number of learners, for every value of
every axis, under every seed.

FOLDER/<label>-<learners>[-straggler][-<key>-<value>...]-seed<k> is a run directory like any other: `train`, `decode`
and `report` work on it. Its name depends on the cell alone, and names of an axis only differences from the recipe, so
that a grid that grew finds the runs that are there; a run that an earlier grid called otherwise is known by its recipe.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.minibatch import PER_LEARNER, TOTAL, MinibatchSize
from roundelay.grids.axes import Axes, Point, check_axes, points, read_axes, recipe_part, strategy_part
from roundelay.grids.grid import Cell, Configuration, Contenders, Grid, Tuning, Work, stem
from roundelay.runtime.base import parse_straggler
from roundelay.strategies import make_strategy
from roundelay_speech.grids.running import Directories, RecipeConfiguration, RecipeWork, of_recipe
from roundelay_speech.recipes.known import check_recipe
from roundelay_speech.recipes.recipe import Recipe, load_recipe

OURS = ("strategy", "options", "learners", "seed", "stragglers")  # of section `training`: the grid sets them


@dataclass(frozen=True)
class RecipeGrid(Grid):
    """The grid of runs of a recipe, `base`."""

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
        """Text on the kind of seconds; "" if they are real."""
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
    """Plan the grid over a recipe. One learner stands for the baseline, `sgd`, which is always in it.

    An override with several values is an axis (`compare.axes`). Options that `tune` names are chosen on dev for every
    cell of the other axes, under the recipe's seed; the seeds that judge then come after it.

    In the simulator a gradient costs in proportion to its frames, at one price for all trainings. If the recipe does
    not say for how many frames or sequences `cost.gradient` is, it is for one minibatch of a learner; if minibatches
    are an axis, for the recipe's own, in its own unit.

    Raises:
        UserError: no such recipe, strategy or option; an override of an option that the grid sets; numbers that are no
            grid; a price for sequences, whose length is an axis.
    """
    ours = {f"training.{key}" for key in OURS}
    given = [text for text in overrides if not text.removeprefix("training.seed=").isdigit()]  # which is the first seed
    if taken := [text for text in (*given, *wanted.tune) if text.partition("=")[0] in ours]:
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
    price = _size_of_price(source, axes, base)
    by_number = price.unit == "sequences" and _priced(base, price) != base and base.cost.cluster is None
    base = _priced(base, price)
    first = base.training.seed + bool(wanted.tune)
    folder = folder if folder is not None else Path("exp") / base.name / "compare"
    grid = _Maker(source, axes, base, price, folder).grid(wanted.ways(), tuple(range(first, first + wanted.seeds)))
    if by_number:
        _check_lengths(grid, price.number)
    return grid


def _size_of_price(source: str, axes: Axes, base: Recipe) -> MinibatchSize:
    """Return the minibatch whose gradient takes `cost.gradient` seconds, if the recipe names no size. If minibatches
    are an axis, the recipe's number keeps its own unit, not that of an override: 2,048 frames are not 2,048 utterances.
    """
    if not any(axis.key in (TOTAL, PER_LEARNER) for axis in (*axes.compared, *axes.tuned)):
        return base.training.size
    kept = [text for text in axes.overrides if not text.startswith(TOTAL)]  # nor the unit, whose name begins so, too
    return load_recipe(source, kept).training.size


def _check_lengths(grid: RecipeGrid, number: int) -> None:
    """Raise a UserError if gradients are priced by `number` sequences, and sequences of two cells differ in length."""
    found: dict[int | None, Configuration] = {}
    for cell in grid.every_cell:
        found.setdefault(getattr(of_recipe(cell.configuration).base.model, "chunk", None), cell.configuration)
    if len(found) > 1:
        (one, here), (other, there) = list(found.items())[:2]
        apart = [key for key, value in here.axes if key.startswith("model") and value != dict(there.axes)[key]]
        raise UserError(
            f"along the axis {', '.join(apart)} sequences are of {_length(one)} and of {_length(other)}, but {number} "
            "of them, a minibatch, have one price in virtual time: say for how many frames cost.gradient is, for "
            f"example cost.frames_per_gradient={number * (one or other or 1)}."
        )


def _priced(recipe: Recipe, size: MinibatchSize) -> Recipe:
    """Return the recipe with the whole grid's price of a gradient, for a minibatch of this size."""
    if recipe.training.runtime != "sim":
        return recipe
    return dataclasses.replace(recipe, cost=recipe.cost.per_minibatch(size))


class _Maker:
    """Makes the cells of one grid."""

    def __init__(self, source: str, axes: Axes, base: Recipe, price: MinibatchSize, folder: Path) -> None:
        self.source, self.axes, self.base, self.price = source, axes, base, price
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
        """Return the configuration; raise a UserError if another one would have the same directories."""
        other = self._named.setdefault(row.stem, row)
        if (other.strategy, other.base) != (row.strategy, row.base):
            raise UserError(
                f"{other.whole_name} and {row.whole_name} would have directories of the same name, {row.stem}: compare "
                "them in two folders (--exp)."
            )
        return other

    def _recipe(self, overrides: tuple[str, ...]) -> Recipe:
        """Return the recipe with these overrides, and the whole grid's price of a gradient."""
        if overrides not in self._recipes:
            recipe = load_recipe(self.source, [*self.axes.overrides, *overrides])
            self._recipes[overrides] = _priced(recipe, self.price)
        return self._recipes[overrides]


def _length(chunk: int | None) -> str:
    return "whole utterances" if chunk is None else f"{chunk} frames"


def _value(recipe: Recipe, key: str, written: str | None) -> Any:
    """Return the value of a recipe's option; for a whole section, the text as written."""
    value = plain(recipe)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return written if isinstance(value, dict) else value
