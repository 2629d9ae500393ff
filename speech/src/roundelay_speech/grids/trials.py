"""Trainings among which scaling chooses and judges: those of a recipe."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from roundelay_speech.grids.axes import read_axes
from roundelay_speech.grids.cells import Cell, Configuration, Directories
from roundelay_speech.grids.grid import Contenders, Tuning, plan
from roundelay_speech.grids.running import RecipeWork, Work, check_data
from roundelay_speech.recipes.recipe import load_recipe

RATE = "schedule.learning_rate"
FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Rates that are tried unless others are given, times the recipe's."""


@dataclass(frozen=True, kw_only=True)
class Trials(ABC):
    """Trainings of one source whose seconds are of one kind.

    Attributes:
        name: of the source.
        data: what is trained on; a corpus of a recipe.
        rates: that are tried first.
        seeds: that judge.
        about: the minibatch, in words.
        virtual: the seconds are.
    """

    name: str
    data: str
    folder: Path
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    about: str
    virtual: bool = False

    @abstractmethod
    def tunings(self, rates: Sequence[float]) -> tuple[Tuning, ...]:
        """Return each way with a trial at each of these rates, one learner alone first."""

    @abstractmethod
    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the training of a configuration under a seed."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The work of one training."""

    @abstractmethod
    def check(self) -> None:
        """Find out before the first training whether all that is needed is there.

        Raises:
            UserError: it is not; names what is missing.
        """

    @property
    def size(self) -> int:
        """Number of trainings, where no rate is at an edge."""
        return len(self.tunings(self.rates)) * (len(self.rates) + len(self.seeds))


@dataclass(frozen=True, kw_only=True)
class RecipeTrials(Trials):
    """Trainings of a recipe.

    Attributes:
        source: the recipe.
        overrides: for every training.
        contenders: all that is wanted but rates.
    """

    source: str
    overrides: tuple[str, ...]
    contenders: Contenders

    @classmethod
    def of(
        cls, source: str, overrides: Sequence[str], contenders: Contenders, rates: Sequence[float], folder: Path
    ) -> "RecipeTrials":
        """Return the trials of a recipe at these rates, or at those of `FACTORS`.

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
        return RecipeWork

    def check(self) -> None:
        wanted = replace(self.contenders, tune=[_tried(self.rates)])
        check_data(plan(self.source, self.overrides, wanted, self.folder))


def _tried(rates: Sequence[float]) -> str:
    return f"{RATE}={','.join(map(repr, rates))}"
