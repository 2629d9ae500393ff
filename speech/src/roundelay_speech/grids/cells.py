"""Cells of a grid over a recipe: what they train, and run directories that are found again."""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.grids.cells import Cell, Configuration, directory_label
from roundelay.run_directory import same_training
from roundelay_speech.recipes.kept import with_kept_order
from roundelay_speech.recipes.recipe import Recipe, as_it_was, complete


@dataclass(frozen=True)
class RecipeConfiguration(Configuration):
    """Everything of a training of a recipe but its seed."""

    base: Recipe  # with the values of the axes

    def recipe(self, seed: int) -> Recipe:
        """Return the recipe of a training under `seed`; of a virtual cluster its first learners take part.

        Raises:
            UserError: the recipe, or its virtual cluster, does not allow so many learners.
        """
        training = dataclasses.replace(
            self.base.training,
            strategy=self.strategy.name,
            options=plain(self.strategy),
            learners=self.learners,
            seed=seed,
            stragglers=self.stragglers,
        )
        cost = self.base.cost
        if cost.cluster is not None and training.runtime == "sim":
            cost = dataclasses.replace(cost, cluster=cost.cluster.first(self.learners))
        return dataclasses.replace(self.base, training=training, cost=cost)


def of_recipe(configuration: Configuration) -> RecipeConfiguration:
    """Return the same configuration, which is a recipe's: of a grid over a recipe all are."""
    assert isinstance(configuration, RecipeConfiguration)
    return configuration


def recipe_of(cell: Cell) -> Recipe:
    """Return the recipe that a cell trains.

    Raises:
        UserError: as `RecipeConfiguration.recipe`.
    """
    return of_recipe(cell.configuration).recipe(cell.seed)


class Directories:
    """Run directories of the trainings of a recipe in a folder, found by name, or else by their recipe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, dict[str, Any]] = {}

    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the cell with its directory: that of its name, unless another has its training already."""
        usual = self.folder / f"{configuration.stem}-seed{seed}"
        with suppress(UserError):  # a recipe that cannot be trained is told when its turn comes
            recipe = of_recipe(configuration).recipe(seed)
            like = f"{directory_label(configuration.strategy)}-{configuration.learners}*-seed{seed}"
            for exp in (usual, *(sorted(self.folder.glob(like)) if self.folder.is_dir() else ())):
                if (exp / RECIPE).is_file() and self._has(exp, recipe):
                    return Cell(exp, configuration, seed)
        return Cell(usual, configuration, seed)

    def _has(self, exp: Path, recipe: Recipe) -> bool:
        """Return True if the run in `exp` trains this recipe, in the order of epochs that it began with."""
        with suppress(UserError):
            return same_training(self._recipe(exp), plain(with_kept_order(recipe, exp)))
        return False

    def _recipe(self, exp: Path) -> dict[str, Any]:
        if exp not in self._read:
            try:
                self._read[exp] = complete(as_it_was(read_yaml(exp / RECIPE)))
            except UserError:  # not a recipe any more
                self._read[exp] = {}
        return self._read[exp]
