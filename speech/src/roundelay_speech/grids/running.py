"""Training and decoding a recipe in the cells of a grid; what is there already, found by name or by recipe, is only
read."""

import dataclasses
import gc
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.folders import RECIPE
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.grids.grid import Cell, CellWork, Configuration, Grid, directory_label
from roundelay.grids.results import diverged
from roundelay.grids.trials import turn_of
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay.reports.headline import counted_split
from roundelay.run_directory import claim_directory, same_training
from roundelay.runtime.hosts.control.turns import FirstHost
from roundelay.training import train
from roundelay_speech.acoustic import make_job
from roundelay_speech.hmm.alignment import require_summary as require_alignment
from roundelay_speech.prepared import read_summary as read_corpus
from roundelay_speech.recipes.recipe import Recipe, as_it_was, complete, with_kept_order
from roundelay_speech.recognition.epochs import decode_epochs
from roundelay_speech.recognition.recognise import recognise


def check_data(grid: Grid) -> None:
    """Check before the first training that the corpora and alignments of all cells are there. A cell that has ended
    needs neither.

    Raises:
        UserError: a corpus or alignment is missing or of another kind; names its folder.
    """
    recipes = [of_recipe(cell.configuration).base for cell in grid.every_cell if not (cell.exp / Results.FILE).exists()]
    for corpus in dict.fromkeys(recipe.corpus for recipe in recipes):
        read_corpus(corpus)
    for alignment in filter(None, dict.fromkeys(recipe.alignment for recipe in recipes if not recipe.unaligned)):
        require_alignment(alignment)


class RecipeWork(CellWork):
    """The work on a cell that trains a recipe.

    Args:
        epochs_of: seeds under which the model of every epoch is kept and decoded, besides the one that the run leaves.
        first: tells the other hosts of each training; None: there are no others.
    """

    def __init__(
        self,
        cell: Cell,
        decode: bool,
        progress: Progress,
        interrupt: Interrupt,
        epochs_of: Collection[int] = (),
        first: FirstHost | None = None,
    ) -> None:
        self.cell, self.decode = cell, decode
        self.progress, self.interrupt = progress, interrupt
        self._epochs, self._first = cell.seed in epochs_of, first

    def go(self) -> bool:
        recipe = recipe_of(self.cell)
        if (self.cell.exp / Results.FILE).exists():  # no corpus is needed to read it
            claim_directory(self.cell.exp, plain(with_kept_order(recipe, self.cell.exp)), complete)
        else:
            self.new = True
            gc.collect()  # a training's objects refer to each other, features in reach: 100 MB each until Python looks
            with turn_of(self._first, self.cell) as place:
                job = replace(make_job(recipe, self.cell.exp, place), keeps_models=self._epochs)
                if train(job, self.cell.exp, self.progress, self.interrupt) is None:
                    return False
        self.trained = True
        return not self.decode or self._decode(recipe)

    def _decode(self, recipe: Recipe) -> bool:
        """Decode the models of the cell that are not decoded yet; return False if interrupted."""
        exp = self.cell.exp
        if not set(recipe.decode.splits) <= set(Results.read(exp).wer):
            if diverged(load_run(exp)):
                return True  # there is nothing to decode with
            if self.interrupt.asked:
                return False
            self.new = True
            recognise(exp, recipe, self.progress)
        if not self._epochs:
            return True
        return decode_epochs(exp, recipe, counted_split(recipe.decode.splits), self.progress, self.interrupt)


@dataclass(frozen=True)
class RecipeConfiguration(Configuration):
    """Everything that defines a training of a recipe except its seed."""

    base: Recipe  # with the values of the axes

    def recipe(self, seed: int) -> Recipe:
        """Return the recipe of a training under `seed`; of a virtual cluster, its first learners take part.

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
    """Return a configuration of a grid over a recipe, checked to be a recipe's."""
    assert isinstance(configuration, RecipeConfiguration)
    return configuration


def recipe_of(cell: Cell) -> Recipe:
    """Return the recipe that a cell trains.

    Raises:
        UserError: as `RecipeConfiguration.recipe`.
    """
    return of_recipe(cell.configuration).recipe(cell.seed)


class Directories:
    """The run directories of a recipe's trainings in a folder, found by name, or else by their recipe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, dict[str, Any]] = {}

    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the cell with its directory: the one of its name, unless another already has its training."""
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
