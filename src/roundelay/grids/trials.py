"""Trainings among which scaling chooses and judges."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.grids.cells import Cell, Configuration, Work
from roundelay.grids.grid import Tuning

RATE = "schedule.learning_rate"
"""Option of a recipe that is chosen."""


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
