"""Trainings of a recipe among which scaling chooses and judges."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.grids.axes import read_axes
from roundelay.grids.grid import Cell, Configuration, Contenders, Tuning, Work
from roundelay.grids.trials import RATE, Trials
from roundelay.reports.headline import counted_split
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.hosts.control.agent import serve
from roundelay.runtime.hosts.control.succession import LedByAnother
from roundelay.runtime.launch.world import HostPlace
from roundelay_speech.acoustic import make_job, make_terms
from roundelay_speech.grids.grid import plan
from roundelay_speech.grids.running import Directories, RecipeWork, check_data, recipe_of
from roundelay_speech.recipes.recipe import load_recipe

FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Factors on the recipe's learning rate that are tried by default."""


@dataclass(frozen=True, kw_only=True)
class RecipeTrials(Trials):
    """Trainings of a recipe for scaling."""

    source: str  # the recipe
    overrides: tuple[str, ...]  # for every training
    contenders: Contenders  # all that is wanted but rates

    @classmethod
    def of(
        cls,
        source: str,
        overrides: Sequence[str],
        contenders: Contenders,
        rates: Sequence[float],
        folder: Path,
        wer: bool = False,
    ) -> "RecipeTrials":
        """Return the trials of a recipe at the learning rates `rates`, or at those of `FACTORS`; with `wer`, runs that
        judge are decoded.

        Raises:
            UserError: as `plan`.
        """
        base = load_recipe(source, read_axes(overrides).overrides)
        tried = tuple(rates) or tuple(factor * base.schedule.learning_rate for factor in FACTORS)
        grid = plan(source, overrides, replace(contenders, tune=[_tried(tried)]), folder)
        return cls(
            name=base.name,
            data=str(base.corpus),
            folder=folder,
            rates=tried,
            seeds=grid.seeds,
            about=f"{grid.about_minibatch}{grid.about_time}",
            virtual=base.training.runtime == "sim",
            decoded=counted_split(base.decode.splits) if wer else "",
            source=source,
            overrides=tuple(overrides),
            contenders=contenders,
        )

    def tunings(self, rates: Sequence[float]) -> tuple[Tuning, ...]:
        return plan(self.source, self.overrides, replace(self.contenders, tune=[_tried(rates)]), self.folder).tunings

    def cell(self, configuration: Configuration, seed: int) -> Cell:
        return Directories(self.folder).cell(configuration, seed)

    @property
    def work(self) -> Work:
        return partial(RecipeWork, epochs_of=self.seeds if self.decoded else (), first=self.first)

    def take_part(self, cell: Cell, place: HostPlace, asked: Callable[[], bool]) -> None:
        recipe = recipe_of(cell)
        cluster = make_job(recipe, None, place).cluster
        terms = make_terms(recipe, cluster.strategy)
        try:
            serve(cluster, place, terms, lambda _: None, lambda: "SIGTERM" if asked() else "")
        except (LearnerDied, LedByAnother) as error:
            raise UserError(f"its learners ended: {error}") from error

    def check(self) -> None:
        wanted = replace(self.contenders, tune=[_tried(self.rates)])
        check_data(plan(self.source, self.overrides, wanted, self.folder))


def _tried(rates: Sequence[float]) -> str:
    return f"{RATE}={','.join(map(repr, rates))}"
