"""Training and decoding a recipe in the cells of a grid; what is there already is only read."""

import gc

from roundelay.core.configure import plain
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.grids.cells import Cell, CellWork
from roundelay.grids.grid import Grid
from roundelay.grids.results import diverged
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay.run_directory import claim_directory
from roundelay.training import train
from roundelay_speech.acoustic import make_job
from roundelay_speech.grids.cells import of_recipe, recipe_of
from roundelay_speech.hmm.alignment import require_summary as require_alignment
from roundelay_speech.prepared import read_summary as read_corpus
from roundelay_speech.recipes.kept import with_kept_order
from roundelay_speech.recipes.recipe import complete
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
    """Work of a cell that trains a recipe."""

    def __init__(self, cell: Cell, decode: bool, progress: Progress, interrupt: Interrupt) -> None:
        self.cell, self.decode = cell, decode
        self.progress, self.interrupt = progress, interrupt

    def go(self) -> bool:
        recipe = recipe_of(self.cell)
        if (self.cell.exp / Results.FILE).exists():  # no corpus is needed to read it
            claim_directory(self.cell.exp, plain(with_kept_order(recipe, self.cell.exp)), complete)
        else:
            self.new = True
            gc.collect()  # a training's objects refer to each other, features in reach: 100 MB each until Python looks
            if train(make_job(recipe, self.cell.exp), self.cell.exp, self.progress, self.interrupt) is None:
                return False
        self.trained = True
        if not self.decode or set(recipe.decode.splits) <= set(Results.read(self.cell.exp).wer):
            return True
        if self.interrupt.asked:
            return False
        if not diverged(load_run(self.cell.exp)):  # else there is nothing to decode with
            self.new = True
            recognise(self.cell.exp, recipe, self.progress)
        return True
