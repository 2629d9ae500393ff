"""The runs to compare, whatever they train: cells that judge, and those among which a value is chosen first."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.records import Results
from roundelay.grids.cells import Cell, Configuration, Work
from roundelay.strategies import make_strategy
from roundelay.strategies.sgd import SerialSgd


@dataclass(frozen=True)
class Tuning:
    """A configuration of which some options are tuned: `trials` try all their values under one seed, and the best of
    them is judged under others."""

    configuration: Configuration  # without values of what is tuned
    keys: tuple[str, ...]  # of what is tuned
    trials: tuple[Cell, ...]


@dataclass(frozen=True)
class Contenders:
    """Trainings that are wanted of a source.

    strategies beside `sgd`, each written as in the command line; learners, so many or so many; seeds that judge;
    stragglers: with and without them; tune: `KEY=V,V,V`, options chosen on dev.
    """

    strategies: Sequence[str]
    learners: Sequence[int]
    seeds: int
    stragglers: Sequence[str] = ()
    tune: Sequence[str] = ()

    def ways(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return (strategy, learners, stragglers) of each way to train, one learner alone first.

        Raises:
            UserError: no strategy is one of several learners.
        """
        several = [learners for learners in dict.fromkeys(self.learners) if learners > 1]
        texts = [text for text in dict.fromkeys(self.strategies) if not isinstance(make_strategy(text), SerialSgd)]
        if not texts:
            raise UserError("give --strategies, for example --strategies ssgd adpsgd:random-ring.")
        slowed = [(), tuple(self.stragglers)] if self.stragglers else [()]
        of_several = [(text, learners, slow) for learners in several for text in texts for slow in slowed]
        return [(SerialSgd.name, 1, ()), *of_several]


@dataclass(frozen=True)
class Grid(ABC):
    """`cells` are in the order they are trained, seed by seed, so that a grid cut short still compares. Those of
    configurations that are tuned first are not among them: which they are, their trials say."""

    folder: Path
    cells: tuple[Cell, ...]
    tunings: tuple[Tuning, ...]
    seeds: tuple[int, ...]  # that judge
    axes: tuple[str, ...]  # keys that tell cells apart, those of what is tuned last

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """All cells but those whose values are not chosen yet."""
        return (*self.cells, *(cell for tuning in self.tunings for cell in tuning.trials))

    @property
    def size(self) -> int:
        """Number of trainings."""
        return len(self.every_cell) + len(self.tunings) * len(self.seeds)

    @property
    def done(self) -> int:
        """Number of trainings that ended before, of those whose values need not be chosen first."""
        return sum((cell.exp / Results.FILE).exists() for cell in self.every_cell)

    @property
    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Source of the trainings, in files for machines: `recipe`, `runtime`, `minibatch`."""

    @property
    @abstractmethod
    def about_minibatch(self) -> str:
        """Text that says of what sizes minibatches are, and whose."""

    @abstractmethod
    def cell(self, configuration: Configuration, seed: int) -> Cell:
        """Return the training of a configuration under a seed."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The work of one training."""
