"""Cells of a grid: a configuration under a seed, what it trains, and the run directory it has."""

import dataclasses
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.reports.series import configuration_name
from roundelay.run_directory import same_training
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy
from roundelay_speech.recipes.kept import with_kept_order
from roundelay_speech.recipes.recipe import Recipe, as_it_was, complete

Values = tuple[tuple[str, Any], ...]
"""A value for each of some axes: key and value. None where an axis means nothing to the strategy."""


@dataclass(frozen=True)
class Configuration:
    """Everything of a training but its seed: a row of the table."""

    strategy: Strategy
    learners: int
    stragglers: tuple[str, ...]
    axes: Values
    stem: str  # of the names of its directories

    @property
    def name(self) -> str:
        """Name without axes and seed, as the report calls it."""
        return configuration_name(self.strategy.label, self.learners, self.stragglers)

    @property
    def whole_name(self) -> str:
        """Name with the values of the axes."""
        told = (f"{key} {shown(value)}" for key, value in self.axes if value is not None)
        return ", ".join([self.name, *told])


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


@dataclass(frozen=True)
class Cell:
    """One training of the grid."""

    exp: Path
    configuration: Configuration
    seed: int

    @property
    def name(self) -> str:
        """Name of its configuration and seed."""
        return f"{self.configuration.whole_name}, seed {self.seed}"

    def recipe(self) -> Recipe:
        """Return the recipe it trains.

        Raises:
            UserError: as `RecipeConfiguration.recipe`.
        """
        return of_recipe(self.configuration).recipe(self.seed)


def of_recipe(configuration: Configuration) -> RecipeConfiguration:
    """Return the same configuration, which is a recipe's: of a grid over a recipe all are."""
    assert isinstance(configuration, RecipeConfiguration)
    return configuration


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
            like = f"{_label(configuration.strategy, configuration.learners)}*-seed{seed}"
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


def stem(strategy: Strategy, learners: int, stragglers: tuple[str, ...], apart: Mapping[str, Any]) -> str:
    """Return the name of a cell's directories but for the seed; `apart` are values of axes that its recipe does not
    have."""
    parts = [_label(strategy, learners) + "-straggler" * bool(stragglers)]
    parts += [_sanitised(f"{key} {shown(value)}") for key, value in apart.items()]
    return "-".join(parts)


def shown(value: object) -> str:
    """Return a value of an axis, for people."""
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _label(strategy: Strategy, learners: int) -> str:
    return f"{directory_label(strategy)}-{learners}"


def directory_label(strategy: Strategy) -> str:
    """Return a strategy's label as part of a file name, followed by options it was given that the label does not name.

    It depends on the strategy alone, not on what else is compared, so that a directory is found again.
    """
    words, usual = strategy.label.split(), plain(make_strategy(strategy.name))
    parts = [strategy.label]
    for option, value in plain(strategy).items():
        told = option in words or (isinstance(value, str) and value in words)
        if value != usual[option] and not told:
            parts.append(f"{option} {value}")
    return _sanitised(" ".join(parts))


def _sanitised(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", re.sub(r" -(?=[0-9.])", " minus ", text)).strip("-")
