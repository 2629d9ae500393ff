"""Training and decoding a recipe in the cells of a grid; what is there already is only read."""

import gc
from collections.abc import Collection
from dataclasses import replace

from roundelay.core.configure import plain
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.grids.cells import Cell, CellWork
from roundelay.grids.grid import Grid
from roundelay.grids.results import diverged
from roundelay.grids.trials import turn_of
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay.reports.headline import counted_split
from roundelay.run_directory import claim_directory
from roundelay.runtime.hosts.control.turns import FirstHost
from roundelay.training import train
from roundelay_speech.acoustic import make_job
from roundelay_speech.grids.cells import of_recipe, recipe_of
from roundelay_speech.hmm.alignment import require_summary as require_alignment
from roundelay_speech.prepared import read_summary as read_corpus
from roundelay_speech.recipes.kept import with_kept_order
from roundelay_speech.recipes.recipe import Recipe, complete
from roundelay_speech.recognition.epochs import decode_epochs
from roundelay_speech.recognition.recognise import recognise


def check_data(grid: Grid) -> None:
    """Find out before the first training whether the corpora and alignments are there, rather than once for each cell.

    What has ended needs neither.

    Raises:
        UserError: one of them is missing, or no corpus or alignment; names its folder.
    """
    recipes = [of_recipe(cell.configuration).base for cell in grid.every_cell if not (cell.exp / Results.FILE).exists()]
    for corpus in dict.fromkeys(recipe.corpus for recipe in recipes):
        read_corpus(corpus)
    for alignment in filter(None, dict.fromkeys(recipe.alignment for recipe in recipes if not recipe.unaligned)):
        require_alignment(alignment)


class RecipeWork(CellWork):
    """Work of a cell that trains a recipe.

    Args:
        epochs_of: seeds under which the model of every epoch is kept, and decoded with the one that the run leaves.
        first: says to other hosts what is trained.
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
        """Decode what is not decoded yet; False if interrupted."""
        exp = self.cell.exp
        if not set(recipe.decode.splits) <= set(Results.read(exp).wer):
            if diverged(load_run(exp)):
                return True  # there is nothing to decode with
            if self.interrupt.asked:
                return False
            self.new = True
            recognise(exp, recipe, self.progress)
        split = counted_split(recipe.decode.splits)
        return not self._epochs or decode_epochs(exp, recipe, split, self.progress, self.interrupt)
